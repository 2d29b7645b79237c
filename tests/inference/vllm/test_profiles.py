"""The flags of the launch profiles, as the installed vLLM's own parser reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skerry.inference.profiles import (
    KV_OFFLOADS,
    PROFILES,
    SERVE,
    KvOffload,
    LaunchConfig,
    Process,
    ProfileName,
    make_profile,
)
from tests.inference.vllm.installed import require_vllm

require_vllm()

pytestmark = pytest.mark.filterwarnings("ignore")  # what vLLM and torch import is not ours

CASES = [
    (name, offload)
    for name in PROFILES
    for offload in KV_OFFLOADS
    if name != "pd" or offload == "none"
]


@pytest.fixture(scope="module")
def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def servers(name: ProfileName, offload: KvOffload) -> list[Process]:
    config = LaunchConfig(model="/m", engine_dir="/e", kv_offload=offload, data_parallel=2)
    return [p for p in make_profile(name, config).processes if p.argv[:2] == SERVE]


@pytest.mark.parametrize(("name", "offload"), CASES)
def test_vllm_reads_every_flag_as_it_is_meant(
    parser: Any, name: ProfileName, offload: KvOffload
) -> None:
    for server in servers(name, offload):
        words = list(server.argv[len(SERVE) :])
        flags = {word for word in words if word.startswith("--")}
        assert flags <= set(parser._option_string_actions)  # no abbreviation of another
        read = parser.parse_args(words)
        assert (read.model_tag, read.served_model_name) == ("/m", ["policy"])
        assert read.worker_extension_cls.endswith("SkerryWorker")
        assert "skerry" in str(read.weight_transfer_config)
        assert read.enable_scale_out


@pytest.mark.parametrize(("name", "offload"), CASES)
def test_connectors_and_variables_are_known_to_vllm(name: ProfileName, offload: KvOffload) -> None:
    import vllm.envs
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for server in servers(name, offload):
        if "--kv-transfer-config" in server.argv:
            said = json.loads(server.argv[server.argv.index("--kv-transfer-config") + 1])
            assert said["kv_connector"] in KVConnectorFactory._registry
        for variable in server.env:
            assert variable == "SKERRY_ENGINE_DIR" or variable in vllm.envs.environment_variables


def test_a_renamed_flag_would_be_refused(parser: Any) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["/m", "--enable-expert-parallelism"])
