"""Weights published from a device become the objects that the same weights on the host become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from skerry.bulletin.manifest import Manifest
from skerry.bulletin.stores import MemoryStore
from skerry.codec.level import Level
from skerry.publisher import Publisher, PublisherConfig, VerifyFailed
from skerry.publisher.audit import audit
from skerry.trainer.device_publisher import DevicePublisher, Tensors

SIDE_FILES = {"config.json": b"{}"}
HOST = torch.device("cpu")


def first(device: torch.device = HOST) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    wide = {
        "model.embed.weight": torch.randn(300, 70, generator=generator),
        "model.layer.weight": torch.randn(64, 48, generator=generator).T,
        "model.norm.weight": torch.ones(70),
        "model.scale": torch.tensor(0.5),
    }
    tensors = {name: (0.02 * values).to(torch.bfloat16).to(device) for name, values in wide.items()}
    return {**tensors, "model.steps": torch.zeros(3, dtype=torch.int64, device=device)}


def moved(tensors: Tensors, share: float, seed: int) -> dict[str, torch.Tensor]:
    """Return copies of which `share` of the elements of every other tensor are doubled."""
    generator = torch.Generator().manual_seed(seed)
    result = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in sorted(result)[::2]:
        hit = torch.rand(result[name].shape, generator=generator) < share
        result[name][hit.to(result[name].device)] *= 2
    return result


def history(device: torch.device = HOST) -> list[Tensors]:
    """Return versions: few changes, none, many, another structure, few."""
    versions: list[Tensors] = [first(device)]
    versions.append(moved(versions[-1], 0.01, 1))
    versions.append(moved(versions[-1], 0.0, 2))
    versions.append(moved(versions[-1], 0.6, 3))
    versions.append({**versions[-1], "model.new": torch.ones(9, device=device)})
    versions.append(moved(versions[-1], 0.05, 4))
    return versions


def open_publisher(level: Level = Level.DEFAULT) -> Publisher:
    return Publisher.open(MemoryStore(), config=PublisherConfig(level=level, threads=2))


def published(publisher: Publisher) -> list[tuple[str, int | None, Manifest, Sequence[bytes]]]:
    """Return what every version is: its weights, its changes, its manifest and its packs."""
    reader = publisher.reader
    return [
        (
            commit.result,
            commit.changed,
            reader.manifest(commit.manifest),
            [reader.read(ref) for ref in commit.packs],
        )
        for _, commit in sorted(reader.state.commits.items())
    ]


class Scans(TorchFunctionMode):
    """Counts how often torch was asked where something is not zero: every scan does."""

    count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.count += func is torch.Tensor.nonzero
        return func(*args, **(kwargs or {}))


def check_history(level: Level, device: torch.device) -> None:
    host, publisher = open_publisher(level), open_publisher(level)
    on_device = DevicePublisher(publisher)
    for step, tensors in enumerate(history(device)):
        host.publish_arrays(tensors, step=step, side_files=SIDE_FILES)
        on_device.publish_arrays(tensors, step=step, side_files=SIDE_FILES)
    assert published(publisher) == published(host)
    assert list(audit(publisher.reader, deep=True)) == []


@pytest.mark.parametrize("level", Level)
def test_every_version_is_the_one_that_the_host_publishes_byte_for_byte(level: Level) -> None:
    check_history(level, HOST)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA or ROCm device")
@pytest.mark.parametrize("level", Level)
def test_a_gpu_publishes_the_same_versions(level: Level) -> None:
    check_history(level, torch.device("cuda"))


def test_what_changed_is_found_on_the_device() -> None:
    old, new = history()[:2]
    publisher = DevicePublisher(open_publisher())
    with Scans() as scans:
        publisher.publish_arrays(old, step=0)
        assert scans.count == 0, "the first version is compared with nothing"
        assert publisher.publish_arrays(new, step=1).changed
    assert scans.count > 0


def test_a_base_that_the_device_does_not_hold_is_compared_on_the_host() -> None:
    versions = history()[:4]
    host, publisher = open_publisher(), open_publisher()
    on_device = DevicePublisher(publisher)
    for step, tensors in enumerate(versions):
        host.publish_arrays(tensors, step=step)
    on_device.publish_arrays(versions[0], step=0)
    publisher.publish_arrays(versions[1], step=1)
    publisher.publish_arrays(versions[2], step=2)
    with Scans() as scans:
        on_device.publish_arrays(versions[3], step=3)
    assert scans.count == 0
    assert published(publisher) == published(host)


def test_a_held_version_that_was_written_to_is_noticed_before_anything_is_published() -> None:
    old, new = history()[:2]
    publisher = open_publisher()
    on_device = DevicePublisher(publisher)
    on_device.publish_arrays(old, step=0)
    old["model.embed.weight"].mul_(-1)
    with pytest.raises(VerifyFailed):
        on_device.publish_arrays(new, step=1)
    assert list(publisher.reader.state.commits) == [0]
