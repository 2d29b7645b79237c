"""The agent's settings: one table, four sources, one check.

A value comes from a flag, else from the environment (`SKERRY_AGENT_` and the name in capitals),
else from a TOML file, else it is the default.  Everything is checked once, before anything is
opened; an error names the setting and where its value came from.  A name that is not in the table
is an error in every source, or a typing mistake would be a default.

No library for this: the table is also what `--print-config` and the documents are held against, and
none of those that check types can say which source a value came from.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from skerry.inference.engines.vllm_config import SglangConfig, VllmConfig
from skerry.inference.vllm.wire import POLICIES
from skerry.island_agent.config import LEAST_MEMORY_BYTES, AgentConfig
from skerry.island_agent.errors import SettingsInvalid
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.groups.config import GroupTimes
from skerry.island_agent.groups.roster import Roster
from skerry.island_agent.plan import Target
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.selection import Selection

PREFIX = "SKERRY_AGENT_"
CONFIG_VARIABLE = "SKERRY_AGENT_CONFIG"  # names the file; not a setting itself
FILE_LIMIT_BYTES = 1 << 20
MAX_TOKEN_BYTES = 4096

Reader = Callable[[object], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table.  `flag` None: not on the command line; a secret is in no file of ours
    and is never shown."""

    name: str
    read: Reader
    text: str
    flag: str | None = None
    default: object = None
    secret: bool = False
    needed: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and where it came from."""

    value: object
    source: str


def _text(found: object) -> str:
    if not isinstance(found, str) or not found.strip() or "\0" in found:
        raise ValueError("expected text")
    return found


def _path(found: object) -> Path:
    return Path(found) if isinstance(found, Path) else Path(_text(found))


def _choice(*names: str) -> Reader:
    def read(found: object) -> str:
        if not isinstance(found, str) or found not in names:
            raise ValueError(f"expected {' or '.join(names)}")
        return str(found)

    return read


def _yes_no(found: object) -> bool:
    if isinstance(found, bool):
        return found
    if found in ("true", "1"):
        return True
    if found in ("false", "0"):
        return False
    raise ValueError("expected true or false")


def _whole(least: int, most: int = 2**63 - 1) -> Reader:
    def read(found: object) -> int:
        if isinstance(found, str) and re.fullmatch(r"[0-9]{1,19}", found):
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            bound = f"at least {least}" if most == 2**63 - 1 else f"{least} to {most}"
            raise ValueError(f"expected a whole number, {bound}")
        return found

    return read


def _seconds(*, zero: bool = False) -> Reader:
    rule = "expected seconds, 0 or more" if zero else "expected seconds, above 0"

    def read(found: object) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            raise ValueError(rule)
        try:
            number = float(found)
        except (ValueError, OverflowError):
            raise ValueError(rule) from None
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise ValueError(rule)
        return number

    return read


def _list(found: object) -> tuple[str, ...]:
    items = found.split(",") if isinstance(found, str) else found
    if not isinstance(items, list | tuple) or not all(isinstance(i, str) and i for i in items):
        raise ValueError("expected a list of texts")
    return tuple(items)


def _relays(found: object) -> tuple[str, ...]:
    addresses = _list(found)
    if not all(address.startswith(("http://", "https://")) for address in addresses):
        raise ValueError("expected addresses of relays, http://host:port/bulletin")
    return addresses


def _island(found: object) -> str:
    from skerry.bulletin import keys
    from skerry.bulletin.errors import InvalidKey

    name = _text(found)
    try:
        keys.island(name)
    except InvalidKey as error:
        raise ValueError(str(error)) from error
    return name


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="bulletin",
        read=_text,
        flag="BULLETIN",
        needed=True,
        text="address of the run",
    ),
    Setting(
        name="dir",
        read=_path,
        flag="--dir",
        needed=True,
        text="the agent's own directory",
    ),
    Setting(
        name="island",
        read=_island,
        flag="--island",
        default="island",
        text="the island's name in the bulletin",
    ),
    Setting(name="key", read=_text, flag="--key", text="the only public key to trust"),
    Setting(
        name="engine",
        read=_choice("cpu", "vllm", "sglang", "none"),
        flag="--engine",
        default="none",
        text="the engine to switch; none keeps the mirror only",
    ),
    Setting(
        name="engine_url",
        read=_text,
        flag="--engine-url",
        text="address of the vLLM or SGLang server, on this host",
    ),
    Setting(
        name="engine_dir",
        read=_path,
        flag="--engine-dir",
        text="the directory that the server was given as SKERRY_ENGINE_DIR",
    ),
    Setting(
        name="engine_policy",
        read=_choice(*POLICIES),
        flag="--engine-policy",
        default="keep",
        text="what becomes of requests that run in vLLM or SGLang while it is switched",
    ),
    Setting(
        name="engine_lease_s",
        read=_seconds(),
        default=120.0,
        text="vLLM resumes itself after so many seconds of a pause that nobody ends",
    ),
    Setting(
        name="engine_namespace",
        read=_text,
        text="in the salt of prefix caches; for runs that share offloaded keys and values",
    ),
    Setting(
        name="host",
        read=_text,
        flag="--host",
        default="127.0.0.1",
        text="the address to listen on",
    ),
    Setting(
        name="port",
        read=_whole(0, 65535),
        flag="--port",
        default=8000,
        text="the port to listen on",
    ),
    Setting(
        name="version", read=_whole(0), flag="--version", text="hold this version; else the newest"
    ),
    Setting(
        name="max_lag",
        read=_whole(0),
        flag="--max-lag",
        default=0,
        text="stay up to so many versions behind, to install several at once",
    ),
    Setting(
        name="ready_lag",
        read=_whole(0),
        flag="--ready-lag",
        text="be ready only up to so many versions behind",
    ),
    Setting(
        name="poll_s",
        read=_seconds(),
        flag="--poll",
        default=0.5,
        text="seconds between two looks at the log",
    ),
    Setting(
        name="idle_poll_s",
        read=_seconds(),
        flag="--idle-poll",
        text="the same while nothing comes; default: poll_s, but at least 8",
    ),
    Setting(
        name="watched_poll_s",
        read=_seconds(),
        text="the same while a relay tells of new records; default: poll_s, but at least 60",
    ),
    Setting(
        name="eager_s",
        read=_seconds(),
        default=0.1,
        text="the same while a request waits for a version",
    ),
    Setting(
        name="nudge_s",
        read=_seconds(zero=True),
        text="a nudge makes the next look no sooner than this; default: poll_s, but at most 0.5",
    ),
    Setting(
        name="retry_s",
        read=_seconds(),
        default=0.5,
        text="seconds before a failed pass is tried again; doubles",
    ),
    Setting(name="retry_limit_s", read=_seconds(), default=60.0, text="the longest of these"),
    Setting(
        name="drain_s",
        read=_seconds(zero=True),
        flag="--drain",
        text="how long a switch waits for requests that do not accept the new version; default: "
        "for ever",
    ),
    Setting(
        name="engine_limit_s",
        read=_seconds(),
        flag="--engine-limit",
        default=1800.0,
        text="how long one install or load of an engine may take before it counts as failed",
    ),
    Setting(
        name="shutdown_s",
        read=_seconds(),
        flag="--shutdown",
        default=30.0,
        text="how long a stop waits for installs and requests",
    ),
    Setting(
        name="audit_engine",
        read=_yes_no,
        flag="--audit-engine",
        default=False,
        text="hash what the engine serves after each install",
    ),
    Setting(
        name="verify_on_open",
        read=_yes_no,
        default=True,
        text="hash the whole mirror at the start",
    ),
    Setting(
        name="threads",
        read=_whole(1),
        flag="--threads",
        text="threads that decode; default: all usable CPUs",
    ),
    Setting(
        name="tensors",
        read=_list,
        flag="--tensors",
        default=(),
        text="mirror these tensors only: patterns, `!` before one excludes",
    ),
    Setting(
        name="shard",
        read=_text,
        flag="--shard",
        text="mirror what this rank serves only, as tp=4,rank=1",
    ),
    Setting(
        name="announce",
        read=_yes_no,
        default=True,
        text="leave the island's status in the bulletin",
    ),
    Setting(
        name="announce_s",
        read=_seconds(),
        default=1.0,
        text="at most once in so many seconds",
    ),
    Setting(
        name="heartbeat_s",
        read=_seconds(),
        default=30.0,
        text="and at least once in so many",
    ),
    Setting(
        name="history",
        read=_whole(1, 10_000),
        default=32,
        text="installs and errors that /status keeps",
    ),
    Setting(
        name="fetch_parallel", read=_whole(1, 1024), default=4, text="objects read at one time"
    ),
    Setting(
        name="fetch_attempts",
        read=_whole(1, 10_000),
        default=6,
        text="attempts in a row that bring nothing",
    ),
    Setting(
        name="spool_bytes",
        read=_whole(1),
        flag="--spool-mb",
        default=256 * 1024**3,
        text="what may lie in the spool; the flag takes MB",
    ),
    Setting(
        name="in_memory",
        read=_yes_no,
        flag="--mirror-in-memory",
        default=False,
        text="keep the mirror in RAM, below /dev/shm; dir only names it",
    ),
    Setting(
        name="memory_bytes",
        read=_whole(LEAST_MEMORY_BYTES),
        flag="--memory-mb",
        text="what staging may take, beside the changes of one tensor; the flag takes MB",
    ),
    Setting(
        name="scrub_bytes_per_s",
        read=_whole(0),
        flag="--scrub-mb",
        default=32_000_000,
        text="how much of the mirror is hashed each second, 0: nothing; the flag takes MB",
    ),
    Setting(
        name="scrub_pass_s",
        read=_seconds(zero=True),
        default=60.0,
        text="and all of it at most once in so many seconds",
    ),
    Setting(
        name="upstream",
        read=_relays,
        flag="--upstream",
        default=(),
        text="read through these relays, and past them where they do not help",
    ),
    Setting(
        name="relay",
        read=_yes_no,
        flag="--relay",
        default=False,
        text="serve the bulletin to neighbours",
    ),
    Setting(
        name="relay_bytes",
        read=_whole(1),
        flag="--relay-gib",
        default=64 * 1024**3,
        text="disk for what neighbours ask for; the flag takes GiB",
    ),
    Setting(
        name="peers",
        read=_list,
        default=(),
        text="the agents of this one's groups, itself among them, as island=http://host:port",
    ),
    Setting(
        name="groups",
        read=_list,
        default=(),
        text="engines that are one version, as name=island/engine+island/engine",
    ),
    Setting(
        name="group_pause_s",
        read=_seconds(),
        default=10.0,
        text="engines of a group that are not all installed so soon after they paused go back",
    ),
    Setting(
        name="group_hold_s",
        read=_seconds(),
        default=30.0,
        text="an engine that is installed and hears no decision so long is taken out of service",
    ),
    Setting(
        name="control_token_file",
        read=_path,
        flag="--control-token-file",
        text="file with the token that /control asks for; without one /control is off",
    ),
    Setting(
        name="control_token",
        read=_text,
        secret=True,
        text="the token itself; in the environment only",
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked values of the whole table, each with its source."""

    given: Mapping[str, Given]

    def __getitem__(self, name: str) -> object:
        return self.given[name].value

    def source(self, name: str) -> str:
        return self.given[name].source

    def invalid(self, name: str, rule: str) -> SettingsInvalid:
        """Return the error that a value breaks `rule`."""
        return SettingsInvalid(self.source(name), name, rule)

    def rows(self) -> list[tuple[str, object, str]]:
        """Return (name, JSON-ready value, source) of every setting, secrets as `(set)`."""
        return [
            (name, _shown(BY_NAME[name], given.value), given.source)
            for name, given in self.given.items()
        ]

    @property
    def selection(self) -> Selection | None:
        """The part of every version that is mirrored; None: all of it."""
        patterns, shard = self["tensors"], self["shard"]
        assert isinstance(patterns, tuple)
        if not patterns and shard is None:
            return None
        try:
            return Selection.parse(patterns, None if shard is None else str(shard))
        except ValueError as error:
            name = "shard" if str(error).startswith("shard") else "tensors"
            raise self.invalid(name, str(error)) from error

    @property
    def target(self) -> Target:
        values = {name: self[name] for name in ("version", "max_lag", "ready_lag")}
        try:
            return Target(**values)  # type: ignore[arg-type]  # checked by the table
        except ValueError as error:
            raise self._blamed(error) from error

    def agent_config(self) -> AgentConfig:
        """Return the agent's configuration.  Raises SettingsInvalid."""
        fetch = FetchConfig(
            parallel=self._int("fetch_parallel"),
            attempts=self._int("fetch_attempts"),
            spool_bytes=self._int("spool_bytes"),
        )
        plain = (
            "island", "poll_s", "idle_poll_s", "watched_poll_s", "eager_s", "nudge_s", "retry_s",
            "retry_limit_s", "drain_s", "engine_limit_s", "verify_on_open", "threads", "announce",
            "announce_s", "heartbeat_s", "history", "in_memory", "memory_bytes",
            "scrub_bytes_per_s", "scrub_pass_s",
        )  # fmt: skip
        values = {name: self[name] for name in plain}
        try:
            return AgentConfig(
                directory=Path(str(self["dir"])),
                target=self.target,
                selection=self.selection,
                audit_engines=bool(self["audit_engine"]),
                fetch=fetch,
                **values,  # type: ignore[arg-type]  # checked by the table
            )
        except ValueError as error:
            raise self._blamed(error) from error

    def vllm_config(self) -> VllmConfig | None:
        """Return where the vLLM server is, if the engine is one.  Raises SettingsInvalid."""
        if self["engine"] != "vllm":
            return None
        for name in ("engine_url", "engine_dir"):
            if self[name] is None:
                raise self.invalid(name, "engine vllm needs it")
        try:
            return VllmConfig(
                url=str(self["engine_url"]),
                directory=Path(str(self["engine_dir"])),
                policy=self["engine_policy"],  # type: ignore[arg-type]  # checked by the table
                lease_s=self["engine_lease_s"],  # type: ignore[arg-type]
                namespace=str(self["engine_namespace"] or ""),
            )
        except ValueError as error:
            raise self.invalid("engine_url", str(error)) from error

    def sglang_config(self) -> SglangConfig | None:
        """Return where the SGLang server is, if the engine is one.  Raises SettingsInvalid."""
        if self["engine"] != "sglang":
            return None
        if self["engine_url"] is None:
            raise self.invalid("engine_url", "engine sglang needs it")
        try:
            return SglangConfig(
                url=str(self["engine_url"]),
                policy=self["engine_policy"],  # type: ignore[arg-type]  # checked by the table
                namespace=str(self["engine_namespace"] or ""),
            )
        except ValueError as error:
            raise self.invalid("engine_url", str(error)) from error

    def neighbours(self) -> tuple[tuple[str, ...], RelayConfig | None]:
        """Return the relays that are read through, and what the agent is as one itself.

        Raises SettingsInvalid for a setting that would change nothing.
        """
        upstream = self["upstream"]
        assert isinstance(upstream, tuple)
        for name, needs in (("relay_bytes", "relay"), ("watched_poll_s", "upstream")):
            if self.source(name) != "default" and not self[needs]:
                raise self.invalid(name, f"goes with {needs}, which is not set")
        relay = RelayConfig(cache_bytes=self._int("relay_bytes")) if self["relay"] else None
        return upstream, relay

    def roster(self) -> Roster | None:
        """Return the groups that the agent is in.  Raises SettingsInvalid."""
        peers, groups = self["peers"], self["groups"]
        assert isinstance(peers, tuple)
        assert isinstance(groups, tuple)
        if not groups:
            for name in ("peers", "group_pause_s", "group_hold_s"):
                if self.source(name) != "default":
                    raise self.invalid(name, "goes with groups, which is not set")
            return None
        try:
            roster = Roster.parse(peers, groups)
        except ValueError as error:
            raise self.invalid("groups", str(error)) from error
        me, engine = str(self["island"]), str(self["engine"])
        own = {name for engines in roster.of(me).values() for name in engines}
        if not own:
            raise self.invalid("groups", f"no group has an engine of this agent, which is {me}")
        if own != {engine}:
            raise self.invalid("groups", f"{me} has the engine {engine}, not {', '.join(own)}")
        if engine == "sglang":
            rule = "SGLang cannot take an install back, so that its group could not either"
            raise self.invalid("groups", rule)
        if self.selection is not None:
            raise self.invalid("groups", "engines in groups need every tensor mirrored")
        if self.control_token() is None:
            raise self.invalid("groups", "agents of a group need the same control_token")
        times, lease_s = self.group_times(), self["engine_lease_s"]
        assert isinstance(lease_s, float)
        if engine == "vllm" and times.pause_s + times.hold_s >= lease_s:
            rule = f"group_pause_s and it stay below engine_lease_s, {lease_s:g}"
            raise self.invalid("group_hold_s", rule)
        return roster

    def group_times(self) -> GroupTimes:
        pause_s, hold_s = self["group_pause_s"], self["group_hold_s"]
        assert isinstance(pause_s, float)
        assert isinstance(hold_s, float)
        return GroupTimes(pause_s=pause_s, hold_s=hold_s)

    def control_token(self) -> str | None:
        """Return the token of `/control`, read from its file if there is one."""
        token, path = self["control_token"], self["control_token_file"]
        if path is None:
            return None if token is None else self._word("control_token", str(token))
        if token is not None:
            raise self.invalid("control_token", "give it or control_token_file, not both")
        try:
            with Path(str(path)).open(encoding="ascii") as file:
                content = file.read(MAX_TOKEN_BYTES + 1).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise self.invalid("control_token_file", f"cannot be read: {reason}") from error
        return self._word("control_token_file", content)

    def _word(self, name: str, text: str) -> str:
        word = text.strip()
        sound = word.isascii() and word.isprintable() and len(word) <= MAX_TOKEN_BYTES
        if not sound or len(word.split()) != 1:
            raise self.invalid(name, f"expected one word of ASCII, at most {MAX_TOKEN_BYTES} bytes")
        return word

    def _int(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int)
        return value

    def _blamed(self, error: ValueError) -> SettingsInvalid:
        """Return an error about values that do not go together, with the source of each."""
        words = set(re.findall(r"\w+", str(error)))
        names = [name for name in self.given if name in words] or ["dir"]
        given = ", ".join(f"{name} is from {self.source(name)}" for name in names[1:])
        return self.invalid(names[0], f"{error}" + (f"; {given}" if given else ""))


