"""`skerry bench rl NAME`: the benchmarks of asynchronous RL by their names."""

from __future__ import annotations

import typer

from skerry.benchmarks.rl import adapters, replay, reward

app = typer.Typer(
    help="What asynchronous RL over islands gives.", no_args_is_help=True, rich_markup_mode=None
)
app.command("adapters")(adapters.adapters)
app.command("replay")(replay.replay)
app.command("reward")(reward.reward)


@app.callback()
def rl() -> None:
    """Measure asynchronous RL over islands: rewards, router replay, adapters."""
