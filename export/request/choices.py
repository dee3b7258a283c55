"""Defaults of an export, and the limits that a checkpoint sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from edge import catalog
from edge.bundle import PAGE
from edge.errors import CheckpointError, InputError
from edge.export.facts.experts import OF_EXPERT, stack_name
from edge.export.facts.mxfp4 import GGUF_BYTES
from edge.export.facts.tensors import EMBEDDING, FLOATS, GGUF_TYPES, HEAD, Format, has_gguf_blocks, matrices
from edge.export.graph.families import FAMILIES, find_family
from edge.export.manifest.tokenizer import compact
from edge.export.quantize.rtn import INT8_BLOCK
from edge.gguf_parts import GGUF

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.request.export_request import ExportRequest

MIN_CONTEXT = 16
MAX_CONTEXT = 8192  # of the default: rope tables and verification cost memory for every position; more must be asked

KEEP = "keep"
QUANTIZED = ("Q", "IQ", "TQ", "MXFP")  # begin the names of a GGUF file's types in blocks
EVERYWHERE = ("Q4_0", "Q8_0")  # types of GGUF files whose blocks every host computes
# Weights of a GGUF file from which on its own blocks are the default. In 8-bit blocks they take 1.06 GB, where Q4_K_M
# takes 0.6 GB; below that a bundle for every host costs less than half a GB more.
LARGE = 1_000_000_000
SCALE = 4  # bytes
EIGHT = 1 + SCALE / INT8_BLOCK  # bytes of a weight in 8-bit blocks

TENSORS_OF_EXPERTS = 3 * (2 * 3 + 2)  # of a layer: in 3 formats 2 matrices of 3 tensors, and 2 biases
OTHER_FILES = 5_000_000  # maximum bytes of graphs, recorded answers and what drafts begin with

# Text to draft from: by default as many tokens as take about a minute on two cores, WORK multiplications by weights, at
# most MAXIMUM_TEXT, of which twice as many bring 0.2% more (docs/lab/export.md), and none where the model is so small
# that its steps cost nothing.
WORK = 2.2e12
MAXIMUM_TEXT = 8_000
MINIMUM_WEIGHTS = 10_000_000


class Named(Protocol):
    """The facts that defaults depend on, of a checkpoint or of a `Glance` at one."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def embeds(self) -> bool: ...

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_type(self, name: str) -> str: ...

    def form(self, name: str) -> Format | None: ...

    def gguf_type(self, name: str) -> str | None: ...


@dataclass(frozen=True)
class Choices:
    """The chosen options, as in `edge.export`."""

    weights: str
    block_size: int | None
    context: int


def choose(
    checkpoint: Checkpoint,
    weights: str | None,
    block_size: int | None,
    max_context: int | None,
    *,
    quick: bool,
    anew: bool = False,
    in_place: bool = False,
    device: bool = False,
) -> Choices:
    """Return the options asked for, else the catalog's, else the defaults of the method and the model. A GGUF stays in
    its precision, and so does a folder whose integers can be stored as they are, unless an option is asked for (`anew`)
    that needs new ones; a file, and a folder in MXFP4, in its own blocks by `keeps_own_blocks`. quick: other decoders
    get int8. in_place: a GGUF stays where it is, where our kernels can read it. device: the bundle is for other hosts,
    too.

    Raises:
        CheckpointError: the model's context is too small to be one.
        InputError: the context is out of range.
    """
    defaults = _defaults(checkpoint)
    chosen = choose_weights(checkpoint, weights, quick=quick, anew=anew, in_place=in_place, device=device)
    if block_size is None and chosen == defaults.get("weights"):
        block_size = defaults.get("block_size")
    return Choices(
        chosen, block_size, context_of(checkpoint, defaults.get("max_context") if max_context is None else max_context)
    )


def choose_weights(
    checkpoint: Named, weights: str | None, *, quick: bool, anew: bool, in_place: bool = False, device: bool = False
) -> str:
    """Return the weights alone, by the rules of `choose`."""
    if weights is not None:
        return weights
    both = bool(checkpoint.config.get("is_encoder_decoder")) or checkpoint.embeds
    if not both and not anew and is_folder(checkpoint) and any(map(checkpoint.form, checkpoint.names())):
        own = not device and keeps_own_blocks(checkpoint) and _has_own_blocks(checkpoint)
        return GGUF if own and our_kernels_run(experts=True) else KEEP
    stated = None if quick else _defaults(checkpoint).get("weights")
    if stated is None and not both and (quick or not anew) and is_quantized_gguf(checkpoint):
        if in_place and has_gguf_blocks(map(checkpoint.stored_type, checkpoint.names())):
            return GGUF
        return GGUF if not device and keeps_own_blocks(checkpoint) and our_kernels_run() else KEEP
    if quick and not both:
        return "int8"
    return str(stated or ("int8" if both else "int4"))


