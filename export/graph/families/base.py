"""What a family says of itself, besides its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.export.checkpoint.gguf_config import Metadata
    from edge.export.graph.weights import Weights


@dataclass(frozen=True)
class Norms:
    """The root mean square norms of a decoder's layer, by their names in the checkpoint.

    attention: what query, key and value read; gates: what gate and up read; None where that is the residual stream as
    it is. outputs: of what attention and the feed-forward block make, before it is added to the stream. offset: what
    is added to the weights of all norms.
    """

    attention: str | None = "input_layernorm"
    gates: str | None = "post_attention_layernorm"
    outputs: tuple[str | None, str | None] = (None, None)
    offset: float = 0.0

    @property
    def names(self) -> list[str]:
        return [norm for norm in (self.attention, self.gates, *self.outputs) if norm is not None]


PRE_NORM = Norms()  # Llama's


@dataclass(frozen=True)
class GGUF:
    """How GGUF files hold the family's models.

    config: more of transformers' configuration, from the file's metadata. names: of a layer's tensors, where they are
    not Llama's. permuted: llama.cpp's converter interleaves the rows of q and k.
    """

    config: Callable[[Metadata], dict[str, Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    permuted: bool = False


@dataclass(frozen=True)
class Languages:
    """How a vocabulary names languages. token: a pattern with the code in one of its groups. in_source: such a token
    stands in the source text and names the target."""

    token: str
    in_source: bool = False


def _one(config: Any) -> float:
    return 1.0


@dataclass(frozen=True)
class Family:
    """build: makes the graph's modules, a `Decoder` or an `EncoderDecoder`, of transformers' configuration, the weights
    and the context.

    norms: of a decoder's layers. head_scale: multiplies what the output head reads. precise: a pattern of the matrices
    that read rows in 16 bits where an encoder's weights are int8. cross: a pattern of the decoder's matrices that make
    keys and values of the encoder's output, and stand in the encoder's graph.
    """

    build: Callable[[Any, Weights, int], Any]
    norms: Norms | None = None
    head_scale: Callable[[Any], float] = _one
    gguf: GGUF | None = None
    languages: Languages | None = None
    precise: str | None = None
    cross: str = r"\.encoder_attn\.[kv]_proj\."
