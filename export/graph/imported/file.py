"""An ONNX file from elsewhere, read as a model whose tensors lie in the folder. Nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, LiftSubgraphInitializersToMainGraphPass, RemoveInitializersFromInputsPass

from edge.errors import CheckpointError, on_one_line
from edge.hub_links import is_within

DOMAINS = ("", "ai.onnx", "com.microsoft")
OPSETS = (11, 25)  # of ONNX's own operators, that onnxruntime runs and the passes write
MOST_NODES = 100_000
SHOWN = 80  # characters of a name in a sentence
NESTED = ("If",)  # operators that may have graphs inside


def read_model(path: Path) -> ir.Model:
    """Read an ONNX file, and check what it names. Its tensors stay in their files until they are asked for.

    Raises:
        CheckpointError: it is no ONNX file, has operators that onnxruntime does not bring, or tensors outside of its
            folder.
    """
    if path.with_name(f"{path.name}.data").is_symlink() or path.is_symlink():
        folder = path.parent  # as the hub's cache has them: `_check_tensor` follows the links
    else:
        folder = path.resolve().parent
    try:
        model = ir.load(path)
        _check(model, path, folder)
        InlinePass()(model)
        RemoveInitializersFromInputsPass()(model)
        LiftSubgraphInitializersToMainGraphPass()(model)
    except CheckpointError:
        raise
    except Exception as e:  # a damaged file fails in as many ways as there are fields
        raise CheckpointError(f"{path} cannot be read as an ONNX model: {on_one_line(e)}.") from None
    _check_operators(model, path)
    return model


def _check(model: ir.Model, path: Path, folder: Path) -> None:
    """Refuse tensors that lead out of the folder, and more operators than any decoder has."""
    if sum(1 for _ in model.graph.all_nodes()) > MOST_NODES:
        raise CheckpointError(f"{path} has more than {MOST_NODES:,} operators, which no decoder has.")
    for value in _initializers(model):
        if value.const_value is None:
            raise CheckpointError(f"{path} has no values for its tensor {str(value.name)[:SHOWN]!r}; fetch it again.")
        if isinstance(value.const_value, ir.ExternalTensor):
            _check_tensor(value.const_value, path, folder)
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                raise CheckpointError(f"{path} has a constant in a file, in the operator {node.op_type[:SHOWN]!r}.")


def _check_tensor(tensor: ir.ExternalTensor, path: Path, folder: Path) -> None:
    location = str(tensor.location)
    pure = PurePosixPath(location)
    plain = location and not pure.is_absolute() and ".." not in pure.parts and not {*"\\:\0"} & {*location}
    if not plain or not is_within(folder, location):
        raise CheckpointError(
            f"{path} looks for the tensor {tensor.name[:SHOWN]!r} in {location[:SHOWN]!r}, which is outside of its "
            "folder; do not use it."
        )
    file = folder / location
    if not file.is_file():
        raise CheckpointError(f"{path} needs the file {location[:SHOWN]!r} next to it, which is not there.")
    start, length = tensor.offset or 0, tensor.length or tensor.nbytes
    if length != tensor.nbytes or start < 0 or start + length > file.stat().st_size:
        raise CheckpointError(
            f"{path} looks for the tensor {tensor.name[:SHOWN]!r} where {location[:SHOWN]!r} has no such bytes; fetch "
            "both again."
        )


def _check_operators(model: ir.Model, path: Path) -> None:
    """Refuse operators that onnxruntime's CPU provider does not bring, and loops."""
    for node in model.graph.all_nodes():
        if node.domain not in DOMAINS:
            raise CheckpointError(
                f"{path} has the operator {node.op_type[:SHOWN]!r} of the domain {node.domain[:SHOWN]!r}, which "
                "onnxruntime does not bring; no library of a model's own is loaded."
            )
        if node.op_type not in NESTED and any(_has_graph(attribute) for attribute in node.attributes.values()):
            raise CheckpointError(f"{path} has the operator {node.op_type[:SHOWN]!r}, and loops are not read.")
    opset = model.graph.opset_imports.get("", OPSETS[0])
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise CheckpointError(
            f"{path} is written for version {opset} of ONNX's operators, and those from {OPSETS[0]} to {OPSETS[1]} are "
            "read; export the model again."
        )


def _has_graph(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()
