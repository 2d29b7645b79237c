"""Launch profiles: how vLLM is started so that its weights can be updated, as data.

A profile only says what is to run and what it needs; nothing is started and nothing is looked up.
Every flag is checked against the parser of the installed vLLM by a test.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

ProfileName = Literal["single", "wide-ep", "pd"]
KvOffload = Literal["none", "native", "mooncake"]
PROFILES: tuple[ProfileName, ...] = ("single", "wide-ep", "pd")
KV_OFFLOADS: tuple[KvOffload, ...] = ("none", "native", "mooncake")
SERVE = ("vllm", "serve")

_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "1", "VLLM_MOE_USE_DEEP_GEMM": "1"}
_SIDE_CHANNEL = 5600  # NIXL's; one port for each server of a host


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What is the same in every profile.  Ports are counted up from `port`."""

    model: str
    engine_dir: str
    served_name: str = "policy"
    host: str = "127.0.0.1"
    port: int = 8001
    tensor_parallel: int = 1
    data_parallel: int = 8
    kv_offload: KvOffload = "none"
    kv_offload_gib: int = 64

    def __post_init__(self) -> None:
        for name in ("model", "engine_dir", "served_name", "host"):
            if not getattr(self, name) or "\0" in getattr(self, name):
                raise ValueError(f"{name}: expected text, found {getattr(self, name)!r}")
        for name in ("tensor_parallel", "data_parallel", "kv_offload_gib"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if not 1 <= self.port <= 65_000:
            raise ValueError(f"port: expected 1 to 65000, found {self.port}")
        if self.kv_offload not in KV_OFFLOADS:
            raise ValueError(f"kv_offload: expected one of {KV_OFFLOADS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a profile; `about` says what it is."""

    about: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def shell(self) -> str:
        """Return it as a line for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join((*variables, shlex.join(self.argv)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`modules` and `programs` are what the host needs besides vLLM, and what for.

    `limits` says what Skerry does not do for such a launch; one that has any is only printed.
    """

    name: ProfileName
    processes: tuple[Process, ...]
    modules: Mapping[str, str]
    programs: Mapping[str, str]
    gpus: int
    limits: tuple[str, ...] = ()


def make_profile(name: ProfileName, config: LaunchConfig) -> Profile:
    """Return a profile.  Raises ValueError for settings that do not go with it."""
    if name == "single":
        return _single(config)
    if name == "wide-ep":
        return _wide_ep(config)
    if name == "pd":
        return _pd(config)
    raise ValueError(f"profile: expected one of {', '.join(PROFILES)}, found {name!r}")


def missing(
    profile: Profile, *, has_module: Callable[[str], bool], has_program: Callable[[str], bool],
    gpus: int,
) -> list[str]:  # fmt: skip
    """Return what this machine lacks; empty if nothing."""
    lacks = [f"module {m}: {why}" for m, why in profile.modules.items() if not has_module(m)]
    lacks += [f"program {p}: {why}" for p, why in profile.programs.items() if not has_program(p)]
    if gpus < profile.gpus:
        lacks.append(f"GPUs: {profile.gpus} expected, {gpus} found")
    return lacks


def _single(config: LaunchConfig) -> Profile:
    offload, modules = _offload(config)
    server = Process(
        about="the engine; its agent is started with --engine vllm and the same --engine-dir",
        argv=(*_serve(config, config.port), *offload),
        env=_env(config.engine_dir),
    )
    return Profile(
        name="single",
        processes=(server,),
        modules={"vllm": "the engine", **modules},
        programs={},
        gpus=config.tensor_parallel,
    )


def _wide_ep(config: LaunchConfig) -> Profile:
    offload, modules = _offload(config)
    ranks = config.data_parallel
    if ranks < 2:
        raise ValueError("data_parallel: wide-ep expects at least 2 ranks")
    servers = [
        Process(
            about=f"data-parallel rank {rank} of {ranks}; experts are spread over all ranks",
            argv=(
                *_serve(config, config.port + rank),
                "--enable-expert-parallel",
                *("--all2all-backend", "deepep_low_latency"),
                *("--data-parallel-size", str(ranks), "--data-parallel-rank", str(rank)),
                *("--data-parallel-address", config.host),
                "--data-parallel-external-lb",
                *offload,
            ),
            env={**_env(f"{config.engine_dir}-{rank}"), **_DEEP_GEMM},
        )
        for rank in range(ranks)
    ]
    urls = [f"http://{config.host}:{config.port + rank}" for rank in range(ranks)]
    router = Process(
        about="the router; its flags are not checked. Dynamo can stand here as well",
        argv=(*_router(config, config.port + ranks), "--worker-urls", *urls),
    )
    return Profile(
        name="wide-ep",
        processes=(*servers, router),
        modules={
            "vllm": "the engines",
            "deep_ep": "the all-to-all between experts",
            "deep_gemm": "FP8 kernels",
            **modules,
        },
        programs={"vllm-router": "spreads requests over the ranks"},
        gpus=ranks * config.tensor_parallel,
        limits=(
            "the plug-in refuses updates in servers with data parallelism: weights stay as loaded",
            "the router sees no versions: there is no gate in front of these servers",
        ),
    )


def _pd(config: LaunchConfig) -> Profile:
    if config.kv_offload != "none":
        raise ValueError("kv_offload: expected none with pd, whose connector is NIXL")
    roles = (("prefill", "kv_producer"), ("decode", "kv_consumer"))
    servers = [
        Process(
            about=f"the {role} side",
            argv=(*_serve(config, config.port + at), *_connector("NixlConnector", kv_role)),
            env={
                **_env(f"{config.engine_dir}-{role}"),
                **_DEEP_GEMM,
                "VLLM_NIXL_SIDE_CHANNEL_HOST": config.host,
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(_SIDE_CHANNEL + at),
            },
        )
        for at, (role, kv_role) in enumerate(roles)
    ]
    prefill, decode = (f"http://{config.host}:{config.port + at}" for at in range(2))
    router = Process(
        about="the router; its flags are not checked. Dynamo can stand here as well",
        argv=(
            *_router(config, config.port + 2),
            "--vllm-pd-disaggregation",
            *("--prefill", prefill, "--decode", decode),
        ),
    )
    return Profile(
        name="pd",
        processes=(*servers, router),
        modules={
            "vllm": "the engines",
            "nixl": "carries keys and values from prefill to decode",
            "deep_gemm": "FP8 kernels",
        },
        programs={"vllm-router": "sends a request to both sides in turn"},
        gpus=2 * config.tensor_parallel,
        limits=(
            "the pair is not one group: drain both before either is updated, or KV changes version",
        ),
    )


def _serve(config: LaunchConfig, port: int) -> tuple[str, ...]:
    """Return what every server of ours is started with; docs/engines.md has the reasons."""
    return (
        *SERVE,
        config.model,
        *("--served-model-name", config.served_name),
        *("--host", config.host, "--port", str(port)),
        *("--tensor-parallel-size", str(config.tensor_parallel)),
        *("--weight-transfer-config", json.dumps({"backend": "skerry"})),
        *("--worker-extension-cls", "skerry.inference.vllm.worker.SkerryWorker"),
        *("--logprobs-mode", "processed_logprobs"),
        "--enable-scale-out",
    )


def _router(config: LaunchConfig, port: int) -> tuple[str, ...]:
    return (
        *("vllm-router", "--policy", "consistent_hash"),
        *("--host", config.host, "--port", str(port)),
    )


def _env(engine_dir: str) -> dict[str, str]:
    return {"SKERRY_ENGINE_DIR": engine_dir, "VLLM_PLUGINS": "skerry"}


def _connector(name: str, role: str) -> tuple[str, ...]:
    return "--kv-transfer-config", json.dumps({"kv_connector": name, "kv_role": role})


def _offload(config: LaunchConfig) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the flags that keep keys and values outside the GPU, and the modules they need."""
    if config.kv_offload == "native":
        size = str(config.kv_offload_gib)
        return ("--kv-offloading-size", size, "--kv-offloading-backend", "native"), {}
    if config.kv_offload == "mooncake":
        return _connector("MooncakeStoreConnector", "kv_both"), {"mooncake": "the store of keys"}
    return (), {}
