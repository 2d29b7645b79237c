"""`skerry agent --print-config`: what the agent would do, and who said so."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from skerry.cli.agent import agent
from skerry.cli.app import app
from skerry.island_agent.settings import SETTINGS, flags_of


def skerry(*arguments: object, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(app, ["agent", *map(str, arguments)], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def printed(*arguments: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    result = skerry(*arguments, "--print-config", "--json", env=env)
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_every_setting_is_printed_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('bulletin = "runs/7"\npoll_s = 3\nport = 1\nisland = "east"\n')
    env = {"SKERRY_AGENT_PORT": "2", "SKERRY_AGENT_POLL_S": "4"}
    found = printed("--config", file, "--dir", tmp_path, "--poll", 5, env=env)
    assert list(found) == [setting.name for setting in SETTINGS]
    assert found["poll_s"] == {"value": 5.0, "source": "--poll"}
    assert found["port"] == {"value": 2, "source": "SKERRY_AGENT_PORT"}
    assert found["island"] == {"value": "east", "source": str(file)}
    assert found["host"] == {"value": "127.0.0.1", "source": "default"}
    text = skerry("--config", file, "--dir", tmp_path, "--print-config", env=env).stdout
    assert all(setting.name in text for setting in SETTINGS)
    assert list(tmp_path.iterdir()) == [file]  # nothing was opened or made


def test_flags_in_large_units_are_settings_in_bytes(tmp_path: Path) -> None:
    flags = ("--spool-mb", 3, "--memory-mb", 100, "--scrub-mb", 0, "--relay-gib", 0.5)
    found = printed("run", "--dir", tmp_path, *flags, "--relay", "--mirror-in-memory")
    values = {name: entry["value"] for name, entry in found.items()}
    assert values["spool_bytes"] == 3_000_000
    assert values["memory_bytes"] == 100_000_000
    assert values["scrub_bytes_per_s"] == 0
    assert values["relay_bytes"] == 1 << 29
    assert (values["relay"], values["in_memory"]) == (True, True)
    assert found["memory_bytes"]["source"] == "--memory-mb"
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    env = {"SKERRY_AGENT_CONTROL_TOKEN": "hunter2"}
    for extra in ((), ("--json",)):
        result = skerry("run", "--dir", tmp_path, "--print-config", *extra, env=env)
        assert result.exit_code == 0
        assert "hunter2" not in result.output
        assert "(set)" in result.output


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (("--dir", "d"), {}, ("bulletin", "SKERRY_AGENT_BULLETIN")),
        (("run", "--dir", "d"), {"SKERRY_AGENT_PORT": "no"}, ("SKERRY_AGENT_PORT", "port")),
        (("run", "--dir", "d", "--key", "xyz"), {}, ("--key", "key")),
        (("run", "--dir", "d"), {"SKERRY_AGENT_KEY": "xyz"}, ("SKERRY_AGENT_KEY", "key")),
        (("ftp://host/run", "--dir", "d"), {}, ("BULLETIN", "bulletin", "ftp")),
        (("run", "--dir", "d", "--engine", "cpu", "--tensors", "a"), {}, ("--tensors", "--engine")),
        (("run", "--dir", "d", "--version", 3, "--max-lag", 1), {}, ("version", "max_lag")),
        (("run", "--dir", "d", "--config", "absent.toml"), {}, ("absent.toml",)),
        (("run", "--dir", "d", "--memory-mb", 1), {}, ("--memory-mb", "memory_bytes")),
        (("run", "--dir", "d", "--upstream", "ftp://a"), {}, ("--upstream", "upstream")),
        (("run", "--dir", "d", "--upstream", "http://"), {}, ("--upstream", "of a relay")),
        (("run", "--dir", "d", "--upstream", "http://a:80"), {}, ("--upstream", "/bulletin")),
        (("run", "--dir", "d", "--relay", "--relay-gib", "inf"), {}, ("--relay-gib", "inf")),
        (("run", "--dir", "d", "--relay-gib", 5), {}, ("--relay-gib", "relay_bytes", "relay")),
        (("run", "--dir", "d"), {"SKERRY_AGENT_CONTROL_TOKEN": "a b"}, ("CONTROL_TOKEN", "word")),
    ],
)
def test_what_is_wrong_ends_with_code_2_and_names_setting_and_source(
    arguments: tuple[object, ...], env: dict[str, str], words: tuple[str, ...]
) -> None:
    for extra in (("--print-config",), ()):
        result = skerry(*arguments, *extra, env=env)
        assert result.exit_code == 2, result.output
        assert "Traceback" not in result.output
        (line,) = result.stderr.splitlines()
        assert all(word in line for word in words), line
    result = skerry(*arguments, "--print-config", "--json", env=env)
    assert json.loads(result.stdout)["error"]["exit_code"] == 2


def test_every_flag_of_the_table_is_one_of_the_command() -> None:
    command = typer.main.get_command(app)
    options = {
        flag
        for parameter in command.commands["agent"].params  # type: ignore[attr-defined]
        for flag in parameter.opts
    }
    flags = set(flags_of().values()) - {"BULLETIN"}
    assert flags <= options
    own = {"--config", "--print-config", "--json", "--help", "bulletin"}
    assert options - flags <= own
    assert "bulletin" in inspect.signature(agent).parameters
