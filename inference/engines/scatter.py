"""Changed words, located in the engine's own parameters and written through integer views.

Bits are compared and replaced, never floats: a NaN payload or a signed zero is a change like any
other.  Writing is all or nothing: whatever fails, the old bits go back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from skerry.codec import kernel
from skerry.codec.dtypes import Words
from skerry.codec.tensors import TensorChanges
from skerry.inference.engine import EngineBroken, InstallFailed
from skerry.inference.models.checkpoint import DTYPE_NAMES

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]  # words, positions, bits

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The changes of one parameter: its words as integers, and what becomes of them."""

    name: str
    words: torch.Tensor  # [words], a view of the parameter
    positions: torch.Tensor  # [n], int64
    old: torch.Tensor  # [n], in the words' type
    new: torch.Tensor  # [n]

    def holds(self, bits: torch.Tensor) -> bool:
        """Say whether the words at the positions are `bits`."""
        return torch.equal(self.words[self.positions], bits)

    def reversed(self) -> Located:
        """Return what leads back."""
        return dataclasses.replace(self, old=self.new, new=self.old)


def locate(
    parameters: Mapping[str, torch.Tensor], changes: Sequence[TensorChanges]
) -> tuple[Located, ...]:
    """Find the changed words in `parameters`.

    Raises InstallFailed unless every change fits: a known name, dtype and shape, ascending
    positions inside the tensor, and exactly the old bits.
    """
    names = [change.spec.name for change in changes]
    if len(set(names)) != len(names):
        raise InstallFailed("a tensor is named twice in one update")
    return tuple(_locate(parameters, change) for change in changes)


def put_words(words: torch.Tensor, positions: torch.Tensor, bits: torch.Tensor) -> None:
    """Replace the words at `positions`."""
    words[positions] = bits


def writer(located: Sequence[Located]) -> Callable[[], None]:
    """Return what writes the new bits with as little delay as can be.

    All that lies on this host goes by one call: a model has hundreds of parameters, and a call for
    each would cost as much as the writing.
    """
    here = [changes for changes in located if changes.words.device.type == "cpu"]
    elsewhere = [changes for changes in located if changes.words.device.type != "cpu"]
    write_here = kernel.current().writer(
        [(_unsigned(c.words), c.positions.numpy(), _unsigned(c.new)) for c in here]
    )

    def write_all() -> None:
        write_here()
        for changes in elsewhere:
            put_words(changes.words, changes.positions, changes.new)

    return write_all


def write(located: Sequence[Located], put: Write = put_words) -> None:
    """Write the new bits of every parameter, or of none.

    Raises InstallFailed when the old bits are in place, EngineBroken when they are not.
    """
    check_old(located)
    replace(located, put)


def check_old(located: Sequence[Located]) -> None:
    """Raise InstallFailed unless every word that is to change has its old bits."""
    for changes in located:
        if not changes.holds(changes.old):
            raise InstallFailed(f"{changes.name}: the old bits are not the ones that were staged")


def replace(
    located: Sequence[Located],
    put: Write = put_words,
    *,
    prepared: Callable[[], None] | None = None,
) -> None:
    """Write the new bits, as `write` does, for a caller that knows the old ones to be there.

    `prepared` is the `writer` of them, if there is one.
    """
    try:
        if prepared is not None:
            prepared()
        else:
            for changes in located:
                put(changes.words, changes.positions, changes.new)
    except Exception as error:  # whatever it was, half an update must not be served
        _restore(located, put, error)
        raise InstallFailed(f"nothing was installed: {error}") from error


def _locate(parameters: Mapping[str, torch.Tensor], changes: TensorChanges) -> Located:
    spec = changes.spec
    parameter = parameters.get(spec.name)
    if parameter is None:
        raise InstallFailed(f"{spec.name}: the engine has no such tensor")
    found = (DTYPE_NAMES[parameter.dtype], tuple(parameter.shape))
    if found != (spec.dtype, spec.shape):
        raise InstallFailed(f"{spec.name}: expected {spec.dtype} {spec.shape}, found {found}")
    positions = changes.positions
    sizes = {positions.shape, changes.old.shape, changes.new.shape}
    if len(sizes) != 1 or positions.ndim != 1:
        raise InstallFailed(f"{spec.name}: positions, old and new differ in shape: {sizes}")
    if positions.size and not (
        positions[0] >= 0
        and positions[-1] < parameter.numel()
        and bool(np.all(positions[1:] > positions[:-1]))
    ):
        raise InstallFailed(
            f"{spec.name}: positions do not ascend within {parameter.numel()} words"
        )
    located = Located(
        name=spec.name,
        words=parameter.detach().view(_WORDS[parameter.element_size()]).view(-1),
        positions=torch.from_numpy(positions.astype(np.int64)),
        old=_bits(changes.old, parameter),
        new=_bits(changes.new, parameter),
    )
    if not located.holds(located.old):
        raise InstallFailed(f"{spec.name}: the weights served are not the base of the update")
    return located


def _bits(words: np.typing.NDArray[np.unsignedinteger], like: torch.Tensor) -> torch.Tensor:
    if words.dtype.itemsize != like.element_size() or words.dtype.kind != "u":
        raise InstallFailed(f"expected words of {like.element_size()} bytes, found {words.dtype}")
    signed = words.astype(f"<u{words.dtype.itemsize}").view(f"<i{words.dtype.itemsize}")
    return torch.from_numpy(signed)


def _unsigned(words: torch.Tensor) -> Words:
    array = words.numpy()
    return array.view(f"<u{array.itemsize}")


def _restore(located: Sequence[Located], put: Write, cause: Exception) -> None:
    try:
        for changes in located:
            put(changes.words, changes.positions, changes.old)
        intact = all(changes.holds(changes.old) for changes in located)
    except Exception as error:  # the weights are neither version now
        raise EngineBroken(f"{cause}; then the old bits could not be put back: {error}") from error
    if not intact:
        raise EngineBroken(f"{cause}; then the old bits did not come back")
