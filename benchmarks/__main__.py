"""`python -m skerry.benchmarks NAME`, also `skerry bench NAME`: every benchmark by its name."""

from __future__ import annotations

import typer

from skerry.benchmarks import bench_codec, bench_gate, bench_log, bench_pause

app = typer.Typer(
    name="bench", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.command("codec")(bench_codec.codec)
app.command("gate")(bench_gate.gate)
app.command("log")(bench_log.log)
app.command("pause")(bench_pause.pause)


@app.callback()
def bench() -> None:
    """Measure Skerry beside what others use, on this machine."""


if __name__ == "__main__":
    app()
