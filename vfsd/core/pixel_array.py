"""`PixelArray`: what makes frames and crops arrays for NumPy, PyTorch and others."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.errors import ExtraMissingError

Pixels = npt.NDArray[Any]


class PixelArray:
    """Base of the classes whose `data` are pixels: usable wherever an array is.

    Shape, indices and conversions are those of `data`, a NumPy array.
    """

    __slots__ = ()

    data: Pixels

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `data`."""
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of `data`: uint8, or uint16 for formats of more than 8 bits."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes of `data`."""
        return self.data.ndim

    def __len__(self) -> int:
        return len(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        """Return `data` for NumPy.  Raises `ValueError` if `copy` is False and a copy is needed."""
        # Without this method NumPy would make an array of objects.
        found = self.data if dtype is None else self.data.astype(dtype, copy=False)
        if copy is False and found is not self.data:
            raise ValueError(
                f"converting pixels from {self.data.dtype} to {np.dtype(dtype)} requires a copy"
            )
        return found.copy() if copy and found is self.data else found

    def __dlpack__(self, **options: Any) -> Any:
        """Export `data` without a copy, as `numpy.ndarray.__dlpack__`."""
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of `data`: always the CPU."""
        device: tuple[int, int] = self.data.__dlpack_device__()
        return device

    def _repr_png_(self) -> bytes | None:
        """Return the picture for a notebook, at most 640 pixels wide and high."""
        from vfsd.core.rich_repr import png_of

        return png_of(self.data)

    def _repr_html_(self) -> str | None:
        """Return a contact sheet of at most 24 pictures for a notebook."""
        if self.ndim != 4:
            return None
        from vfsd.core.rich_repr import MAX_PICTURES, sheet

        # Evenly spaced ones of many.
        count = min(len(self), MAX_PICTURES)
        chosen = np.linspace(0, len(self) - 1, count).round().astype(int).tolist()
        pictures = ((self.data[at], self._caption_of(at)) for at in chosen)
        return sheet(repr(self), pictures, len(self))

    def _caption_of(self, at: int) -> str:
        return str(at)

    def numpy(self) -> Pixels:
        """Return `data`, without a copy."""
        return self.data

    def torch(self) -> Any:
        """Return `data` as a `torch.Tensor` that shares its memory where that is writable.

        Raises `ExtraMissingError` without PyTorch.
        """
        return tensor_of(self.data)


def tensor_of(data: Pixels) -> Any:
    """Return pixels as a `torch.Tensor`; their memory is shared where it can be.

    Raises `ExtraMissingError` without PyTorch.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ExtraMissingError("tensors need PyTorch", hint="pip install torch") from error
    # PyTorch has no read-only tensors and no negative strides.
    if not data.flags.writeable or any(stride < 0 for stride in data.strides):
        data = data.copy()
    return torch.from_numpy(data)
