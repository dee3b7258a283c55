"""The memory model of an export: the private bytes that each of its stages takes, from the shapes of the checkpoint's
tensors alone, and what of them fits under a limit.

Stages follow each other, and the one that takes most decides. What an export can do without is left out where it does
not fit; what it cannot do without must fit. Files do not count, because the system takes their pages back: safetensors
and GGUF files are mapped, and so is what a calibration has finished (`edge.export.quantize.calibration_cache`).

Two sessions of onnxruntime are never open at a time: each packs all weights anew, in private memory, next to the
mapped file that they come from. docs/lab/quantization.md compares predictions and measurements.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.errors import InputError
from edge.export.facts.experts import OF_EXPERT
from edge.export.facts.mxfp4 import GGUF_BYTES
from edge.export.facts.tensors import EMBEDDING, FLOATS, GGUF_TYPES, HEAD, matrices
from edge.export.graph.families import experts_of, may_calibrate
from edge.export.quantize import METHODS
from edge.export.quantize.gguf import kept_experts
from edge.export.quantize.method import FORMATS, OWN_TEXT, TUNING, Options
from edge.export.request.decoder_sizes import ATTENTION, FLOAT, STATES, DecoderSizes, solving_bytes
from edge.runtime.memory.process import private_bytes
from edge.runtime.sizes import show_size

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

MB = 10**6

# What importing takes (Linux, x86-64, Python 3.11, torch 2.13, transformers 5.23), and what programs differ by.
LIBRARIES = {"torch": 275 * MB, "transformers": 120 * MB, "onnxscript": 65 * MB, "onnxruntime": 10 * MB}
SLACK = 96 * MB
RESERVE = 0.05  # of a prediction

# Another stage that an export can do without, as it is called where it is left out.
DRAFTS = "the text to draft from"

READING = 2  # copies of a tensor that is read: a GGUF's blocks become floats in parts that are then joined
CHECKED = 10  # rows of logits that are compared, and what that makes of them
SCALED = 7  # floats of each block whose scale is tuned: itself, its change, gradients and moments
PARAGRAPH = 512  # tokens of a text that vectors are compared on
SENTENCE, HEAD_DIM = 64, 32  # tokens of an encoder-decoder's check at most, and channels of its heads at least
ROUNDED = 1.5  # bytes of an encoder's or a decoder's weights in 8 bits: some are packed twice
MIXED = 3  # copies of what mixers make in the reference
STACKED = 2  # copies of matrices that are stored as one


@dataclass(frozen=True)
class Stage:
    """A stage of an export, and the private bytes that it needs besides the program's. optional: it can be left out."""

    name: str
    takes: int
    optional: bool = False


@dataclass(frozen=True)
class Request:
    """The options of an export that its memory depends on.

    weights: the method's name; of an encoder-decoder those of both halves, joined by ``+``. compare: with the model in
    float32. prefill: an int8 prefill graph, too. drafts: tokens that are written to draft from; required: that number
    was asked for.
    """

    weights: str
    options: Options
    context: int
    compare: bool = True
    prefill: bool = False
    drafts: int = 0
    required: bool = False


def leave_out(
    checkpoint: Checkpoint, request: Request, limit: int | None, say: Callable[[str], None]
) -> frozenset[str]:
    """Return the names of the stages that an export leaves out to fit into `limit` bytes; `say` is told.

    Raises:
        InputError: a required stage does not fit; the smallest limit that would do is named.
    """
    if limit is None:
        return frozenset()
    stages, program = stages_of(checkpoint, request), program_bytes(request)
    largest = max((stage for stage in stages if not stage.optional), key=lambda stage: stage.takes)
    if (smallest := needed(largest, program)) > limit:
        raise InputError(
            f"The export of {checkpoint.name} to {request.weights} does not fit into {show_size(limit, math.floor)}, "
            f"because {largest.name} takes more; the smallest --memory that would do is {show_size(smallest)}."
        )
    without = {stage.name: size for stage in stages if stage.optional and (size := needed(stage, program)) > limit}
    if without:
        each = "; ".join(f"{name} ({show_size(size)} would include it)" for name, size in without.items())
        say(f"Left out, because it does not fit into {show_size(limit, math.floor)}: {each}.")
    return frozenset(without)


def needed(stage: Stage, program: int) -> int:
    """Return the smallest limit that a stage fits under, if the rest of the program needs `program` bytes."""
    return math.ceil((1 + RESERVE) * (stage.takes + program)) + SLACK


