"""Two hosts and a link between them, on one machine: network namespaces that this process makes.

    far  10.77.1.2 ── router ── 10.77.2.2  near

The router drops packets at random and holds each for half a round trip, both ways; the rate is that
of a token bucket on both of its interfaces.  Needs root, `ip`, `tc`, `iptables`, `ethtool` and a C
compiler.  Segments are not joined (no GSO), so that a loss is the loss of one packet.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

FAR, NEAR = "10.77.1.2", "10.77.2.2"

_PROGRAMS = ("ip", "tc", "iptables", "ethtool", "cc")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_BURST = "256kb"
_QUEUE_S = 0.1  # how long a packet may wait for its turn on the link
_WINDOW = "4096 131072 67108864"  # bytes: least, at first, at most


class LinkUnavailable(RuntimeError):
    """This machine cannot emulate a link; says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A link; `loss` is the share of packets that is dropped, each way."""

    round_trip_s: float = 0.08
    loss: float = 0.005
    bits_per_s: int = 200_000_000

    def __str__(self) -> str:
        return (
            f"{self.bits_per_s / 1e6:g} Mbit/s, {1000 * self.round_trip_s:g} ms, "
            f"{self.loss:.2%} loss each way"
        )


class Link:
    """A link that is up.  `far` and `near` return a command that runs there."""

    def __init__(self, spec: LinkSpec, name: str) -> None:
        self.spec = spec
        self._name = name

    def far(self, command: Sequence[str]) -> list[str]:
        return self.on("far", command)

    def near(self, command: Sequence[str]) -> list[str]:
        return self.on("near", command)

    def use(self, congestion: str) -> None:
        """Choose the congestion control of connections from sockets that are opened from now on.

        Raises LinkUnavailable.
        """
        available = _AVAILABLE.read_text().split()
        if congestion not in available:
            raise LinkUnavailable(f"this kernel has {', '.join(available)}, not {congestion}")
        for host in ("far", "near"):
            _run(*self.on(host, ["sysctl", "-qw", f"net.ipv4.tcp_congestion_control={congestion}"]))

    def bytes_to_near(self) -> int:
        """Return the bytes that the link carried to the near host so far, all headers included."""
        path = "/sys/class/net/to-near/statistics/tx_bytes"
        shown = subprocess.run(
            self.on("road", ["cat", path]), check=True, capture_output=True, text=True
        )
        return int(shown.stdout)

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", f"{self._name}-{host}", *command]


@contextmanager
def link(spec: LinkSpec) -> Iterator[Link]:
    """Bring a link up, and take everything down again.  Raises LinkUnavailable."""
    _check()
    name = f"skerry-{os.getpid()}"
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # A namespace may choose only among what its machine allows to everybody.
        stack.callback(_ALLOWED.write_text, _ALLOWED.read_text())
        _ALLOWED.write_text(_AVAILABLE.read_text())
        for host in ("far", "near", "road"):
            _run("ip", "netns", "add", f"{name}-{host}")
            stack.callback(_run, "ip", "netns", "del", f"{name}-{host}")
            _run("ip", "-n", f"{name}-{host}", "link", "set", "lo", "up")
        made = Link(spec, name)
        for host, address in (("far", FAR), ("near", NEAR)):
            _connect(name, host, address, spec)
        _inside(made, "road", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        if spec.loss:
            _inside(
                made, "road", "iptables", "-A", "FORWARD", "-m", "statistic", "--mode", "random",
                "--probability", f"{spec.loss:.6f}", "-j", "DROP",
            )  # fmt: skip
        if spec.round_trip_s:
            program = _compiled(work)
            for queue, host in enumerate(("far", "near")):
                _inside(
                    made, "road", "iptables", "-A", "FORWARD", "-i", f"to-{host}",
                    "-j", "NFQUEUE", "--queue-num", str(queue),
                )  # fmt: skip
                stack.enter_context(_delay(made, program, queue))
        yield made


def _connect(name: str, host: str, address: str, spec: LinkSpec) -> None:
    here, road, port = f"{name}-{host}", f"{name}-road", f"to-{host}"
    gateway = f"{address.rpartition('.')[0]}.1"
    _run("ip", "link", "add", "road", "netns", here, "type", "veth",
         "peer", "name", port, "netns", road)  # fmt: skip
    for space, device, own in ((here, "road", address), (road, port, gateway)):
        _run("ip", "-n", space, "addr", "add", f"{own}/24", "dev", device)
        _run("ip", "netns", "exec", space, "ethtool", "-K", device,
             "tso", "off", "gso", "off", "gro", "off")  # fmt: skip
        _run("ip", "-n", space, "link", "set", device,
             "gso_max_segs", "1", "txqueuelen", "20000", "up")  # fmt: skip
    _run("ip", "-n", here, "route", "add", "default", "via", gateway)
    _run("ip", "netns", "exec", here, "sysctl", "-qw",
         f"net.ipv4.tcp_rmem={_WINDOW}", f"net.ipv4.tcp_wmem={_WINDOW}",
         "net.ipv4.tcp_no_metrics_save=1")  # fmt: skip
    waiting = int(spec.bits_per_s / 8 * _QUEUE_S)
    _run("tc", "-n", road, "qdisc", "add", "dev", port, "root", "tbf",
         "rate", f"{spec.bits_per_s}bit", "burst", _BURST, "limit", str(waiting))  # fmt: skip


@contextmanager
def _delay(made: Link, program: Path, queue: int) -> Iterator[None]:
    half_ms = f"{500 * made.spec.round_trip_s:g}"
    command = made.on("road", [str(program), str(queue), half_ms])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise LinkUnavailable("packets cannot be held: the kernel has no netfilter queue")
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _compiled(work: Path) -> Path:
    source, program = Path(__file__).with_name("delay.c"), work / "delay"
    _run("cc", "-O2", "-o", str(program), str(source))
    return program


def _check() -> None:
    if os.geteuid():
        raise LinkUnavailable("making network namespaces needs root")
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise LinkUnavailable(f"a link needs {', '.join(missing)}")


def _inside(made: Link, host: str, *command: str) -> None:
    _run(*made.on(host, command))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LinkUnavailable(f"{' '.join(command)}: {done.stderr.strip()}")
