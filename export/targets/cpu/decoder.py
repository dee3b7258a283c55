"""Decoder graphs: a checkpoint's configuration and weights become `graphs/decoder.onnx`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edge.bundle import BundleWriter
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.family import heads_of
from edge.export.facts.tensors import Weight
from edge.export.graph.caches import decoder_kv, decoder_states, largest_dims
from edge.export.graph.families import find_family
from edge.export.graph.rope import short_rope
from edge.export.graph.stacks import Decoder
from edge.export.graph.step import DECODER, Built, configuration, step_graph
from edge.export.graph.weights import Weights
from edge.export.targets.cpu.files import write_graph
from edge.export.targets.cpu.lowering import CPU
from edge.export.targets.cpu.prefill import build_prefill
from edge.manifest import Dims


def decoder_dims(config: Any) -> Dims:
    """The sizes of a decoder like Llama."""
    heads = heads_of(config)
    return Dims(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=heads.query,
        num_kv_heads=heads.key_value,
        head_dim=heads.dim,
        vocab_size=config.vocab_size,
    )


def build_decoder(
    checkpoint: Checkpoint,
    weights: Mapping[str, Weight],
    writer: BundleWriter,
    max_context: int,
    prefill: Mapping[str, Weight] | None = None,
) -> Built:
    """Write a decoder's tensors and its step graph into the bundle, and the int8 prefill graph's.

    prefill: the weights of the int8 prefill graph; None: write none.
    weights: every linear's and the embedding's matrix by parameter name; norms and biases are read from the
    checkpoint. max_context: the number of positions the graph can take.

    Raises:
        ExportError: the model's type is of no known family, or it asks for what no graph can do.
    """
    name, family = find_family(str(checkpoint.config.get("model_type")))
    config = configuration(checkpoint.config)
    store = Weights(checkpoint, weights, writer)
    decoder: Decoder = family.build(config, store, max_context)
    kv, states = decoder_kv(decoder), decoder_states(decoder)
    builder = step_graph(decoder, kv, config.vocab_size, states=states, chooses=True, lower=CPU)
    graphs = [write_graph(writer, "decoder", DECODER, builder.graph)]
    form = None
    if prefill is not None:
        graph, form = build_prefill(checkpoint, family, config, prefill, store, writer, kv, max_context)
        graphs.append(graph)
    dims = largest_dims(decoder, config)
    if family.layers is not None and (wide := family.layers(config).wide) is not None:
        dims = dataclasses.replace(dims, intermediate_size=wide)
    return Built(name, dims, kv, store.groups(), graphs, states, form, short_rope(config, max_context))
