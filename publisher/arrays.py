"""Arrays in memory as served tensors: dtype by safetensors name, shape, bytes.  Nothing casts.

NumPy arrays (with `ml_dtypes` types, too), torch tensors, and `ServedTensor` for anything else.
Neither torch nor `ml_dtypes` is imported: their types are known by name.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from skerry.codec.digest import Bytes
from skerry.codec.header import tensor_bytes

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTensor:
    """One tensor in served precision, for types that NumPy has no name for.

    `data` is any C-contiguous array whose bytes, little-endian, are the tensor's: for BF16 a uint16
    array of `shape`, say.
    """

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    def __post_init__(self) -> None:
        expected = tensor_bytes("served tensor", self.dtype, self.shape)
        if self.data.nbytes != expected:
            raise ValueError(
                f"{self.dtype} {list(self.shape)} has {expected} bytes, found {self.data.nbytes}"
            )

    @property
    def raw(self) -> Bytes:
        """The tensor's bytes, shape [nbytes]; a copy only if the data is not contiguous."""
        data = np.ascontiguousarray(self.data)
        if data.dtype.byteorder == ">":
            raise ValueError("a served tensor's data is little-endian, found big-endian")
        return data.reshape(-1).view(np.uint8)


Served = Any  # numpy array, torch tensor or ServedTensor: told apart at run time


def as_served(name: str, value: Served) -> ServedTensor:
    """Return any supported array as a served tensor.  Raises TypeError for others."""
    if isinstance(value, ServedTensor):
        return value
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if kind not in _NAMES:
        raise TypeError(
            f"{name}: expected a numpy array, a torch tensor or a ServedTensor of a known dtype, "
            f"found {type(value).__name__} of dtype {kind or 'none'}"
        )
    shape = tuple(int(n) for n in value.shape)
    data = value if isinstance(value, np.ndarray) else _torch_bytes(name, value)
    return ServedTensor(dtype=_NAMES[kind], shape=shape, data=data)


def _torch_bytes(name: str, tensor: Any) -> npt.NDArray[Any]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: {type(tensor).__name__} is no array that can be published")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array: npt.NDArray[Any] = flat.view(torch.uint8).numpy()
    return array