def program_bytes(request: Request) -> int:
    """Return the private bytes of this process besides the stages: those in use, and those of libraries not yet
    imported."""
    calibrated = request.weights in METHODS and METHODS[request.weights].traits.get("calibrated")
    alone = request.options.effort == "quick"  # a GGUF file without Torch, or it is there
    if calibrated:
        from edge.export.quantize.gptq_efforts import in_one_run

        alone = in_one_run(request.options)
    missing = LIBRARIES.keys() - sys.modules.keys() - ({"torch", "transformers"} if alone else set())
    return private_bytes() + sum(LIBRARIES[library] for library in missing)


def stages_of(checkpoint: Checkpoint, request: Request) -> list[Stage]:
    """Return the stages of a decoder's or an encoder-decoder's export in their order."""
    if checkpoint.pooling is not None:
        return list(_embedder(checkpoint, request))
    if checkpoint.config.get("is_encoder_decoder"):
        return list(_encoder_decoder(checkpoint, request.weights))
    return list(_decoder(checkpoint, request))


def _decoder(checkpoint: Checkpoint, request: Request) -> Iterator[Stage]:
    from edge.export.check import of_decoder as check
    from edge.runtime.check.perplexity import CHUNK

    sizes, options = DecoderSizes(checkpoint), request.options
    quick = options.effort == "quick"
    logits = CHUNK * sizes.vocab * FLOAT
    if request.compare:
        window = min(check.QUICK_WINDOW if quick else check.WINDOW, request.context)
        running = sizes.activations(window) + 3 * logits + window * sizes.kv_row * 2 * FLOAT
        if quick:
            yield Stage("the reference", running + READING * sizes.matrix * FLOAT)
        else:
            reading = max(READING * sizes.embedding, sizes.vocabulary + sizes.layer + sizes.matrix) * FLOAT
            yield Stage("the float32 model's answer to the check's text", running + reading)
    if METHODS.find(request.weights).traits.get("calibrated") and may_calibrate(checkpoint.config):
        yield from _calibrated(sizes, options, len(checkpoint.tokenizer.tokens.lead))
    elif options.bits is not None and (experts := experts_of(checkpoint.config)) is not None:
        yield Stage("measuring what bits bring to experts", _by_expert(sizes, options, experts.chosen))
    own = _own_blocks(checkpoint, request.weights)
    yield Stage("writing the weights", _writing(sizes, request, own))
    yield from _sessions(checkpoint, sizes, request, own)


def _calibrated(sizes: DecoderSizes, options: Options, lead: int) -> Iterator[Stage]:
    """Yield the stages that calibrate weights in 4 bits: see `edge.export.quantize.gptq`."""
    from edge.export.check.of_decoder import QUICK_WINDOW
    from edge.export.quantize.allocate import WINDOWS
    from edge.export.quantize.calibration import WINDOW
    from edge.export.quantize.gptq_efforts import BLOCK, EFFORTS, OTHERS, SIDE_BY_SIDE, budget_of, in_one_run
    from edge.export.quantize.sampled import PIECE, TOGETHER
    from edge.export.quantize.solve import ROWS

    effort = EFFORTS[options.effort]
    tokens = EFFORTS["quick"].windows * WINDOW
    sketch = sizes.total // BLOCK * (FLOAT + 1)  # its integers are in a file
    in_numpy = 2 * sizes.row * (tokens + QUICK_WINDOW) * FLOAT
    of_layer = STACKED * READING * sizes.matrix * FLOAT + sizes.solving(ROWS, tokens=tokens)
    of_head = solving_bytes(ROWS, sizes.hidden, tokens) + (STACKED + 1) * sizes.embedding
    one_run = sketch + in_numpy + max(of_layer, of_head)
    if in_one_run(options):
        yield Stage("calibrating in one run", one_run)
        return
    block_size = options.block_size or BLOCK
    windows = effort.windows * (1 + effort.own_text)
    if effort.own_text:
        cached = TOGETHER * (lead + PIECE) * sizes.kv_row * (sizes.layers + 2) * FLOAT
        drawn = TOGETHER * sizes.vocab * 6 * FLOAT
        whole = (sizes.total + READING * sizes.embedding) * FLOAT
        yield Stage(OWN_TEXT, whole + cached + drawn + sizes.activations(TOGETHER * 9), optional=True)

    hidden = 2 * windows * sizes.states(WINDOW)
    running = sizes.activations(WINDOW) + sizes.scores(WINDOW)
    vocabulary = sizes.vocabulary * FLOAT
    solving = sizes.solving(ROWS, SIDE_BY_SIDE)
    layer = (2 * sizes.layer + sizes.moments) * FLOAT + sizes.layer  # as floats, stacked, and integers
    head = solving_bytes(ROWS, sizes.hidden) + STACKED * sizes.embedding * (FLOAT + 1)
    yield Stage(
        "calibrating a layer",
        hidden + max(READING * vocabulary, vocabulary + max(head, layer + max(solving, running))),
    )
    teacher = 2 * sizes.embedding * FLOAT  # its head, as it is read and as products take it
    if budget_of(options, effort) is not None:
        asked = (options.bits, options.perplexity) != (None, None)
        block_size = options.block_size or min(form.block_size for form in OTHERS)
        backward = 4 * sizes.layer * FLOAT + 2 * running + WINDOWS * (sizes.layers + STATES) * sizes.states(WINDOW)
        measured = vocabulary + max(2 * sizes.embedding * FLOAT, backward)  # the float head as it is read, then layers
        trying = hidden + vocabulary + one_run
        yield Stage(FORMATS, max(trying, hidden + sketch + teacher + measured), optional=not asked)
    if effort.passes:
        blocks = sizes.total // block_size * SCALED * FLOAT
        of_head = 3 * sizes.embedding * FLOAT  # itself, its gradient, and rows of it
        products = 4 * sizes.matrix * FLOAT
        kept = (sizes.layers + STATES) * sizes.states(WINDOW)
        backward = max(of_head, products + 2 * running)
        yield Stage(TUNING, blocks + vocabulary + teacher + kept + backward, optional=True)


