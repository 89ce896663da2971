"""ONNX models with constant outputs, written as protobuf without the package onnx.

Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Outputs = dict[str, npt.NDArray[Any]]

_TYPES = {"FLOAT": 1, "UINT8": 2, "INT64": 7, "FLOAT16": 10}
_DTYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int64): 7}
_IR_VERSION, _OPERATORS = 8, 13
_INT = 2  # AttributeProto.AttributeType


def constant_model(
    outputs: Outputs, shape: tuple[object, ...], names: str | None, kind: str
) -> bytes:
    """Return a model that computes `outputs` for every picture.

    Args:
        outputs: By name.
        shape: Of the input; a str is a side that is not fixed.
        names: Metadata with the names of classes.
        kind: Type of the input: FLOAT, FLOAT16 or UINT8.
    """
    # A model must use its input: the mean of the pixels is computed, and dropped.
    nodes = [
        _node("Cast", "image", "pixels", _integer("to", 1)),
        _node("ReduceMean", "pixels", "mean", _integer("keepdims", 0)),
        *(_node("Identity", f"{name}_constant", name) for name in outputs),
    ]
    graph = (
        *(_field(1, node) for node in nodes),
        _field(2, b"g"),
        *(_field(5, _tensor(f"{name}_constant", value)) for name, value in outputs.items()),
        _field(11, _value("image", _TYPES[kind], shape)),
        *(
            _field(12, _value(name, _DTYPES[value.dtype], value.shape))
            for name, value in outputs.items()
        ),
    )
    model = (
        _field(1, _IR_VERSION),
        _field(7, b"".join(graph)),
        _field(8, _field(1, b"") + _field(2, _OPERATORS)),
    )
    metadata = _field(14, _field(1, b"names") + _field(2, names.encode())) if names else b""
    return b"".join(model) + metadata


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _node(operator: str, taking: str, giving: str, attribute: bytes = b"") -> bytes:
    parts = _field(1, taking.encode()), _field(2, giving.encode()), _field(4, operator.encode())
    return b"".join(parts) + (_field(5, attribute) if attribute else b"")


def _integer(name: str, value: int) -> bytes:
    return _field(1, name.encode()) + _field(3, value) + _field(20, _INT)


def _tensor(name: str, value: npt.NDArray[Any]) -> bytes:
    sides = b"".join(_field(1, side) for side in value.shape)
    return (
        sides
        + _field(2, _DTYPES[value.dtype])
        + _field(8, name.encode())
        + _field(9, value.tobytes())
    )


def _value(name: str, kind: int, shape: tuple[object, ...]) -> bytes:
    sides = (
        _field(1, _field(1, side) if isinstance(side, int) else _field(2, str(side).encode()))
        for side in shape
    )
    tensor = _field(1, kind) + _field(2, b"".join(sides))
    return _field(1, name.encode()) + _field(2, _field(1, tensor))