def resolve(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Put the sources together.

    `flags` holds, by setting, what the command line gives; None and () are not given.  `file` is
    the one that the command line names; without it the environment may name one.  Raises
    SettingsInvalid.
    """
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    given = {} if file is None else _from_file(file)
    given |= _from_environment(environ)
    for name, value in flags.items():
        if value not in (None, ()):
            setting = BY_NAME[name]
            given[name] = Given(_read(setting, value, str(setting.flag)), str(setting.flag))
    for setting in SETTINGS:
        if setting.needed and setting.name not in given:
            ways = f"{setting.flag}, {setting.variable} or `{setting.name}` in a file"
            raise SettingsInvalid("nowhere", setting.name, f"expected from {ways}")
    whole = {s.name: given.get(s.name, Given(s.default, "default")) for s in SETTINGS}
    poll_s = whole["poll_s"].value
    assert isinstance(poll_s, float)
    for name, value in (
        ("idle_poll_s", max(poll_s, 8.0)),
        ("watched_poll_s", max(poll_s, 60.0)),
        ("nudge_s", min(poll_s, 0.5)),
    ):
        if whole[name].value is None:
            whole[name] = Given(value, "default")
    return Settings(given=whole)


def _from_file(path: Path) -> dict[str, Given]:
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise SettingsInvalid(source, "", f"cannot be read: {error.strerror}") from error
    if len(data) > FILE_LIMIT_BYTES:
        raise SettingsInvalid(source, "", f"expected at most {FILE_LIMIT_BYTES} bytes")
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsInvalid(source, "", f"is no TOML: {error}") from error
    given = {}
    for name, value in table.items():
        setting = _known(name, source)
        if setting.secret:
            raise SettingsInvalid(source, name, f"a secret; use {name}_file or {setting.variable}")
        given[name] = Given(_read(setting, value, source), source)
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    given = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        setting = _known(variable.removeprefix(PREFIX).lower(), variable)
        given[setting.name] = Given(_read(setting, environ[variable], variable), variable)
    return given


def _known(name: str, source: str) -> Setting:
    if name in BY_NAME:
        return BY_NAME[name]
    near = difflib.get_close_matches(name, BY_NAME, 1)
    hint = f"; is it {near[0]}?" if near else ""
    if source.startswith(PREFIX) and re.search(r"_(SERVICE|PORT)(_|$)", source):
        hint = "; if Kubernetes made it, set enableServiceLinks: false"
    raise SettingsInvalid(source, name, f"there is no such setting{hint}")


def _read(setting: Setting, value: object, source: str) -> object:
    try:
        return setting.read(value)
    except ValueError as error:
        found = "another value" if setting.secret else f"{value!r:.80}"
        raise SettingsInvalid(source, setting.name, f"{error}, found {found}") from None


_CREDENTIALS = re.compile(r"(?<=//)[^/?#@]*@")
_PRIVATE = re.compile(r"(?i)((?:token|secret|signature|password|credential)[^=&]*=)[^&,]*")


def _shown(setting: Setting, value: object) -> object:
    """Return what may be shown of a value."""
    if setting.secret:
        return None if value is None else "(set)"
    if setting.name == "bulletin":
        return _redacted(str(value))
    if setting.name == "upstream" and isinstance(value, tuple):
        return [_redacted(address) for address in value]
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _redacted(address: str) -> str:
    return _PRIVATE.sub(r"\1***", _CREDENTIALS.sub("***@", address))


def flags_of(settings: Iterable[Setting] = SETTINGS) -> dict[str, str]:
    """Return the flag of every setting that has one."""
    return {setting.name: setting.flag for setting in settings if setting.flag is not None}