def is_quantized_gguf(checkpoint: Named) -> bool:
    """True for a GGUF file that does not consist of floats alone."""
    types = {*map(checkpoint.stored_type, checkpoint.names())}
    return not is_folder(checkpoint) and any(kind.startswith(QUANTIZED) for kind in types)


def keeps_own_blocks(checkpoint: Named) -> bool:
    """True if `gguf` is the default for a GGUF file or a folder in MXFP4, and not `keep`: if it has `LARGE` weights or
    more, and most are of types that only our kernels compute, so that 8-bit blocks in their place would add hundreds of
    MB."""
    sizes = {name: math.prod(checkpoint.shape(name)) for name in checkpoint.names()}
    widened = sum(size for name, size in sizes.items() if _is_widened(checkpoint.stored_type(name)))
    return sum(sizes.values()) >= LARGE and 2 * widened > sum(sizes.values())


def _has_own_blocks(folder: Named) -> bool:
    """True if experts of a folder stay in MXFP4 with `gguf`; those of an adapter's base do not."""
    experts = filter(None, map(OF_EXPERT.fullmatch, folder.names()))
    return any(folder.gguf_type(stack_name(each[1], each[3])) is not None for each in experts)


def our_kernels_run(*, experts: bool = False) -> bool:
    """True if kernels that compute blocks of GGUF files run here, without which no bundle of these can be checked.
    experts: gpt-oss's, too, which an older library does not compute."""
    from edge.runtime.kernels.library import reads_gguf

    return reads_gguf(biased_experts=experts)


def _is_widened(kind: str) -> bool:
    return kind in GGUF_TYPES and kind not in (*EVERYWHERE, *FLOATS)


def is_folder(checkpoint: Named) -> bool:
    """True of a model directory, or an adapter's, that was opened."""
    return getattr(checkpoint, "root", None) is not None


def default_tokens(weights: int) -> int:
    """Return the default number of tokens that a model of `weights` weights writes to draft from."""
    return min(MAXIMUM_TEXT, int(WORK / weights)) if weights >= MINIMUM_WEIGHTS else 0


def draft_tokens(request: ExportRequest, model: Named) -> int:
    """Return the number of tokens of its answers that a decoder writes for drafts: as asked for, else the default."""
    if request.draft_text is not None:
        return request.draft_text
    return 0 if request.quick else default_tokens(count_weights(model))


def _defaults(checkpoint: Named) -> dict[str, Any]:
    """Return the catalog's options for the model; none outside the catalog."""
    entry = catalog.find(checkpoint.name) if checkpoint.kind == "catalog" else None
    return {} if entry is None else entry.export


def described(checkpoint: Checkpoint, weights: str) -> str:
    """Return a sentence about the model that is exported; ExportError if its family is unknown."""
    family, _ = find_family(str(checkpoint.config.get("model_type")))
    licence, count = checkpoint.licence or "no licence stated", count_weights(checkpoint)
    how = "kept as they are where they fit" if weights in ("keep", "gguf") else f"to {weights}"
    return f"{checkpoint.name} ({checkpoint.kind}, {licence}): family {family}, {count:,} weights, {how}."


def described_default(checkpoint: Checkpoint, weights: str) -> str | None:
    """Return a sentence about default weights of a GGUF file or a folder in MXFP4: why these, which hosts run them, and
    how to get others. None where they are no default of such models."""
    if weights not in (GGUF, KEEP):
        return None
    folder = is_folder(checkpoint) and _has_own_blocks(checkpoint)
    if not folder and not is_quantized_gguf(checkpoint):
        return None
    whose, eight = "folder's" if folder else "file's", f"{count_weights(checkpoint) * EIGHT / 1e9:.1f} GB"
    if weights == GGUF:
        instead = f" instead of {_in_own_blocks(checkpoint) / 1e9:.1f} GB" if folder else ""
        return (
            f"The bundle has the {whose} own blocks, as 8-bit blocks would take {eight}{instead}. It runs where "
            "edge-lm-kernels are installed, and not on Android; --weights keep makes one for every host."
        )
    others = f"--weights gguf keeps the {whose} own blocks, for hosts with edge-lm-kernels (not Android)"
    if keeps_own_blocks(checkpoint) and not our_kernels_run(experts=folder):
        others = (
            f"where edge-lm-kernels are installed, {others}, and is the default of a model of this size, as 8-bit "
            f"blocks take {eight}"
        )
    android = "" if any(map(OF_EXPERT.fullmatch, checkpoint.names())) else ", Android too"
    return f"The bundle has blocks that every host computes{android}; {others}."


