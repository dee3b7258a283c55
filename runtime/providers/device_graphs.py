"""Small graphs of our own for what a device does besides a model's graphs: copies, moved rows, the largest logits."""

from __future__ import annotations

from edge.runtime.onnx_proto import model_of

FLOAT, INT64 = 1, 7  # TensorProto.DataType
INT = 2  # AttributeProto.AttributeType


def copying(kind: int) -> bytes:
    """x to y. kind: TensorProto.DataType of both."""
    return model_of([_node("Identity", ["x"], ["y"])], {"x": kind}, {"y": kind})


def gathering(kind: int) -> bytes:
    """The rows [N] of x [B, H, N, D], to y."""
    node = _node("Gather", ["x", "rows"], ["y"], axis=2)
    return model_of([node], {"x": kind, "rows": INT64}, {"y": kind})


def top(count: int) -> bytes:
    """The largest values of each row of x [1, R, V], in order, and their places: [1, R, count] each."""
    size = {"name": "count", "dims": [1], "data_type": INT64, "raw_data": count.to_bytes(8, "little")}
    node = _node("TopK", ["x", "count"], ["values", "places"], axis=-1)
    return model_of([node], {"x": FLOAT}, {"values": FLOAT, "places": INT64}, [size])


def _node(op_type: str, inputs: list[str], outputs: list[str], **numbers: int) -> dict[str, object]:
    attributes = [{"name": name, "i": number, "type": INT} for name, number in numbers.items()]
    return {"op_type": op_type, "name": op_type, "input": inputs, "output": outputs, "attribute": attributes}
