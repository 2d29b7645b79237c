"""What every integration is made of: a step is a version, a restart goes on, failures surface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from skerry.bulletin import stores
from skerry.bulletin.errors import KeyFileInvalid, StoreUnavailable
from skerry.bulletin.signing import Signer
from skerry.bulletin.stores import open_store
from skerry.island_agent.pull import pull
from skerry.publisher.errors import PublishFailed, RankFailed
from skerry.trainer.parts import Shard
from skerry.trainer.served import BF16_RULES, Form, Rule, RuleSet, Scales
from skerry.trainer.steps import OnFailure, StepPublisher, StepSettings
from tests.bulletin.faults import FaultyStore
from tests.publisher.samples import read_tree
from tests.trainer.bulletins import follow

SIDE_FILES = {"config.json": b"{}\n"}


class Trained:
    """Weights that every step changes."""

    def __init__(self) -> None:
        self.weight = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))

    def step(self) -> None:
        self.weight += 0.01

    def shards(self) -> Iterator[Shard]:
        yield Shard.of("w.weight", self.weight)

    def bits(self) -> bytes:
        return self.weight.to(torch.bfloat16).view(torch.uint8).numpy().tobytes()


def opened(
    root: Path, trained: Trained, *, background: bool = True, rules: RuleSet = BF16_RULES,
    on_failure: OnFailure = OnFailure.STOP, signing_key: Path | None = None,
) -> StepPublisher:  # fmt: skip
    settings = StepSettings(
        bulletin=str(root / "bulletin"),
        background=background,
        on_failure=on_failure,
        signing_key=signing_key,
    )
    return StepPublisher(settings, rules, trained.shards, SIDE_FILES)


@pytest.mark.parametrize("background", [True, False])
def test_every_step_is_a_version_of_the_weights_at_that_step(
    background: bool, tmp_path: Path
) -> None:
    trained = Trained()
    steps = opened(tmp_path, trained, background=background)
    steps.start(0)
    expected = [trained.bits()]
    for number in (1, 2, 3):
        trained.step()
        steps.publish(number)
        expected.append(trained.bits())
    steps.close()
    reader = follow(tmp_path)
    assert [commit.step for commit in reader.state.commits.values()] == [0, 1, 2, 3]
    for version, bits in enumerate(expected):
        pull(reader, tmp_path / str(version), version)
        assert read_tree(tmp_path / str(version))["model.safetensors"].endswith(bits)


def test_a_restart_with_the_bits_of_its_version_goes_on_by_a_patch(tmp_path: Path) -> None:
    trained = Trained()
    for first in (0, 1):
        steps = opened(tmp_path, trained)
        steps.start(first)
        trained.step()
        steps.publish(first + 1)
        steps.close()
    commits = follow(tmp_path).state.commits.values()
    assert [(c.step, c.parent, bool(c.full)) for c in commits] == [
        (0, None, True),
        (1, 0, False),
        (2, 1, False),
    ]


def test_a_restart_whose_step_has_no_version_publishes_that_first(tmp_path: Path) -> None:
    trained = Trained()
    steps = opened(tmp_path, trained)
    steps.start(0)
    steps.close()
    trained.step()  # taken, checkpointed, and killed before it was published
    steps = opened(tmp_path, trained)
    steps.start(1)
    steps.close()
    commits = follow(tmp_path).state.commits.values()
    assert [(c.step, c.parent, bool(c.full)) for c in commits] == [(0, None, True), (1, 0, True)]


def failing(root: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Have the store lose so many packs."""
    left = list(range(times))

    def fail(verb: str, key: str) -> None:
        if verb == "put" and key.startswith("packs/") and left:
            left.pop()
            raise StoreUnavailable(key, "no route")

    store = open_store(str(root / "bulletin"))
    monkeypatch.setattr(stores, "open_store", lambda url: FaultyStore(store, before=fail))


@pytest.mark.parametrize(("background", "raised"), [(True, PublishFailed), (False, RankFailed)])
def test_a_failure_stops_training_where_it_is_to(
    background: bool, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(tmp_path, monkeypatch, 1)
    trained = Trained()
    steps = opened(tmp_path, trained, background=background)
    steps.start(0)

    def train() -> None:
        trained.step()
        steps.publish(1)
        steps.flush()

    with pytest.raises(raised, match="no route"):
        train()


@pytest.mark.parametrize("background", [True, False])
def test_a_failure_that_is_only_logged_is_made_up_for_by_the_next_version(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(tmp_path, monkeypatch, 2)
    trained = Trained()
    steps = opened(tmp_path, trained, background=background, on_failure=OnFailure.LOG)
    steps.start(0)
    for number in (1, 2, 3):
        trained.step()
        steps.publish(number)
    steps.close()
    reader = follow(tmp_path)
    commits = reader.state.commits.values()
    assert [(c.step, c.parent) for c in commits] == [(0, None), (3, 0)]
    pull(reader, tmp_path / "pulled")
    assert read_tree(tmp_path / "pulled")["model.safetensors"].endswith(trained.bits())


def test_the_key_signs_and_one_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    signer = Signer.generate()
    signer.save(tmp_path / "run.key")
    opened(tmp_path, Trained(), signing_key=tmp_path / "run.key").start(0)
    assert follow(tmp_path).state.key == signer.public_key
    with pytest.raises(KeyFileInvalid):
        opened(tmp_path, Trained(), signing_key=tmp_path / "none.key").start(0)


def test_nothing_is_published_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not started"):
        opened(tmp_path, Trained()).publish(1)


def test_rules_are_read_from_lines() -> None:
    assert RuleSet.of(["a=b.*=KEEP", "*=BF16"], Scales.UE8M0) == RuleSet(
        rules=(Rule(pattern="a=b.*", form=Form.KEEP), Rule(pattern="*", form=Form.BF16)),
        scales=Scales.UE8M0,
    )


@pytest.mark.parametrize("line", ["*", "*=FP4", "BF16"])
def test_a_line_that_is_no_rule_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected PATTERN=BF16\|FP8_BLOCK\|KEEP, found"):
        RuleSet.of([line])


def test_a_rank_may_hold_a_tensor_in_several_shards(tmp_path: Path) -> None:
    whole = torch.randn(300, 130, generator=torch.Generator().manual_seed(1))
    rules = RuleSet.of(["*=FP8_BLOCK"])

    def several() -> Iterator[Shard]:
        for start, stop in ((200, 300), (0, 7), (7, 200)):
            yield Shard(
                name="w.weight", shape=(300, 130), offset=(start, 0), values=whole[start:stop]
            )

    trees = []
    shards: list[Callable[[], Iterator[Shard]]] = [
        several, lambda: iter([Shard.of("w.weight", whole)]),
    ]  # fmt: skip
    for number, held in enumerate(shards):
        root = tmp_path / str(number)
        StepPublisher(StepSettings(bulletin=str(root / "bulletin")), rules, held, {}).start(0)
        pull(follow(root), root / "pulled")
        trees.append(read_tree(root / "pulled"))
    assert trees[0] == trees[1]
