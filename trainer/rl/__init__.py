"""Asynchronous RL: rollouts by accepted versions, staleness, importance weights, router replay.

`loop` is the loop, `rollouts` asks the gates, `staleness` and `groups` say what is trained on,
`importance` how much it counts, `learner` takes the step, `replay` routes as the engine did.
"""
