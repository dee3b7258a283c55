"""The forecast that an export prints before it begins: its time, and the differences of the effort `quick`."""

from __future__ import annotations

import math
from dataclasses import replace

from edge.export.facts import mxfp4
from edge.export.facts.tensors import FLOATS, Format
from edge.export.quantize.gptq_efforts import EFFORTS, budget_of, format_of
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import INT8_BLOCK
from edge.export.request.choices import OTHER_FILES, Named, choose_weights, draft_tokens, is_folder
from edge.export.request.expected import Asked, expected
from edge.export.request.export_request import QUICK, ExportRequest
from edge.export.request.timeline import Stages, in_words

EIGHT = Format(8, INT8_BLOCK, symmetric=True)
OF_INT8 = {"Q8_0": Format(8, 32, symmetric=True)}  # types of GGUF files whose integers int8 has, too, and those of keep
OF_KEEP = OF_INT8 | {"Q4_0": Format(4, 32, symmetric=True), "MXFP4": mxfp4.FORM}
WORTH_S, WORTH = 20, 0.5  # quick is named where it saves so many seconds, and this part of them
ALIKE = 0.05  # sizes that differ by less are called the same


def forecast(request: ExportRequest, model: Named) -> tuple[str, Stages] | None:
    """Return a sentence about the time of the export, and its stages; None if no such export was measured."""
    asked, quick = _asked(request, model), _asked(replace(request, effort=QUICK), model)
    if (stages := expected(model, asked)) is None:
        return None
    possible = not request.quick and not (request.limited and quick.weights != "int4")
    others = expected(model, quick) if possible else None
    seconds, less = sum(each for _, each in stages), sum(each for _, each in others or ())
    said = f"This takes {in_words(seconds)}"
    if request.target is not None:
        said += f", and longer for the graphs for {request.target}"
    if others and seconds - less >= WORTH_S and less <= WORTH * seconds:
        *does, last = [f"takes {in_words(less)}", *_differs(model, asked, quick)]
        said += f"; --effort quick {', '.join(does)} and {last}" if does else f"; --effort quick {last}"
    return f"{said}.", stages


def _asked(request: ExportRequest, model: Named) -> Asked:
    named = "int4" if request.decoder_weights == "int4" else request.weights
    weights = choose_weights(
        model, named, quick=request.quick, anew=request.anew, in_place=request.in_place,
        device=request.target is not None,
    )  # fmt: skip
    options = Options(
        request.block_size, None, None, request.effort, request.symmetric, request.bits, request.perplexity
    )
    return Asked(weights, options, request.check, request.collects_candidates, draft_tokens(request, model))


def _differs(model: Named, asked: Asked, quick: Asked) -> list[str]:
    """Return the differences of a bundle of the effort `quick` from the one asked for."""
    found = list[str]()
    sizes = [_bytes(model, each) for each in (asked, quick)]
    ratio = sizes[1] / sizes[0]
    if abs(ratio - 1) > ALIKE:
        found.append(f"makes a bundle that is {ratio:.1f} times as large")
    elif asked.weights == quick.weights == "int4":
        found.append("calibrates on less text")
    if (asked.candidates or asked.drafts) and not (quick.candidates or quick.drafts):
        found.append("prepares nothing for drafts")
    return found


def _bytes(model: Named, asked: Asked) -> float:
    """Return the approximate size of the bundle in bytes."""
    each, folder = ((model.shape(name), model.stored_type(name)) for name in model.names()), is_folder(model)
    return sum(_bits(asked, shape, kind, folder=folder) for shape, kind in each) / 8 + OTHER_FILES


def _bits(asked: Asked, shape: tuple[int, ...], kind: str, *, folder: bool) -> float:
    """Return the bits of a tensor in the bundle. kind: its type in the model's files, which are a folder's or GGUF."""
    options, count = asked.options, math.prod(shape)
    if len(shape) != 2:
        return 32 * count
    if asked.weights == "int4":
        budget = budget_of(options, EFFORTS[options.effort])
        bits = None if budget is None else options.bits or budget.by_default
        return format_of(options).size(*shape) if bits is None else bits * count
    if asked.weights == "keep" and kind in FLOATS and not folder:
        return count * (32 if kind == "F32" else 16)
    return (OF_KEEP if asked.weights == "keep" else OF_INT8).get(kind, EIGHT).size(*shape)
