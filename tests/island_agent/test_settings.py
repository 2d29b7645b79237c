"""Settings: four sources in their order, checked once, errors that say where a value came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import SettingsInvalid
from skerry.island_agent.plan import Target
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.settings import SETTINGS, Settings, flags_of, resolve

NEEDED = {"SKERRY_AGENT_BULLETIN": "runs/7", "SKERRY_AGENT_DIR": "island"}
# One good value of every setting, another one, and one that breaks its rule; as a file has them.
SAMPLES: Mapping[str, tuple[object, object, object]] = {
    "bulletin": ("runs/7", "runs/8", ""),
    "dir": ("a", "b", 7),
    "island": ("east", "west", "no/name"),
    "key": ("ab" * 32, "cd" * 32, 1.5),
    "engine": ("cpu", "none", "gpu"),
    "engine_url": ("http://127.0.0.1:8001", "http://127.0.0.1:8002", ""),
    "engine_dir": ("e1", "e2", 7),
    "engine_policy": ("recompute", "drain", "stop"),
    "engine_lease_s": (30.0, 31.0, 0),
    "engine_namespace": ("run-7", "run-8", ""),
    "host": ("0.0.0.0", "::1", ""),
    "port": (80, 81, 65536),
    "version": (3, 4, -1),
    "max_lag": (1, 2, -1),
    "ready_lag": (8, 9, True),
    "poll_s": (0.25, 2.0, 0),
    "idle_poll_s": (30.0, 60.0, -1.0),
    "retry_s": (0.1, 0.2, 0),
    "retry_limit_s": (90.0, 91.0, "soon"),
    "drain_s": (0.0, 5.0, -0.5),
    "engine_limit_s": (60.0, 61.0, 0),
    "shutdown_s": (5.0, 6.0, "nan"),
    "audit_engine": (True, False, "yes"),
    "verify_on_open": (False, True, 1.0),
    "threads": (2, 3, 0),
    "tensors": (("a.*", "!a.b"), ("b",), [""]),
    "shard": ("tp=2,rank=1", "tp=2,rank=0", 2),
    "announce": (False, True, "on"),
    "announce_s": (2.0, 3.0, 0),
    "heartbeat_s": (40.0, 50.0, 0),
    "history": (7, 8, 0),
    "fetch_parallel": (8, 9, 0),
    "fetch_attempts": (2, 3, 0),
    "spool_bytes": (1 << 30, 1 << 31, 0),
    "in_memory": (True, False, "yes"),
    "memory_bytes": (1 << 30, 1 << 31, 1),
    "scrub_bytes_per_s": (1 << 20, 0, -1),
    "scrub_pass_s": (0.0, 5.0, -1.0),
    "watched_poll_s": (90.0, 91.0, 0),
    "eager_s": (0.01, 0.02, 0),
    "nudge_s": (0.0, 0.1, -1.0),
    "upstream": (("http://a/bulletin", "http://b/bulletin"), ("https://c",), ["ftp://d"]),
    "relay": (True, False, "yes"),
    "relay_bytes": (1 << 30, 1 << 31, 0),
    "peers": (("a=http://a:1", "b=http://b:1"), ("a=http://c:1",), [""]),
    "groups": (("g=a/cpu+b/cpu",), ("h=a/cpu",), [1]),
    "group_pause_s": (5.0, 6.0, 0),
    "group_hold_s": (20.0, 21.0, -1.0),
    "control_token_file": ("t1", "t2", False),
    "control_token": ("s1", "s2", ""),
}


def as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def write(path: Path, values: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path


def refused(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None
) -> SettingsInvalid:
    with pytest.raises(SettingsInvalid) as caught:
        resolve(flags, environ, file).agent_config()
    return caught.value


def test_the_samples_are_of_every_setting() -> None:
    assert set(SAMPLES) == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@given(sources=st.sets(st.sampled_from(["file", "environment", "flag"])))
def test_a_flag_comes_before_the_environment_and_that_before_the_file(
    tmp_path_factory: pytest.TempPathFactory, setting: object, sources: set[str]
) -> None:
    from skerry.island_agent.settings import Setting

    assert isinstance(setting, Setting)
    name = setting.name
    first, second, _ = SAMPLES[name]
    if setting.flag is None:
        sources -= {"flag"}
    if setting.secret:
        sources -= {"file"}
    file = tmp_path_factory.getbasetemp() / "precedence.toml"
    write(file, {name: second} if "file" in sources else {})
    environ = dict(NEEDED)
    if setting.variable in NEEDED:
        del environ[setting.variable]
        sources = sources or {"environment"}
    if "environment" in sources:
        environ[setting.variable] = as_text(second if "flag" in sources else first)
    settings = resolve({name: first} if "flag" in sources else {}, environ, file)
    expected = {
        "flag": (setting.flag, first),
        "environment": (setting.variable, first),
        "file": (str(file), second),
        "default": ("default", None),
    }
    top = next((s for s in ("flag", "environment", "file") if s in sources), "default")
    source, value = expected[top]
    assert settings.source(name) == source
    if top != "default":
        assert settings[name] == setting.read(value)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_bad_value_is_named_with_its_source(tmp_path: Path, name: str) -> None:
    bad = SAMPLES[name][2]
    setting = next(setting for setting in SETTINGS if setting.name == name)
    if not setting.secret:
        file = write(tmp_path / "agent.toml", {name: bad})
        error = refused({}, NEEDED, file)
        assert (error.source, error.name) == (str(file), name)
        assert str(file) in str(error)
        assert name in str(error)
    if isinstance(bad, str) or name in ("port", "version", "poll_s", "threads"):
        error = refused({}, {**NEEDED, setting.variable: as_text(bad)})
        assert (error.source, error.name) == (setting.variable, name)
        assert error.rule.startswith("expected") or name in ("island", "key")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"poll_s": 9.0, "idle_poll_s": 5.0}, ("poll_s", "idle_poll_s")),
        ({"retry_s": 99.0}, ("retry_s", "retry_limit_s")),
        ({"announce_s": 31.0}, ("announce_s", "heartbeat_s")),
        ({"version": 3, "max_lag": 2}, ("version", "max_lag")),
        ({"max_lag": 3, "ready_lag": 2}, ("ready_lag", "max_lag")),
        ({"audit_engine": True, "tensors": ["a"]}, ("audit_engine", "tensors")),
        ({"shard": "tp=2,rank=2"}, ("shard",)),
        ({"tensors": ["layers.9-3.*"]}, ("tensors",)),
    ],
)
def test_values_that_do_not_go_together_are_all_named(
    tmp_path: Path, values: Mapping[str, object], names: tuple[str, ...]
) -> None:
    file = write(tmp_path / "agent.toml", values)
    error = refused({}, NEEDED, file)
    assert all(name in str(error) for name in names)
    assert str(file) in str(error)


def test_a_name_that_is_not_in_the_table_is_refused_everywhere(tmp_path: Path) -> None:
    file = write(tmp_path / "agent.toml", {"pol_s": 1})
    assert "is it poll_s?" in str(refused({}, NEEDED, file))
    assert "is it poll_s?" in str(refused({}, {**NEEDED, "SKERRY_AGENT_POL_S": "1"}))
    linked = {**NEEDED, "SKERRY_AGENT_SERVICE_HOST": "10.0.0.1"}
    assert "enableServiceLinks" in str(refused({}, linked))
    assert resolve({}, {**NEEDED, "SKERRY_KERNEL": "numpy", "PATH": "x"})["poll_s"] == 0.5


def test_what_is_needed_and_not_given_is_named_with_its_ways() -> None:
    error = refused({}, {"SKERRY_AGENT_BULLETIN": "x"})
    assert error.name == "dir"
    assert all(way in str(error) for way in ("--dir", "SKERRY_AGENT_DIR", "`dir` in a file"))


def test_the_file_may_be_named_by_the_environment_and_must_be_sound(tmp_path: Path) -> None:
    file = write(tmp_path / "agent.toml", {"port": 9})
    named = {**NEEDED, "SKERRY_AGENT_CONFIG": str(file)}
    assert resolve({}, named)["port"] == 9
    other = write(tmp_path / "other.toml", {"port": 10})
    assert resolve({}, named, other)["port"] == 10
    for content in (b"port = ", b"\xff\xfe", b"x" * (1 << 21)):
        file.write_bytes(content)
        assert refused({}, named).source == str(file)
    assert refused({}, NEEDED, tmp_path / "absent.toml").source == str(tmp_path / "absent.toml")


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    environ = {**NEEDED, "SKERRY_AGENT_CONTROL_TOKEN": "hunter2-token"}
    environ["SKERRY_AGENT_UPSTREAM"] = "http://me:hunter2@a/bulletin,http://b/bulletin"
    environ["SKERRY_AGENT_BULLETIN"] = "https://me:hunter2@cdn.example/run?token=hunter2"
    settings = resolve({}, environ)
    shown = json.dumps(settings.rows())
    assert "hunter2" not in shown
    assert "(set)" in shown
    assert settings.control_token() == "hunter2-token"
    bad = refused({}, {**NEEDED, "SKERRY_AGENT_CONTROL_TOKEN": " "})
    assert "found another value" in str(bad)
    file = tmp_path / "agent.toml"
    file.write_text('control_token = "hunter2"\n')
    error = refused({}, NEEDED, file)
    assert "hunter2" not in str(error)
    assert "control_token_file" in str(error)


def test_the_token_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = resolve({"control_token_file": path}, NEEDED)
    for content in (None, "", "two words", "x" * 5000):
        if content is not None:
            path.write_text(content)
        with pytest.raises(SettingsInvalid, match="control_token_file"):
            settings.control_token()
    path.write_text("s3cret\n")
    assert settings.control_token() == "s3cret"
    both = resolve(
        {"control_token_file": path}, {**NEEDED, "SKERRY_AGENT_CONTROL_TOKEN": "another"}
    )
    with pytest.raises(SettingsInvalid, match="not both"):
        both.control_token()


@pytest.mark.parametrize("token", ["two words", "pässword", "x" * 5000, "a\x07b"])
def test_a_token_from_the_environment_keeps_the_rules_of_one_from_a_file(token: str) -> None:
    settings = resolve({}, {**NEEDED, "SKERRY_AGENT_CONTROL_TOKEN": token})
    with pytest.raises(SettingsInvalid, match="control_token") as caught:
        settings.control_token()
    assert caught.value.source == "SKERRY_AGENT_CONTROL_TOKEN"
    assert token not in str(caught.value)
    settings = resolve({}, {**NEEDED, "SKERRY_AGENT_CONTROL_TOKEN": " s3cret\n"})
    assert settings.control_token() == "s3cret"


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [("relay_bytes", 1 << 30, "relay"), ("watched_poll_s", 90.0, "upstream")],
)
def test_a_setting_that_would_change_nothing_is_refused(
    tmp_path: Path, name: str, value: object, needs: str
) -> None:
    file = write(tmp_path / "agent.toml", {name: value})
    with pytest.raises(SettingsInvalid, match=f"{name}: goes with {needs}"):
        resolve({}, NEEDED, file).neighbours()
    given = {"relay": True, "upstream": "http://a/bulletin"}
    resolve(given, NEEDED, file).neighbours()


@pytest.mark.parametrize("name", ["poll_s", "relay_bytes", "port"])
def test_a_number_of_any_length_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"{name} = {'9' * 400}\n")
    assert refused({}, NEEDED, file).name == name


def test_without_anything_else_the_configuration_is_the_default_one(tmp_path: Path) -> None:
    settings = resolve({"dir": tmp_path, "bulletin": "x"}, {})
    assert settings.agent_config() == AgentConfig(directory=tmp_path, engine_limit_s=1800.0)
    assert settings.control_token() is None
    assert {s for _, _, s in settings.rows()} == {"default", "--dir", "BULLETIN"}


def test_the_target_comes_from_the_settings() -> None:
    def target(**flags: object) -> Target:
        return resolve(flags, NEEDED).target

    assert target() == Target()
    assert target(version=4) == Target(version=4)
    assert target(max_lag=2, ready_lag=5) == Target(max_lag=2, ready_lag=5)


def test_the_interval_while_idle_follows_the_other_one() -> None:
    def idle(poll_s: float) -> object:
        return resolve({"poll_s": poll_s}, NEEDED)["idle_poll_s"]

    assert (idle(0.5), idle(20.0)) == (8.0, 20.0)


def test_relays_come_from_the_settings() -> None:
    assert resolve({}, NEEDED).neighbours() == ((), None)
    given = {"upstream": "http://a/bulletin,http://b/bulletin", "relay": True, "relay_bytes": 4096}
    upstream, relay = resolve(given, NEEDED).neighbours()
    assert upstream == ("http://a/bulletin", "http://b/bulletin")
    assert relay == RelayConfig(cache_bytes=4096)


def test_each_flag_is_of_one_setting() -> None:
    flags = flags_of()
    assert len(set(flags.values())) == len(flags)
    assert isinstance(resolve({}, NEEDED), Settings)


def test_an_engine_over_http_needs_an_address(tmp_path: Path) -> None:
    for engine in ("vllm", "sglang"):
        settings = resolve({}, {**NEEDED, "SKERRY_AGENT_ENGINE": engine}, None)
        with pytest.raises(SettingsInvalid, match="engine_url"):
            settings.vllm_config() if engine == "vllm" else settings.sglang_config()
    named = {**NEEDED, "SKERRY_AGENT_ENGINE": "sglang", "SKERRY_AGENT_ENGINE_URL": "http://x:1"}
    config = resolve({}, named, None).sglang_config()
    assert config is not None
    assert (config.url, config.policy) == ("http://x:1", "keep")
    assert resolve({}, named, None).vllm_config() is None
