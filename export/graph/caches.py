"""The keys and values of a model's layers, and their states, as the manifest has them."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import widest_of
from edge.export.graph.blocks import Attention
from edge.export.graph.cross import Reader
from edge.export.graph.recurrent import Recurrent
from edge.export.graph.sharing import SharingAttention
from edge.export.graph.stacks import Decoder, EncoderDecoder
from edge.manifest import Dims, KVLayer, KVLayout, State

NOTHING = KVLayer(0, 0)  # of a layer that reads another's, or keeps a state


def _attention(decoder: Decoder) -> list[Attention | SharingAttention]:
    return [m for m in decoder.modules() if isinstance(m, (Attention, SharingAttention))]


def decoder_kv(decoder: Decoder) -> KVLayout:
    """The keys and values of its layers, in their order."""
    layers = {m.layer: NOTHING for m in decoder.modules() if isinstance(m, Recurrent)}
    for a in _attention(decoder):
        if not isinstance(a, SharingAttention) or a.source is None:
            layers[a.layer] = KVLayer(a.heads.key_value, a.heads.dim, a.window)
        else:
            layers[a.layer] = NOTHING
    return KVLayout("float32", [layers[i] for i in sorted(layers)])


def decoder_states(decoder: Decoder) -> list[State]:
    """The states of its layers."""
    return [state for module in decoder.modules() if isinstance(module, Recurrent) for state in module.states]


def largest_dims(decoder: Decoder, config: Any) -> Dims:
    """The sizes of a decoder; where layers differ, those of the largest.

    Raises:
        ExportError: no layer attends.
    """
    if not (heads := [a.heads for a in _attention(decoder)]):
        raise ExportError("All layers of the model keep states and none attends, which no graph here does.")
    return Dims(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=widest_of(config),
        num_heads=max(each.query for each in heads),
        num_kv_heads=max(each.key_value for each in heads),
        head_dim=max(each.dim for each in heads),
        vocab_size=config.vocab_size,
    )


def layouts(model: EncoderDecoder) -> tuple[KVLayout, KVLayout]:
    """The keys and values of the decoder's layers, and those of the encoder's output, in the layers' order."""
    modules = list(model.decoder.modules())
    attention = [m.heads for m in modules if isinstance(m, Attention)]
    readers = [m for m in modules if isinstance(m, Reader)]
    kv = KVLayout("float32", [KVLayer(heads.key_value, heads.dim) for heads in attention])
    return kv, KVLayout("float32", [KVLayer(m.heads, m.dim) for m in readers])
