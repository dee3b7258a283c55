"""The graph of a model that makes vectors, or scores pairs of texts: `graphs/embedder.onnx`."""

from __future__ import annotations

from collections.abc import Mapping

from edge.bundle import BundleWriter
from edge.embedding_format import EMBEDDER
from edge.errors import ExportError
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.tensors import Weight
from edge.export.graph.bert_like import TOKEN_TYPES
from edge.export.graph.both_ways import OfDecoder
from edge.export.graph.families import find_family, is_like_llama
from edge.export.graph.stacks import Decoder
from edge.export.graph.step import Built, configuration, remove_unused
from edge.export.graph.vectors import EmbeddingModel, Embeddings, Head, TextEncoder, embedder_graph
from edge.export.graph.weights import Weights
from edge.export.targets.cpu.decoder import decoder_dims
from edge.export.targets.cpu.files import write_graph
from edge.export.targets.cpu.lowering import CPU
from edge.manifest import KVLayout

GRAPH = "graphs/embedder.onnx"


def width_of(checkpoint: Checkpoint) -> int:
    """Numbers of a vector.

    Raises:
        ExportError: dense layers do not fit the model, or each other.
    """
    assert checkpoint.pooling is not None
    width = int(configuration(checkpoint.config).hidden_size)
    for each in checkpoint.pooling.dense:
        rows, columns = each.weight.shape
        if columns != width:
            raise ExportError(f"A dense layer of {checkpoint.name} reads {columns} numbers, and is given {width}.")
        width = int(rows)
    return width


def build_embedder(
    checkpoint: Checkpoint,
    weights: Mapping[str, Weight],
    writer: BundleWriter,
    max_context: int,
    *,
    types: bool = False,
) -> Built:
    """Write the model's tensors and its graph into the bundle. weights: matrices by parameter name; norms, biases and
    position tables are read from the checkpoint. max_context: maximum tokens of a text. types: a pair's second text has
    tokens of another type.

    Raises:
        ExportError: the model's type is of no known family, or it asks for what no graph can do.
    """
    assert checkpoint.pooling is not None
    name, family = find_family(str(checkpoint.config.get("model_type")))
    if not is_like_llama(str(checkpoint.config.get("model_type"))):
        raise ExportError(f"Models of the family {name} make no vectors here; only decoders like Llama do.")
    store = Weights(checkpoint, weights, writer)
    config = configuration(checkpoint.config)
    built = family.build(config, store, max_context)
    model = EmbeddingModel(OfDecoder(built), decoder_dims(config)) if isinstance(built, Decoder) else built
    if types:
        assert isinstance(model.encoder, TextEncoder) and isinstance(model.encoder.start, Embeddings)
        rows = store.read(TOKEN_TYPES)[:2]
        model.encoder.start.types = store.table("token_types", rows - rows[0])
    graph = embedder_graph(model, Head(store, checkpoint.pooling), width_of(checkpoint), CPU, types=types).graph
    remove_unused(graph)
    return Built(
        family=name,
        dims=model.dims,
        kv=KVLayout("float32", []),
        groups=store.groups(),
        graphs=[write_graph(writer, EMBEDDER, GRAPH, graph)],
    )
