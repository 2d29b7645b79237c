"""Launch profiles as data: what runs, what is missing, what is refused."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from skerry.cli.app import app
from skerry.inference.profiles import (
    PROFILES,
    LaunchConfig,
    ProfileName,
    make_profile,
    missing,
)

CONFIG = LaunchConfig(model="/mirror", engine_dir="/run/engine", data_parallel=2)
ARGUMENTS = ["engine", "/mirror", "--engine-dir", "/run/engine"]


@pytest.mark.parametrize("name", PROFILES)
def test_every_server_can_be_switched_and_has_a_port_and_a_directory_of_its_own(
    name: ProfileName,
) -> None:
    profile = make_profile(name, CONFIG)
    servers = [p for p in profile.processes if p.argv[:2] == ("vllm", "serve")]
    for server in servers:
        assert server.env["VLLM_PLUGINS"] == "skerry"
        assert {"--weight-transfer-config", "--worker-extension-cls"} <= set(server.argv)
        words = shlex.split(server.shell())
        assert words == [*(f"{k}={v}" for k, v in server.env.items()), *server.argv]
    ports = [p.argv[p.argv.index("--port") + 1] for p in profile.processes]
    assert len(set(ports)) == len(ports)
    assert len({server.env["SKERRY_ENGINE_DIR"] for server in servers}) == len(servers)


@pytest.mark.parametrize("name", PROFILES)
def test_what_a_machine_lacks_is_named_one_by_one(name: ProfileName) -> None:
    profile = make_profile(name, CONFIG)
    lacks = missing(profile, has_module=lambda _: False, has_program=lambda _: False, gpus=0)
    assert len(lacks) == len(profile.modules) + len(profile.programs) + 1
    assert not missing(profile, has_module=lambda _: True, has_program=lambda _: True, gpus=99)


def test_settings_that_do_not_go_together_are_refused() -> None:
    offloading = LaunchConfig(model="/m", engine_dir="/e", kv_offload="native", data_parallel=1)
    for name in ("pd", "wide-ep"):
        with pytest.raises(ValueError, match=r"kv_offload|data_parallel"):
            make_profile(name, offloading)
    with pytest.raises(ValueError, match="port"):
        LaunchConfig(model="/m", engine_dir="/e", port=0)


@pytest.mark.parametrize("name", ["wide-ep", "pd"])
def test_what_skerry_cannot_keep_exact_is_printed_and_not_started(name: str) -> None:
    refused = CliRunner().invoke(app, [*ARGUMENTS, "--profile", name])
    assert refused.exit_code == 1
    printed = CliRunner().invoke(app, [*ARGUMENTS, "--profile", name, "--print"])
    assert printed.exit_code == 0
    assert "# not done by Skerry: " in printed.output


def test_the_command_prints_the_profile_and_refuses_unknown_ones() -> None:
    said = json.loads(CliRunner().invoke(app, [*ARGUMENTS, "--json"]).output)
    (process,) = said["processes"]
    assert process["argv"][:3] == ["vllm", "serve", "/mirror"]
    for wrong in (["--profile", "x"], ["--kv-offload", "x"], ["--port", "0"]):
        assert CliRunner().invoke(app, [*ARGUMENTS, *wrong]).exit_code == 2
