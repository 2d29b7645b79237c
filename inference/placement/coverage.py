"""Whether boxes fill a tensor: what no box covers would be dropped without a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from skerry.inference.placement.box import Box

# Of one rank: by tensor its words, and (start, strides, shape) of each box.
Held = Mapping[str, tuple[int, Sequence[tuple[int, Sequence[int], Sequence[int]]]]]


def uncovered(words: int, boxes: Iterable[Box]) -> int:
    """Return how many of a tensor's `words` are in none of `boxes`."""
    boxes = list(boxes)
    if any(box.words == words for box in boxes):
        return 0
    if _tile(boxes) == words:
        return 0
    marks = torch.zeros(words, dtype=torch.bool)
    for box in boxes:
        torch.as_strided(marks, box.shape, box.strides, box.start).fill_(True)
    return words - int(torch.count_nonzero(marks))


def missing_of(ranks: Sequence[Held]) -> dict[str, tuple[int, int]]:
    """Return, of tensors that are not whole in all ranks together, the missing words and all."""
    missing = {}
    for name, (words, _) in ranks[0].items():
        boxes = [
            Box(
                tensor=name,
                start=start,
                strides=tuple(strides),
                shape=tuple(shape),
                parameter="",
                at=0,
                steps=tuple(strides),
            )
            for held in ranks
            for start, strides, shape in held[name][1]
        ]
        lost = uncovered(words, boxes)
        if lost:
            missing[name] = lost, words
    return missing


def _tile(boxes: Sequence[Box]) -> int:
    """Return how far runs that follow each other from the start reach; 0 if they do not."""
    end = 0
    for box in sorted(boxes, key=lambda box: box.start):
        if not box.is_run or box.start != end:
            return 0
        end += box.words
    return end
