"""Transformers' own trainer, and TRL's, on the CPU: every step is what `save_pretrained` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.installed import require, torchrun

require("transformers", "accelerate", "datasets")

from datasets import Dataset  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from skerry.bulletin.errors import StoreUnavailable  # noqa: E402
from skerry.bulletin.stores import open_store  # noqa: E402
from skerry.island_agent.pull import pull  # noqa: E402
from skerry.publisher.errors import PublishFailed  # noqa: E402
from skerry.trainer.errors import TrainerError  # noqa: E402
from skerry.trainer.hugging_face import PublishingCallback  # noqa: E402
from skerry.trainer.tokenizer_files import END_OF_TEXT, byte_level_bpe  # noqa: E402
from tests.bulletin.faults import FaultyStore  # noqa: E402
from tests.trainer.bulletins import follow  # noqa: E402

STEPS = 4
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8,
}  # fmt: skip


def dense() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def tied() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))


def experts() -> Any:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS))


class Oracle(TrainerCallback):  # type: ignore[misc]
    """Saves the model at every step, as its owner would."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.on_step_end(args, state, control, **others)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        others["model"].save_pretrained(self.root / str(state.global_step))


def trained(root: Path, model: Any, callback: PublishingCallback, **options: Any) -> Trainer:
    torch.manual_seed(0)
    settings = {"max_steps": STEPS, "learning_rate": 1e-3, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        output_dir=str(root / "out"), use_cpu=True, report_to=[], disable_tqdm=True, **settings
    )
    tokens = torch.randint(SIZES["vocab_size"], (16, 12))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    return Trainer(
        model, arguments, train_dataset=rows, callbacks=[Oracle(root / "oracle"), callback]
    )


def check_every_version(root: Path, steps: int) -> None:
    reader = follow(root)
    assert [commit.step for commit in reader.state.commits.values()] == list(range(steps + 1))
    for version in reader.state.commits:
        pull(reader, root / "pulled" / str(version), version)
        served = load_file(root / "pulled" / str(version) / "model.safetensors")
        saved = load_file(root / "oracle" / str(version) / "model.safetensors")
        assert served.keys() == saved.keys()
        for name, tensor in saved.items():
            assert torch.equal(served[name], tensor.to(torch.bfloat16)), name


@pytest.mark.parametrize("make", [dense, tied, experts])
def test_every_step_is_a_version_of_what_save_pretrained_writes(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    model = make()
    trained(tmp_path, model, PublishingCallback(str(tmp_path / "bulletin"))).train()
    check_every_version(tmp_path, STEPS)
    last = tmp_path / "pulled" / str(STEPS)
    config = json.loads((last / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["architectures"] == [type(model).__name__]
    loaded = type(model).from_pretrained(last)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.to(torch.bfloat16))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run on two ranks, both ways one after the other: most of it is the start."""
    root = tmp_path_factory.mktemp("two-ranks")
    done = torchrun(2, "tests.trainer.hugging_face_run", str(root))
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_two_ranks_publish_the_whole_model(how: str, two_ranks: Path) -> None:
    root = two_ranks / how
    reader = follow(root)
    assert [commit.step for commit in reader.state.commits.values()] == [0, 1, 2, 3]
    for version in reader.state.commits:
        pull(reader, root / "pulled" / str(version), version)
        served = load_file(root / "pulled" / str(version) / "model.safetensors")
        whole = load_file(root / "oracle" / f"{version}.safetensors")
        assert served.keys() == whole.keys()
        assert all(torch.equal(served[name], tensor) for name, tensor in whole.items())


def test_a_restarted_run_goes_on_from_the_version_of_its_checkpoint(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    callback = PublishingCallback(str(tmp_path / "bulletin"))
    trained(tmp_path, dense(), callback, **saving).train()
    longer = {**saving, "max_steps": 2 * STEPS, "lr_scheduler_type": "constant"}
    trained(tmp_path, dense(), callback, **longer).train(resume_from_checkpoint=True)
    check_every_version(tmp_path, 2 * STEPS)
    commits = follow(tmp_path).state.commits.values()
    assert [commit.version for commit in commits if commit.full] == [0]


@pytest.mark.parametrize(("on_failure", "ends"), [("stop", True), ("log", False)])
def test_a_store_that_fails_ends_the_training_or_is_logged_and_made_up_for(
    on_failure: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [1]

    def fail(verb: str, key: str) -> None:
        if verb == "put" and key.startswith("packs/") and failures:
            failures.pop()
            raise StoreUnavailable(key, "no route")

    store = open_store(str(tmp_path / "bulletin"))
    monkeypatch.setattr(
        "skerry.bulletin.stores.open_store", lambda url: FaultyStore(store, before=fail)
    )
    callback = PublishingCallback(str(tmp_path / "bulletin"), on_failure=on_failure)
    trainer = trained(tmp_path, dense(), callback)
    if ends:
        with pytest.raises(PublishFailed, match="step 1"):
            trainer.train()
        return
    trainer.train()
    commits = follow(tmp_path).state.commits.values()
    assert [commit.step for commit in commits] == [0, 2, 3, 4]


def test_what_is_no_whole_model_is_refused() -> None:
    from skerry.trainer.hugging_face import check_whole

    with pytest.raises(TrainerError, match="found Linear: adapters are merged first"):
        check_whole(torch.nn.Linear(2, 2))


def tokenizer() -> Any:
    letters = [*sorted(ByteLevel.alphabet()), END_OF_TEXT]
    made = byte_level_bpe(letters, (), (END_OF_TEXT,))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


@pytest.mark.filterwarnings("default")  # TRL and Transformers warn of one another
def test_a_trainer_of_trl_publishes_what_reinforcement_learning_makes(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed: `make test-titan` has it")
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": 320}, eos_token_id=256))
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], disable_tqdm=True,
        max_steps=2, learning_rate=1e-3, save_strategy="no", bf16=False, num_generations=2,
        per_device_train_batch_size=2, max_completion_length=8, beta=0.0,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model,
        reward_funcs=lambda completions, **others: [float(len(set(c))) for c in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["one", "two", "three", "four"]}),
        processing_class=tokenizer(),
        callbacks=[
            Oracle(tmp_path / "oracle"),
            PublishingCallback(str(tmp_path / "bulletin")),
        ],
    )
    trainer.train()
    check_every_version(tmp_path, 2)
    assert (tmp_path / "pulled" / "2" / "tokenizer.json").exists()
