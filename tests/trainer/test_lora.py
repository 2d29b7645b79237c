"""Adapters: trained alone, published like any version, followed bit for bit; merged, as patches."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_store
from skerry.cli.app import app
from skerry.codec.header import parse_header
from skerry.codec.layout import describe_difference
from skerry.inference.attribution import Span
from skerry.island_agent import Agent, AgentConfig
from skerry.publisher import AdapterBase, BaseDiffers, Publisher, PublisherConfig
from skerry.trainer.lora import (
    LoraConfig,
    adapter_checkpoint,
    adapter_weights,
    add_lora,
    merged_weights,
)
from skerry.trainer.precision import served_weights
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.rollouts import Rollout
from skerry.trainer.tiny import tiny_llama
from tests.inference.engines.checkpoints import digest_of
from tests.publisher.samples import read_tree

SOURCE = tiny_llama(0, layers=2)
CONFIG = LoraConfig(rank=4, alpha=8, targets=("q_proj", "down_proj"))
TEXT = torch.arange(40, 60)[None]


def learner(lr: float = 1e-3) -> Learner:
    model = add_lora(SOURCE.model(), CONFIG, seed=1)
    return Learner(model, LearnerConfig(lr=lr, bf16=False), weights=merged_weights)


def learn(one: Learner, steps: int = 1) -> None:
    for step in range(steps):
        tokens = (7 + step, 8, 9)
        rollout = Rollout(
            group=0,
            prompt=(3, 4, 5),
            tokens=tokens,
            logprobs=(-6.0,) * 3,
            spans=(Span(version=0, start=0, end=3),),
        )
        one.update([rollout], [1.0])


def test_an_adapter_starts_as_nothing_and_only_it_is_trained() -> None:
    one = learner()
    assert digest_of(one.served()) == digest_of(SOURCE.served())
    frozen = {n: p.clone() for n, p in one.model.named_parameters() if not p.requires_grad}
    assert len(frozen) == len(SOURCE.weights)
    learn(one, steps=2)
    for name, parameter in one.model.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name]), name
        else:
            assert parameter.abs().sum() > 0, name


def test_merged_weights_compute_what_the_adapter_does() -> None:
    one = learner(lr=1e-2)
    learn(one, steps=5)
    merged = dict(merged_weights(one.model))
    assert merged.keys() == SOURCE.weights.keys()
    changed = {name for name, w in merged.items() if not torch.equal(w, SOURCE.weights[name])}
    assert changed == {
        f"model.layers.{n}.{part}.weight"
        for n in range(2)
        for part in ("self_attn.q_proj", "mlp.down_proj")
    }
    plain = SOURCE.model()
    plain.load_state_dict(merged)
    at = torch.arange(TEXT.shape[1])
    with torch.no_grad():
        torch.testing.assert_close(
            plain.hidden(TEXT, at), one.model.hidden(TEXT, at), atol=1e-4, rtol=1e-4
        )


def test_the_files_are_those_of_peft() -> None:
    base = AdapterBase.from_recipe(BASE_RECIPE)
    checkpoint = adapter_checkpoint(learner().model, CONFIG, base)
    (shard,) = checkpoint.layout.shards
    assert shard.name == "adapter_model.safetensors"
    header = parse_header(shard.name, shard.header, shard.size)
    prefix = "base_model.model.model.layers.0."
    shapes = {t.name: t.shape for t in header.tensors if t.name.startswith(prefix)}
    assert shapes == {
        f"{prefix}self_attn.q_proj.lora_A.weight": (4, 64),
        f"{prefix}self_attn.q_proj.lora_B.weight": (64, 4),
        f"{prefix}mlp.down_proj.lora_A.weight": (4, 192),
        f"{prefix}mlp.down_proj.lora_B.weight": (64, 4),
    }
    said = json.loads(checkpoint.side_file("adapter_config.json"))
    assert (said["peft_type"], said["r"], said["lora_alpha"]) == ("LORA", 4, 8)
    assert checkpoint.layout.recipe == BASE_RECIPE


BASE_RECIPE = {"adapter": {"base": {"run": "a" * 64, "version": 3, "weights": "b" * 64}}}


def test_adapter_versions_are_small_patched_and_followed_bit_for_bit(tmp_path: Path) -> None:
    bases = open_store(str(tmp_path / "base"))
    Publisher.open(bases).publish_arrays(SOURCE.served(), step=0, side_files=SOURCE.side_files)
    reader = BulletinReader(bases)
    reader.refresh()
    base = AdapterBase.of(reader.state)

    one = learner(lr=1e-4)
    store = open_store(str(tmp_path / "adapters"))
    publisher = Publisher.open(store, config=PublisherConfig(level="auto"))
    directories = []
    for step in range(4):
        if step:
            learn(one)
        checkpoint = adapter_checkpoint(one.model, CONFIG, base)
        report = publisher.publish(checkpoint, step=step)
        assert report.kind == ("patch" if step else "full")
        assert report.full_bytes < 0.1 * sum(t.raw.nbytes for t in SOURCE.served().values())
        directories.append(tmp_path / f"step-{step}")
        checkpoint.write_to(directories[-1])

    async def follow() -> None:
        config = AgentConfig(directory=tmp_path / "island", announce=False)
        agent = Agent(config, BulletinReader(store))
        await agent.open()
        while await agent.step():
            pass
        assert agent.mirror.version == 3
        assert read_tree(agent.mirror.directory) == read_tree(directories[3])
        manifest = agent.reader.manifest(agent.reader.state.commits[3].manifest)
        named = AdapterBase.from_recipe(manifest.recipe)
        assert named == base
        named.check(reader.state.commits[0].result)
        with pytest.raises(BaseDiffers):
            named.check(agent.reader.state.commits[3].result)
        await agent.close()

    asyncio.run(follow())


def test_merged_versions_are_patches_of_the_base(tmp_path: Path) -> None:
    one = learner(lr=1e-4)
    store = open_store(str(tmp_path / "merged"))
    publisher = Publisher.open(store)
    publisher.publish_arrays(SOURCE.served(), step=0, side_files=SOURCE.side_files)
    learn(one)
    report = publisher.publish_arrays(one.served(), step=1, side_files=SOURCE.side_files)
    assert report.kind == "patch"
    assert report.patch_bytes is not None
    assert report.patch_bytes < report.full_bytes / 20
    layouts = [publisher.reader.layout(c.layout) for c in publisher.reader.state.commits.values()]
    assert describe_difference(*layouts) == ""
    assert report.digest == digest_of(served_weights(merged_weights(one.model)))


def test_the_command_names_the_base_and_refuses_an_adapter_without_one(tmp_path: Path) -> None:
    base_dir, bases, adapters = tmp_path / "ckpt", tmp_path / "bases", str(tmp_path / "adapters")
    publisher = Publisher.open(open_store(str(bases)))
    publisher.publish_arrays(SOURCE.served(), step=0)
    adapter = tmp_path / "adapter"
    adapter_checkpoint(learner().model, CONFIG, AdapterBase.from_recipe(BASE_RECIPE)).write_to(
        adapter
    )

    def publish(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["publish", *map(str, words)])
        return done.exit_code, done.output + done.stderr

    code, said = publish(adapters, adapter)
    assert code == 1
    assert "expected --base-bulletin" in said
    assert publish(adapters, adapter, "--base-version", 0)[0] == 2
    code, said = publish(adapters, adapter, "--base-bulletin", bases, "--base-version", 4)
    assert (code, "VersionUnknown" in said) == (1, True)
    base_dir.mkdir()
    (base_dir / "model.safetensors").write_bytes(b"")
    assert publish(adapters, base_dir, "--base-bulletin", bases)[0] == 1
    assert publish(adapters, adapter, "--base-bulletin", bases)[0] == 0
    reader = BulletinReader(open_store(adapters))
    reader.refresh()
    commit = reader.state.commits[0]
    found = AdapterBase.from_recipe(reader.manifest(commit.manifest).recipe)
    assert found == AdapterBase.of(publisher.reader.state)


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"alpha": 0}, {"targets": ()}, {"targets": ("w1",)}]
)
def test_adapters_of_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="targets"):
        add_lora(SOURCE.model(), LoraConfig(**wrong))  # type: ignore[arg-type]


def test_weights_are_named_once_in_bf16() -> None:
    served = adapter_weights(learner().model)
    assert len(served) == 2 * 2 * 2
    assert {tensor.dtype for tensor in served.values()} == {"BF16"}
