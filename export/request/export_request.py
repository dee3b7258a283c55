"""The request of an export: all options in one object, which is checked once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from edge.errors import ExportError, InputError
from edge.export.quantize import METHODS, methods_with
from edge.export.targets import KINDS
from edge.runtime.options import Options, Others, any_value, check_together, option, unless_none

PREFILL_WEIGHTS = ("int8", "none")
QUICK, NORMAL, BEST = EFFORTS = ("quick", "normal", "best")


def _segments(value: Any) -> Any:
    if value == "ffn" or (isinstance(value, int) and value >= 1):
        return value
    raise InputError(f"Segments of {value!r} are neither of a number of layers, 1 or more, nor ffn.")


def _draft_text(value: int) -> int:
    if value < 0:
        raise InputError(f"The text to draft from cannot have {value} tokens; name 0 or more.")
    return value


def _prefill_weights(value: str) -> str:
    if value not in PREFILL_WEIGHTS:
        raise InputError(f"There are no prefill weights {value!r}; choose one of {', '.join(PREFILL_WEIGHTS)}.")
    return value


def _effort(value: str) -> str:
    if value not in EFFORTS:
        raise InputError(f"There is no effort {value!r}; choose one of {', '.join(EFFORTS)}.")
    return value


def _bits(value: float) -> float:
    if not 0 < value < math.inf:
        raise InputError(f"--bits {value:g} is no number of bits a weight; name one like 4.8.")
    return value


def _perplexity(value: float) -> float:
    if not 1 < value < math.inf:
        raise InputError(f"--perplexity {value:g} is relative to the float model's: name more than 1, like 1.05.")
    return value


def _calibration(value: Any) -> Any:
    if isinstance(value, Path) and not value.is_file():
        raise ExportError(f"The calibration file {value} cannot be read: there is no such file.")
    return value


def _memory(value: Any) -> Any:
    if isinstance(value, str):
        _size(value)  # InputError where it is none; the request says it as it was asked for
    return value


def _weights(value: str) -> str:
    METHODS.find(value)
    return value


def _size(text: str) -> int:
    from edge.runtime.sizes import parse_size

    return parse_size(text)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, nor several with commas between them") from None


_LIMITS = "--bits, --size and --perplexity say the same in different ways; choose one of them."
_OF_TARGETS = Others(
    ("target",),
    "--target-context, --target-weights, --target-activations and --soc are for graphs that --target writes; name one.",
)


@dataclass(frozen=True)
class ExportRequest(Options):
    """The options of `edge.export`; docs/reference/options.md says what each field means.

    source: a model directory, a .gguf file, a catalog name or a hub id. out: the bundle to write; default: NAME.edge in
    the current folder.

    Raises:
        InputError: an option is unknown, out of range, or contradicts another.
        ExportError: there is no file of a calibration.
    """

    source: str | Path
    out: str | Path | None = None
    _: KW_ONLY
    force: bool = option(
        False, any_value, flag="--force", heading="bundle", help="replace an earlier bundle at the target"
    )
    name: str | None = option(
        None,
        any_value,
        flag="--name NAME",
        heading="bundle",
        help="the model's name in the bundle (default: the source's)",
    )
    max_context: int | None = option(
        None,
        any_value,
        flag="--max-context N",
        heading="bundle",
        help="maximum tokens of prompt and answer (default: the model's, up to 8192)",
        about="maximum tokens that the bundle can take; default: the catalog's, else the model's, up to 8,192",
    )
    check: bool = option(
        True,
        any_value,
        flag="--no-check",
        heading="bundle",
        help="do not compare the bundle with the model in float32",
        about="compare the written graphs with the model in float32, and write the figures into the manifest",
    )
    effort: str = option(
        NORMAL,
        _effort,
        flag="--effort EFFORT",
        heading="bundle",
        help="quick: seconds, 8 bits, nothing for drafts; normal (default): minutes, 4 bits, drafts; best: longer, "
        "more bits where they count, more text; a GGUF file keeps its precision but for best",
        about="`normal`; `quick`, in seconds instead of minutes: decoders other than GGUF files get "
        "int8 weights, and nothing is collected for drafts; or `best`: int4 weights with more bits, calibrated on more "
        "text and tuned",
    )
    memory: int | str | None = option(
        None,
        unless_none(_memory),
        flag="--memory SIZE",
        heading="bundle",
        help="maximum private memory, as in 8GB; what does not fit is left out, and said",
        about="maximum private bytes that this process may take, as a number or like `8GB`. What does not fit is left "
        "out, which is said: text of the model's own, the tuning of scales, the text to draft from",
    )
    weights: str | None = option(
        None,
        unless_none(_weights),
        flag="--weights KIND",
        heading="weights",
        help="%(names)s (default: int4; keep for folders whose integers fit, and for GGUF files, or gguf for large "
        "files and folders in MXFP4; for encoder-decoders int8)",
        names=lambda: "; ".join(f"{method.name}: {method.help}" for method in METHODS.values()),
        about="what matrices are stored as ([export.md](../guide/export.md#which-weights)); default: the catalog's, "
        "else keep for a folder whose integers fit, keep or gguf for a GGUF file or a folder in MXFP4 by its size "
        "([gguf.md](../guide/gguf.md#to-give-away)), else int4, or int8 for an encoder-decoder",
    )
    block_size: int | None = option(
        None,
        any_value,
        flag="--block-size N",
        heading="weights",
        help="weights that share one scale (default: the method's)",
        about="weights that share one scale; default: the catalog's for its own weights, else the method's",
    )
    bits: float | None = option(
        None,
        unless_none(_bits),
        flag="--bits N",
        heading="weights",
        help="int4: each matrix its own blocks and 4 or 8 bits, each expert 2, 4 or 8, N a weight on average (5.2, "
        "say)",
        about="bits a weight, on average, scales included, for which int4 gives each matrix the blocks and the 4 or 8 "
        "bits that bring most; default: 4.8, or 5.2 with the effort `best`; `quick`, a `block_size` and `symmetric` "
        "give all the same. In a model with experts each of these gets 2, 4 or 8 bits, and all else 8; by default all "
        "of them get 4",
        excludes=Others(("size", "perplexity"), _LIMITS),
    )
    size: int | None = option(
        None,
        any_value,
        flag="--size SIZE",
        heading="weights",
        help="the same, for a bundle of at most SIZE (100MB, say)",
        about="bytes that the bundle may take, instead of `bits`",
        read=_size,
        excludes=Others(("bits", "perplexity"), _LIMITS),
    )
    perplexity: float | None = option(
        None,
        unless_none(_perplexity),
        flag="--perplexity R",
        heading="weights",
        help="the same, for at most R times the float model's perplexity (1.05, say), estimated",
        about="perplexity relative to the float model's (1.05, say), for which int4 takes as few bits as it can, "
        "instead of `bits`. It is estimated on the calibration text; `check` measures it on another",
        excludes=Others(("bits", "size"), _LIMITS),
    )
    symmetric: bool = option(
        False,
        any_value,
        flag="--symmetric",
        heading="weights",
        help="int4 without zero points, in blocks of 32: for the fast paths of NPUs and GPUs",
    )
    calibration: str | Path | None = option(
        None,
        unless_none(_calibration),
        flag="--calibration FILE",
        heading="weights",
        help="text, or a speech model's recording, that int4 is calibrated on (default: what is built in)",
        about="a text that calibrated methods run the model on, or the file of one, whose lines an encoder-decoder "
        "reads one by one; for a speech model the file of a recording. Default: what is built in",
        read=Path,
    )
    encoder_weights: str | None = option(
        None,
        any_value,
        flag="--encoder-weights KIND",
        heading="weights",
        help="of an encoder-decoder's encoder: %(names)s",
        names=lambda: ", ".join(methods_with("encoder")),
        about="of an encoder-decoder's encoder: %(names)s; default: as `weights` says (int8 for int4)",
    )
    decoder_weights: str | None = option(
        None,
        any_value,
        flag="--decoder-weights KIND",
        heading="weights",
        help="of an encoder-decoder's decoder: %(names)s",
        names=lambda: ", ".join(methods_with("decoder")),
        about="of its decoder: %(names)s; default: as `weights` says",
    )
    prefill_weights: str | None = option(
        None,
        unless_none(_prefill_weights),
        flag="--prefill-weights KIND",
        heading="weights",
        help="a decoder's second graph, for long prompts: int8, or none (default)",
        about="`int8` for a decoder's int8 prefill graph ([long-prompts.md](../guide/long-prompts.md)), or `none` "
        "(default)",
    )
    target: str | None = option(
        None,
        any_value,
        flag="--target NAME",
        heading="devices",
        help="also write graphs for a kind of device: %(names)s",
        names=lambda: KINDS,
        about="also write graphs for a kind of device: `npu-qualcomm` ([npu.md](../guide/npu.md)) or `cuda` "
        "([cuda.md](../guide/cuda.md))",
    )
    target_weights: str | None = option(
        None,
        any_value,
        flag="--target-weights KIND",
        heading="devices",
        help="npu-qualcomm: int8 (default) or int4; cuda: int4 (default), int8 or float16, which encoder-decoders have",
        about="of these graphs. For NPUs `int8` (default), or `int4`, 4 bits in blocks, of decoders alone; for CUDA "
        "`int4` (default), `int8` or `float16`, which encoder-decoders have",
        needs=_OF_TARGETS,
    )
    target_activations: str | None = option(
        None,
        any_value,
        flag="--target-activations TYPE",
        heading="devices",
        help="cuda: float16 (default), or bfloat16, where float16 is too narrow for a model",
        needs=_OF_TARGETS,
    )
    target_context: int | Sequence[int] | None = option(
        None,
        any_value,
        flag="--target-context N,...",
        heading="devices",
        help="npu: tokens that graphs have room for, one number or several (default: 512; others 128, Whisper 448)",
        about="tokens that graphs for NPUs have room for; default: 512, or `max_context` where it is less. Of several "
        "each has its graphs, and a text moves to the next when it is full",
        read=_numbers,
        needs=_OF_TARGETS,
    )
    soc: Sequence[str] = option(
        (),
        any_value,
        flag="--soc CHIP,...",
        heading="devices",
        help="npu: chips to compile them for, such as sm8650 (default: the device compiles at each start)",
        read=lambda text: text.split(","),
        needs=_OF_TARGETS,
    )
    segments: int | str | None = option(
        None,
        unless_none(_segments),
        flag="--segments N|ffn",
        heading="skipping and drafts",
        help="also write the decoder in segments of N layers, or of half-layers, for skipping",
        about="also write the decoder in parts that can be left out: of N layers, or `ffn` for half-layers",
        read=lambda text: int(text) if text.isdecimal() else text,
    )
    draft_text: int | None = option(
        None,
        unless_none(_draft_text),
        flag="--draft-text N",
        heading="skipping and drafts",
        help="tokens that the model writes to draft from; 0: none (default: as many as take a minute)",
        about="tokens of a decoder's own answers from which a table for drafts is counted "
        "([speculation.md](../guide/speculation.md)); 0: no table; default: as many as take a minute or less",
    )
    candidates: bool | None = option(
        None,
        any_value,
        help="collect what the drafter recycle begins with, over the calibration text; default: with the effort `best` "
        "alone",
    )

    in_place: bool = option(
        False,
        any_value,
        help="with the weights `gguf`, leave them in the .gguf file, which the bundle then reads where it is; "
        "`edge run` makes such bundles",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_together(ExportRequest, vars(self))
        if self.weights is not None and self.encoder_weights is not None and self.decoder_weights is not None:
            raise InputError("--encoder-weights and --decoder-weights say all that --weights does; leave it out.")

    @property
    def limit(self) -> int | None:
        """The bytes of `memory`."""
        return _size(self.memory) if isinstance(self.memory, str) else self.memory

    @property
    def quick(self) -> bool:
        return self.effort == QUICK

    @property
    def limited(self) -> bool:
        """True if an option is asked for that only int4 has."""
        return self.symmetric or (self.bits, self.size, self.perplexity) != (None, None, None)

    @property
    def anew(self) -> bool:
        """True if an option is asked for that needs new integers, even if the folder's can be stored as they are."""
        return self.limited or (self.block_size, self.calibration) != (None, None) or self.effort == BEST

    @property
    def collects_candidates(self) -> bool:
        return not self.quick and (self.effort == BEST if self.candidates is None else self.candidates)
