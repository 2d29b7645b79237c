"""An adapter's version names its base; what names none, or meets other weights, is refused."""

from __future__ import annotations

import numpy as np
import pytest

from skerry.bulletin.errors import VersionUnknown
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.state import LogState
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.digest import digest_bytes
from skerry.publisher import AdapterBase, BaseDiffers, BaseUnnamed, Publisher

RUN, WEIGHTS = digest_bytes(b"run"), digest_bytes(b"weights")
BASE = AdapterBase(run=RUN, version=7, weights=WEIGHTS)


def test_a_base_comes_back_from_its_recipe() -> None:
    assert AdapterBase.from_recipe(BASE.recipe()) == BASE
    assert AdapterBase.from_recipe({"fp8": {}, **BASE.recipe()}) == BASE


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"adapter": None},
        {"adapter": {"base": {"run": RUN, "version": 7}}},
        {"adapter": {"base": {"run": RUN, "version": -1, "weights": WEIGHTS}}},
        {"adapter": {"base": {"run": "x", "version": 7, "weights": WEIGHTS}}},
        {"adapter": {"base": {"run": RUN, "version": 7, "weights": WEIGHTS, "more": 1}}},
    ],
)
def test_a_recipe_without_a_whole_base_is_refused(recipe: dict[str, object]) -> None:
    with pytest.raises(BaseUnnamed):
        AdapterBase.from_recipe(recipe)


def test_only_the_weights_that_it_was_trained_on_are_its_base() -> None:
    BASE.check(WEIGHTS)
    with pytest.raises(BaseDiffers, match=f"version 7 of run {RUN}") as refused:
        BASE.check(digest_bytes(b"others"))
    assert str(WEIGHTS) in refused.value.expected


def test_a_version_of_the_log_is_a_base_and_a_version_that_is_not_there_is_none() -> None:
    store = MemoryStore()
    publisher = Publisher.open(store)
    reports = [
        publisher.publish_arrays({"w": np.full(64, seed, np.float32)}, step=seed) for seed in (0, 1)
    ]
    reader = BulletinReader(store)
    reader.refresh()
    newest, first = AdapterBase.of(reader.state), AdapterBase.of(reader.state, 0)
    assert (newest.version, newest.weights) == (1, reports[1].digest)
    assert (first.version, first.weights) == (0, reports[0].digest)
    assert newest.run == first.run == reader.state.run
    with pytest.raises(VersionUnknown):
        AdapterBase.of(reader.state, 2)
    with pytest.raises(VersionUnknown):
        AdapterBase.of(LogState(pinned_key=None))
