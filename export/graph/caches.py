"""The keys and values of a model's layers, as the manifest has them."""

from __future__ import annotations

from edge.export.graph.blocks import Attention
from edge.export.graph.cross import CrossAttention
from edge.export.graph.stacks import Decoder, EncoderDecoder
from edge.manifest import KVLayer, KVLayout


def decoder_kv(decoder: Decoder) -> KVLayout:
    """The keys and values of its layers, in their order."""
    attention = [m for m in decoder.modules() if isinstance(m, Attention)]
    return KVLayout("float32", [KVLayer(a.heads.key_value, a.heads.dim, a.window) for a in attention])


def layouts(model: EncoderDecoder) -> tuple[KVLayout, KVLayout]:
    """The keys and values of the decoder's layers, and those of the encoder's output, in the layers' order."""
    modules = list(model.decoder.modules())
    attention = [m.heads for m in modules if isinstance(m, Attention)]
    readers = [m for m in modules if isinstance(m, CrossAttention)]
    kv = KVLayout("float32", [KVLayer(heads.key_value, heads.dim) for heads in attention])
    return kv, KVLayout("float32", [KVLayer(m.heads, m.dim) for m in readers])
