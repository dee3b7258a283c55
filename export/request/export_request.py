"""What an export is asked for: all options in one object, which is checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from edge.errors import ExportError, InputError
from edge.export.quantize import METHODS

PREFILL_WEIGHTS = ("int8", "none")
QUICK, NORMAL, BEST = EFFORTS = ("quick", "normal", "best")


@dataclass(frozen=True)
class ExportRequest:
    """The options of `edge.export`.

    Args:
        source: a model directory, a .gguf file, a catalog name or a hub id.
        out: the bundle to write; default: NAME.edge in the current folder.
        weights: fp32, fp16, int8, int4, or keep (the own precision of a GGUF or a quantized folder); default: the
            catalog's, else keep for a folder whose integers fit, else int4, or int8 for an encoder-decoder.
        block_size: weights that share one scale; default: the catalog's for its own weights, else the method's.
        symmetric: int4 without zero points, in blocks of 32, for the fast paths of NPUs and GPUs.
        bits: a weight, on average, scales included, for which int4 gives each matrix the blocks and the 4 or 8 bits
            that bring most; default: 4.8, or 5.2 with the effort ``best``; ``quick``, a `block_size` and `symmetric`
            give all the same.
        size: bytes that the bundle may take, instead of `bits`.
        perplexity: relative to the float model's (1.05, say), for which int4 takes as few bits as it can, instead of
            `bits`. It is estimated on the calibration text; `check` measures it on another.
        max_context: maximum tokens the bundle can take; default: the catalog's, else the model's, up to 8,192.
        calibration: a text that calibrated methods run the model on, or the file of one, whose lines an
            encoder-decoder reads one by one; for a speech model the file of a recording. Default: what is built in.
        encoder_weights: of an encoder-decoder's encoder: fp32 or int8; default: as `weights` says (int8 for int4).
        decoder_weights: of its decoder: fp32, int8 or int4; default: as `weights` says.
        prefill_weights: int8 for a decoder's int8 prefill graph (docs/guide/long-prompts.md), or none (default).
        segments: also write the decoder in parts that can be left out: of N layers, or "ffn" for half-layers.
        trees: also write a decoder's graph for steps that verify trees of drafted tokens (docs/guide/speculation.md).
        check: compare the written graphs with the model in float32, and write the figures into the manifest.
        effort: ``normal``; ``quick``, in seconds instead of minutes: a GGUF keeps its own precision, other decoders
            get int8 weights, and nothing is collected for drafts; or ``best``: int4 weights with more
            bits, calibrated on more text and tuned.
        candidates: collect what the drafter recycle begins with, over the calibration text; default: with the effort
            ``best`` alone.
        draft_text: tokens of a decoder's own answers from which a table for drafts is counted
            (docs/guide/speculation.md); 0 for no table; default: as many as take a minute or less.
        force: replace a bundle that stands at `out`.
        name: the model's name in the manifest; default: the checkpoint's.
        memory: maximum private bytes that this process may take, as a number or like ``8GB``. What does not fit is left
            out, which is said: text of the model's own, the tuning of scales, the text to draft from.
        target: also write graphs for a kind of device: ``npu-qualcomm`` (docs/guide/npu.md) or ``cuda``
            (docs/guide/cuda.md).
        target_context: tokens that graphs for NPUs have room for; default: 512, or `max_context` where it is less. Of
            several each has its graphs, and a text moves to the next when it is full.
        target_weights: of these graphs. For NPUs ``int8`` (default), or ``int4``, 4 bits in blocks, of decoders alone;
            for CUDA ``int4`` (default), ``int8`` or ``float16``, which encoder-decoders have.
        target_activations: the type of floats of graphs for CUDA: ``float16`` (default) or ``bfloat16``.
        soc: chips to compile them for, such as ``sm8650``; default: none, and the device compiles them at each start.

    Raises:
        InputError: an option is unknown, out of range, or contradicts another.
        ExportError: there is no file of a calibration.
    """

    source: str | Path
    out: str | Path | None = None
    _: KW_ONLY
    weights: str | None = None
    block_size: int | None = None
    symmetric: bool = False
    bits: float | None = None
    size: int | None = None
    perplexity: float | None = None
    max_context: int | None = None
    calibration: str | Path | None = None
    encoder_weights: str | None = None
    decoder_weights: str | None = None
    prefill_weights: str | None = None
    segments: int | str | None = None
    trees: bool = False
    check: bool = True
    effort: str = NORMAL
    candidates: bool | None = None
    draft_text: int | None = None
    force: bool = False
    name: str | None = None
    memory: int | str | None = None
    target: str | None = None
    target_context: int | Sequence[int] | None = None
    target_weights: str | None = None
    target_activations: str | None = None
    soc: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.weights is not None:
            METHODS.find(self.weights)
        segments = self.segments
        if not (segments is None or segments == "ffn" or (isinstance(segments, int) and segments >= 1)):
            raise InputError(f"Segments of {segments!r} are neither of a number of layers, 1 or more, nor ffn.")
        if self.draft_text is not None and self.draft_text < 0:
            raise InputError(f"The text to draft from cannot have {self.draft_text} tokens; name 0 or more.")
        if self.prefill_weights not in (None, *PREFILL_WEIGHTS):
            kinds = ", ".join(PREFILL_WEIGHTS)
            raise InputError(f"There are no prefill weights {self.prefill_weights!r}; choose one of {kinds}.")
        if self.effort not in EFFORTS:
            raise InputError(f"There is no effort {self.effort!r}; choose one of {', '.join(EFFORTS)}.")
        if sum(limit is not None for limit in (self.bits, self.size, self.perplexity)) > 1:
            raise InputError("--bits, --size and --perplexity say the same in different ways; choose one of them.")
        if self.bits is not None and not 0 < self.bits < math.inf:
            raise InputError(f"--bits {self.bits:g} is no number of bits a weight; name one like 4.8.")
        if self.perplexity is not None and not 1 < self.perplexity < math.inf:
            raise InputError(
                f"--perplexity {self.perplexity:g} is relative to the float model's: name more than 1, like 1.05."
            )
        self.limit  # noqa: B018 - InputError where it is none
        if isinstance(self.calibration, Path) and not self.calibration.is_file():
            raise ExportError(f"The calibration file {self.calibration} cannot be read: there is no such file.")
        if self.weights is not None and self.encoder_weights is not None and self.decoder_weights is not None:
            raise InputError("--encoder-weights and --decoder-weights say all that --weights does; leave it out.")
        of_target = self.target_context, self.target_weights, self.target_activations
        if self.target is None and (self.soc or of_target != (None, None, None)):
            raise InputError(
                "--target-context, --target-weights, --target-activations and --soc are for graphs that --target "
                "writes; name one."
            )

    @property
    def limit(self) -> int | None:
        """The bytes of `memory`; InputError where it is no size."""
        if not isinstance(self.memory, str):
            return self.memory
        from edge.runtime.memory.sizes import parse_size

        return parse_size(self.memory)

    @property
    def quick(self) -> bool:
        return self.effort == QUICK

    @property
    def limited(self) -> bool:
        """Whether something is asked for that int4 alone has."""
        return self.symmetric or (self.bits, self.size, self.perplexity) != (None, None, None)

    @property
    def anew(self) -> bool:
        """Whether something is asked for that integers which fit are not kept for."""
        return self.limited or (self.block_size, self.calibration) != (None, None) or self.effort == BEST

    @property
    def collects_candidates(self) -> bool:
        return not self.quick and (self.effort == BEST if self.candidates is None else self.candidates)