def _in_own_blocks(folder: Named) -> float:
    """Return the bytes of a folder's weights with `gguf`."""
    sizes = [(math.prod(folder.shape(name)), folder.stored_type(name)) for name in folder.names()]
    return sum(size * (GGUF_BYTES if kind == "MXFP4" else EIGHT) for size, kind in sizes)


def count_weights(checkpoint: Named) -> int:
    return sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())


def bits_within(size: int, checkpoint: Checkpoint, context: int, *, prefill: bool) -> float:
    """Bits a weight with which a bundle takes `size` bytes at most. prefill: with an int8 prefill graph.

    Raises:
        InputError: what else it holds takes more.
    """
    names = matrices(checkpoint)
    count = sum(math.prod(checkpoint.shape(name)) for name in names)
    vectors = 4 * (count_weights(checkpoint) - count) + PAGE * _maximum_of_tensors(checkpoint)
    rest = vectors + len(compact(checkpoint.tokenizer.json).encode()) + OTHER_FILES + _rotary(checkpoint, context)
    if prefill:
        layers = [checkpoint.shape(name) for name in names if name not in (EMBEDDING, HEAD)]
        rest += sum(math.prod(shape) + 4 * shape[0] for shape in layers) + vectors
    if size <= rest:
        raise InputError(
            f"A bundle of {checkpoint.name} takes up to {rest / 1e6:.1f} MB besides its matrices; name a larger --size."
        )
    return 8 * (size - rest) / count


def _maximum_of_tensors(checkpoint: Named) -> int:
    """Return the maximum number of tensors of a bundle, in which the experts of a layer are a few in each format."""
    alone = [name for name in checkpoint.names() if not OF_EXPERT.fullmatch(name)]
    layers = {each[1] for name in checkpoint.names() if (each := OF_EXPERT.fullmatch(name))}
    return 3 * sum(len(checkpoint.shape(name)) == 2 for name in alone) + len(alone) + TENSORS_OF_EXPERTS * len(layers)


def _rotary(checkpoint: Checkpoint, context: int) -> int:
    """Maximum bytes of cosines and sines, of one table for each type of layers."""
    config = checkpoint.config
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    types = 2 if config.get("sliding_window") else 1
    short = config.get("original_max_position_embeddings") or 0  # of LongRoPE, whose short texts have a table too
    return int(4 * types * (context + short) * head)


def context_of(checkpoint: Checkpoint, asked: int | None) -> int:
    """Return a bundle's context: as asked for, within the model's; default: the model's, up to MAX_CONTEXT."""
    pooling = checkpoint.pooling
    stated = (checkpoint.config.get(name) for name in ("max_position_embeddings", "max_target_positions"))
    most = int(next((s for s in stated if s), MAX_CONTEXT))
    if pooling is not None and FAMILIES[checkpoint.config["model_type"]].traits.get("offset"):
        most -= int(checkpoint.config["pad_token_id"]) + 1  # rows of the positions' table that no token has
    if most < MIN_CONTEXT:
        raise CheckpointError(
            f"The configuration of {checkpoint.name} gives it a context of {most} tokens, and no model has less than "
            f"{MIN_CONTEXT}; fetch it again."
        )
    if asked is None:  # of vectors as long as the model's makers have it
        return min(most, MAX_CONTEXT, most if pooling is None else pooling.max_length or most)
    if asked < MIN_CONTEXT:
        raise InputError(f"A context of {asked} tokens is too small; choose --max-context {MIN_CONTEXT} or more.")
    if asked > most:
        raise InputError(
            f"A context of {asked} tokens is more than the {most} that {checkpoint.name} was made for; choose "
            f"--max-context {most} or less."
        )
    return asked
