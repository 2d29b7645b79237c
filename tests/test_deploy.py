"""What docs/deploy ships is true: every setting, flag, route and path in it exists."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from skerry.cli.app import app
from skerry.inference.gate import AdmissionGate
from skerry.inference.server import create_app
from skerry.island_agent.settings import BY_NAME, PREFIX, Settings, resolve

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy"
UNIT = DEPLOY / "skerry-agent.service"
MANIFEST = DEPLOY / "kubernetes.yaml"
MARGIN_S = 10.0  # a stop takes shutdown_s and a few seconds


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def manifest() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return {item["kind"]: item for item in yaml.safe_load_all(MANIFEST.read_text())}


def flags_exist(command: list[str]) -> None:
    """The command is ours, and has every flag that it is given."""
    assert command[0].split("/")[-1] == "skerry"
    known = typer.main.get_command(app).commands[command[1]]  # type: ignore[attr-defined]
    options = {flag for parameter in known.params for flag in parameter.opts}
    assert {word for word in command if word.startswith("--")} <= options


def routes() -> set[str]:
    return {getattr(route, "path", "") for route in create_app(AdmissionGate({}), {}).routes}


def checked(path: Path) -> Settings:
    """Return the settings of a file that is sound as it stands."""
    settings = resolve({}, {}, path)
    settings.agent_config()
    return settings


def test_the_configuration_is_one() -> None:
    settings = checked(DEPLOY / "agent.toml")
    assert settings.target.ready_lag == 8
    assert settings["host"] == "0.0.0.0"


def test_the_unit_starts_the_agent_with_flags_that_exist() -> None:
    service = unit()["Service"]
    command = shlex.split(service["ExecStart"])
    flags_exist(command)
    assert command[command.index("--config") + 1] == "/etc/skerry/agent.toml"
    state = Path("/var/lib") / service["StateDirectory"]
    settings = checked(DEPLOY / "agent.toml")
    assert state in Path(str(settings["dir"])).parents
    shutdown_s = settings["shutdown_s"]
    assert isinstance(shutdown_s, float)
    assert float(service["TimeoutStopSec"]) >= shutdown_s + MARGIN_S
    assert service["RestartPreventExitStatus"] == "2"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    copy = tmp_path / UNIT.name
    true = shutil.which("true")
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={true}", UNIT.read_text())
    copy.write_text(re.sub(r"(?m)^(User|Group)=.*$", r"\1=root", text))
    done = subprocess.run(
        [program, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert ours == []


def test_the_manifest_names_settings_flags_and_routes_that_exist(tmp_path: Path) -> None:
    objects = manifest()
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags_exist(container["command"])
    for variable in container["env"]:
        assert variable["name"].removeprefix(PREFIX).lower() in BY_NAME
    file = tmp_path / "agent.toml"
    file.write_text(objects["ConfigMap"]["data"]["agent.toml"])
    settings = checked(file)
    assert container["ports"][0]["containerPort"] == settings["port"]
    for probe, path in (("livenessProbe", "/health"), ("readinessProbe", "/ready")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    annotations = objects["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == settings["port"]
    assert {"/health", "/ready", annotations["prometheus.io/path"]} <= routes()
    shutdown_s = settings["shutdown_s"]
    assert isinstance(shutdown_s, float)
    assert pod["terminationGracePeriodSeconds"] >= shutdown_s + MARGIN_S


def test_every_path_of_the_manifest_is_mounted_and_every_mount_is_a_volume() -> None:
    objects = manifest()
    stateful = objects["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    assert set(mounts) == volumes | claims
    text = objects["ConfigMap"]["data"]["agent.toml"]
    paths = [Path(found) for found in re.findall(r'"(/[^"]+)"', text)]
    paths.append(Path(container["command"][-1]))
    for path in paths:
        assert any(place in (path, *path.parents) for place in mounts.values()), path
    assert objects["Service"]["spec"]["selector"] == stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == stateful["template"]["metadata"]["labels"]
    assert stateful["serviceName"] == objects["Service"]["metadata"]["name"]


def test_kubernetes_cannot_put_words_into_the_environment() -> None:
    objects = manifest()
    assert objects["StatefulSet"]["spec"]["template"]["spec"]["enableServiceLinks"] is False
    name = objects["Service"]["metadata"]["name"].upper().replace("-", "_")
    assert not f"{name}_PORT".startswith(PREFIX)
