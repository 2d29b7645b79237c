"""What asynchronous RL over islands gives: rewards, router replay, adapters.  `bench rl`."""
