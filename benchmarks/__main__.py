"""`python -m skerry.benchmarks NAME`, also `skerry bench NAME`: every benchmark by its name."""

from __future__ import annotations

import typer

from skerry.benchmarks import (
    bench_agent,
    bench_behind,
    bench_codec,
    bench_deltas,
    bench_gate,
    bench_inspect,
    bench_log,
    bench_pause,
    bench_payload,
    bench_publish,
    bench_readme,
    bench_relay,
    bench_road,
    bench_scale,
)
from skerry.benchmarks.rl.command import app as rl_app

app = typer.Typer(
    name="bench", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.command("agent")(bench_agent.agent)
app.command("behind")(bench_behind.behind)
app.command("codec")(bench_codec.codec)
app.command("deltas")(bench_deltas.deltas)
app.command("gate")(bench_gate.gate)
app.command("log")(bench_log.log)
app.command("inspect")(bench_inspect.inspect)
app.command("relay")(bench_relay.relay)
app.add_typer(rl_app, name="rl")
app.command("road")(bench_road.road)
app.command("scale")(bench_scale.scale)
app.command("pause")(bench_pause.pause)
app.command("publish")(bench_publish.publish)
app.command("readme")(bench_readme.readme)
app.command("check")(bench_readme.check)
app.command("payload")(bench_payload.payload)


@app.callback()
def bench() -> None:
    """Measure Skerry beside what others use, on this machine."""


if __name__ == "__main__":
    app()