def _by_expert(sizes: DecoderSizes, options: Options, chosen: int) -> int:
    """Return the bytes for measuring each expert, `chosen` of which compute for a token: see
    `edge.export.quantize.by_expert`."""
    from edge.export.quantize.by_expert import BITS
    from edge.export.quantize.calibration import WINDOW
    from edge.export.quantize.gptq_efforts import EFFORTS
    from edge.export.quantize.solve import ROWS

    tokens = EFFORTS[options.effort].windows * WINDOW
    of_expert = 3 * (2 * READING * sizes.matrix * FLOAT) + solving_bytes(ROWS, sizes.hidden, 1)
    variances = len(sizes.shapes) * 2 * sizes.hidden * FLOAT
    errors = tokens * chosen * len(BITS) * 2 * FLOAT
    return (2 * sizes.row + MIXED * sizes.mixed) * tokens * FLOAT + of_expert + variances + errors


def _own_blocks(checkpoint: Checkpoint, weights: str) -> set[str]:
    """The experts' matrices that stay in blocks of GGUF files: see `edge.export.quantize.gguf`."""
    if not METHODS.find(weights).traits.get("gguf_blocks"):
        return set()
    blocks = set(kept_experts(checkpoint))
    return {name for name in matrices(checkpoint) if (each := OF_EXPERT.fullmatch(name)) and each[1] in blocks}


def _writing(sizes: DecoderSizes, request: Request, own: set[str]) -> int:
    """Return the bytes for writing the weights. A matrix is read, rounded, and joined with those that it is stored
    with, while the others stay on disk. own: of experts that keep their blocks all of a projection are one array."""
    layer, matrix, projection = sizes.without(own)
    together = max(layer, sizes.embedding)
    read = READING * max(matrix, sizes.embedding) * FLOAT
    traits = METHODS.find(request.weights).traits
    if traits.get("calibrated"):  # it was rounded before
        return STACKED * 2 * together
    made = STACKED * together * (FLOAT if traits["bits"] > 8 else 2)
    rotated = (4 * sizes.hidden**2 + 2 * matrix) * FLOAT if request.prefill else 0
    return max(read, 2 * matrix * FLOAT, math.ceil(projection * GGUF_BYTES)) + made + rotated


def _sessions(checkpoint: Checkpoint, sizes: DecoderSizes, request: Request, own: set[str]) -> Iterator[Stage]:
    """Yield the stages that run in onnxruntime."""
    from edge.export.check.of_decoder import WINDOW
    from edge.runtime.check.perplexity import CHUNK
    from edge.runtime.limits import PREFILL_CHUNK, SIDE_BY_SIDE

    packed = _packed(checkpoint, request.weights, request.options, own)
    if request.prefill:
        packed += sizes.body + (sizes.embedding + 2 * sizes.hidden**2) * FLOAT
    row = sizes.kv_row * sizes.layers * FLOAT
    step = PREFILL_CHUNK * sizes.row * 2 * FLOAT
    compared = CHECKED * CHUNK * sizes.vocab * FLOAT
    # What the weights' file has of them is mapped: in private memory they are once, in RSS twice.
    yield Stage("the written graph", packed + WINDOW * 2 * row + step + compared)
    if request.drafts:
        from edge.export.drafts.successors import ANSWER, QUESTION

        tokens = SIDE_BY_SIDE * (2 * QUESTION + ANSWER)
        written = packed + tokens * row + step + 4 * SIDE_BY_SIDE * sizes.vocab * FLOAT
        yield Stage(DRAFTS, written, optional=not request.required)


def _packed(checkpoint: Checkpoint, weights: str, options: Options, mapped: set[str]) -> int:
    """Bytes of the weights as onnxruntime's kernels keep them: as they are stored, with a float more for each block,
    and floats as float32. An embedding that is no head stays in the file. mapped: matrices that our kernels alone
    compute, from a file."""
    traits = METHODS.find(weights).traits
    names = [name for name in matrices(checkpoint) if name not in mapped]
    if HEAD in names:
        names.remove(EMBEDDING)
    usual, size = float(traits["bits"]), 0.0
    own = GGUF_TYPES if traits.get("gguf_blocks") else {}
    if traits.get("calibrated"):
        from edge.export.quantize.gptq_efforts import EFFORTS

        usual = options.bits or (8 if options.perplexity else EFFORTS[options.effort].bits) or usual
    for name in names:
        stays = traits.get("keeps") and getattr(checkpoint, "root", None) is None  # floats of a GGUF
        kind = checkpoint.stored_type(name)
        if stays and kind in FLOATS:  # our kernels have some as they are
            size += math.prod(checkpoint.shape(name)) * (own[kind] / 8 if kind in own else FLOAT)
            continue
        blocks = 0 if usual > 8 else 1 / (options.block_size or 32)
        size += math.prod(checkpoint.shape(name)) * ((FLOAT if usual > 8 else usual / 8) + blocks * (2 * FLOAT + 1))
    return math.ceil(size)


def _encoder_decoder(checkpoint: Checkpoint, weights: str) -> Iterator[Stage]:
    """Yield the stages of an encoder-decoder with upper bounds: these models are small, and no stage is left out."""
    shapes = [checkpoint.shape(name) for name in matrices(checkpoint)]
    total, largest = sum(map(math.prod, shapes)), max(map(math.prod, shapes))
    vocab = max(max(shape) for shape in shapes)
    width = max(min(shape) for shape in shapes)
    wide = max((max(shape) for shape in shapes if vocab not in shape), default=width)
    audio = "num_mel_bins" in checkpoint.config
    rows = int(checkpoint.config["max_source_positions"]) if audio else SENTENCE
    running = rows * (4 * width + 2 * wide) * STATES * FLOAT + width // HEAD_DIM * rows**2 * ATTENTION * FLOAT
    logits = CHECKED * SENTENCE * vocab * FLOAT
    yield Stage("the float32 model's answers", (total + READING * largest) * FLOAT + running + logits)
    yield Stage("writing the weights", (2 * READING + STACKED) * largest * FLOAT)
    packed = total * (FLOAT if "fp32" in weights else ROUNDED)
    yield Stage("the written graphs", math.ceil(packed) + 2 * running + logits)


def _embedder(checkpoint: Checkpoint, request: Request) -> Iterator[Stage]:
    """Yield the stages of a model for vectors with upper bounds, of which none is left out."""
    shapes = [checkpoint.shape(name) for name in matrices(checkpoint)]
    total, largest = sum(map(math.prod, shapes)), max(map(math.prod, shapes))
    width, rows = max(min(shape) for shape in shapes), min(request.context, PARAGRAPH)
    running = (rows * 12 * width * STATES + width // HEAD_DIM * rows**2 * ATTENTION) * FLOAT
    if request.compare:
        yield Stage("the float32 model's vectors", (total + READING * largest) * FLOAT + running)
    yield Stage("writing the weights", (2 * READING + STACKED) * largest * FLOAT)
    yield Stage("the written graph", total * FLOAT + 2 * running)
