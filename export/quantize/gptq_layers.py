"""4 bits by GPTQ: layer after layer, each calibrated on what it reads in the float model, so that one run of the text
does for all. On SmolLM2 the result is as good as on the outputs of layers that are quantized already, for which each
runs three times (docs/lab/export.md)."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from edge.errors import ExportError
from edge.export.facts.tensors import EMBEDDING, HEAD, Format, QTensor, Weight, matrices
from edge.export.quantize.allocate import choose, measure
from edge.export.quantize.base import FORMATS, OWN_TEXT, TUNING, Options
from edge.export.quantize.bfloat16 import fast_dtype
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.decoder import Decoder
from edge.export.quantize.gptq_efforts import (
    ATTENTION_STRIDE,
    EFFORTS,
    LOOKUP,
    OTHERS,
    SIDE_BY_SIDE,
    Budget,
    Effort,
    budget_of,
    format_of,
    one_format,
)
from edge.export.quantize.gptq_quick import calibrated
from edge.export.quantize.kept import Kept, keeping
from edge.export.quantize.sampled import sampled_windows
from edge.export.quantize.solve import ROUNDS, solve
from edge.export.quantize.tune import Teacher, tune
from edge.export.reference.in_torch import load_torch
from edge.export.reference.streamed import StreamedModel
from edge.runtime.memory.process import release_freed
from edge.runtime.providers.cores import usable_cores

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

TRYING = "trying 4 bits"  # the stage before formats are chosen


@dataclass(frozen=True)
class Way:
    """The options for solving matrices. rounds: of descent. formats: of the matrices that do not use `format`."""

    format: Format
    rounds: int = ROUNDS
    formats: Mapping[str, Format] = field(default_factory=dict)


class Group(NamedTuple):
    """Weights that read the same input, and its second moment [K, K]."""

    weights: list[torch.Tensor]
    moment: torch.Tensor


def quantize_layers(checkpoint: Checkpoint, options: Options) -> dict[str, Weight]:
    """Every matrix of the checkpoint by its name, as the effort says.

    Layers are read from the checkpoint one at a time; to write text of its own the model is there as a whole.
    """
    effort = _within(EFFORTS[options.effort], options.left_out)
    windows = torch.from_numpy(calibration_windows(checkpoint, options.calibration)[: effort.windows])
    way = Way(format_of(options), effort.rounds)
    budget = budget_of(options, effort)
    others = [way.format._replace(bits=8)] if one_format(options) else OTHERS
    forms = [way.format, *others]
    key = {"effort": effort, "way": way, "budget": budget, "forms": forms, "text": windows.tolist()}
    with keeping(checkpoint, key) as kept:
        windows = _with_own_text(checkpoint, windows, effort.own, options, kept)
        decoder = Decoder(StreamedModel(checkpoint, copy=True), windows[0])
        head = EMBEDDING if decoder.head is decoder.embedding else HEAD

        def teacher(finals: torch.Tensor) -> Teacher:
            return Teacher(finals, torch.from_numpy(checkpoint.read(head)).to(fast_dtype()))

        if budget is not None:
            trying = partial(_formats, decoder, checkpoint, windows, teacher, forms, budget, options)
            found = zip(matrices(checkpoint), kept.tensor("formats", trying).tolist(), strict=True)
            way = dataclasses.replace(way, formats={name: forms[i] for name, i in found})
        with torch.no_grad():
            weights, finals = quantize_decoder(decoder, windows, way, options.report, kept)
        if effort.passes:
            weights = tune(decoder, weights, windows, teacher(finals), options.report, effort.passes)
    return {name: weights[name] for name in matrices(checkpoint)}


def _within(effort: Effort, left_out: frozenset[str]) -> Effort:
    """The effort without what the memory has no room for."""
    return dataclasses.replace(
        effort,
        own=0 if OWN_TEXT in left_out else effort.own,
        passes=0 if TUNING in left_out else effort.passes,
        bits=None if FORMATS in left_out else effort.bits,
    )


def _with_own_text(
    checkpoint: Checkpoint, windows: torch.Tensor, times: int, options: Options, kept: Kept
) -> torch.Tensor:
    """The windows, and `times` as many of text of the model's own: the whole model is there while it writes."""
    lead, model = len(checkpoint.tokenizer.tokens.lead), None

    def write(seed: int) -> torch.Tensor:
        nonlocal model
        model = model or load_torch(checkpoint, progress=options.progress)

        def report(done: int, total: int, text: str) -> None:
            options.report(seed * total + done, times * total, text)

        return sampled_windows(model, windows, lead, report, seed)

    whole = torch.cat([windows, *(kept.tensor(f"text.{i}", partial(write, i)) for i in range(times))])
    model = None
    gc.collect()  # a model's modules point at each other
    release_freed()
    return whole


def _formats(
    decoder: Decoder,
    checkpoint: Checkpoint,
    windows: torch.Tensor,
    teacher: Callable[[torch.Tensor], Teacher],
    forms: Sequence[Format],
    budget: Budget,
    options: Options,
) -> torch.Tensor:
    """Choose a format for each matrix, by a quick solution in the first of the formats.

    Raises:
        ExportError: they need more bits than were asked for.
    """
    names = matrices(checkpoint)
    sketch = calibrated(checkpoint, options, TRYING)
    weights = {name: sketch.weights[name] for name in names}
    finals = torch.from_numpy(sketch.read) * decoder.head_scale
    units = measure(decoder, weights, windows[: len(finals)], teacher(finals), forms, checkpoint.read, options.report)
    count = sum(weight.q.size for weight in weights.values())
    usual = sum(unit.costs[forms[0]] for unit in units) / count
    bits = max(budget.by_default or 0, usual) if budget.bits is None else budget.bits
    chosen = choose(units, bits * count, budget.enough)
    if chosen is None:
        least = sum(min(unit.costs.values()) for unit in units) / count
        raise ExportError(
            f"int4 takes {least:.2f} bits a weight or more here; name more than {bits:.3g} with --bits, or a larger "
            "--size."
        )
    left = sum(unit.harms[chosen[unit.names[0]]] for unit in units)
    if budget.enough and left > budget.enough:
        raise ExportError(
            f"With 8 bits wherever they help, the perplexity is expected at {math.exp(left):.5f} of the float model's; "
            "name more with --perplexity."
        )
    for name, matrix in ((EMBEDDING, decoder.embedding), (HEAD, decoder.head)):
        if name in names:
            matrix.data = torch.from_numpy(checkpoint.read(name)).clone()  # it is written to, and may be mapped
    return torch.tensor([forms.index(chosen[name]) for name in names])


def quantize_decoder(
    decoder: Decoder,
    windows: torch.Tensor,
    way: Way,
    report: Callable[[int, int, str], None],
    kept: Kept | None = None,
) -> tuple[dict[str, QTensor], torch.Tensor]:
    """Quantize all matrices of a decoder. Returns them by name, and what the float model's head reads of the windows,
    [W, S, hidden]. Of the decoder's own, only embedding and head are left, as the kernels will compute with them.

    kept: gives those that were quantized before, and takes the others.
    """
    parameters = dict(decoder.model.named_parameters())
    names = {id(p): n for n, p in parameters.items()}
    done: dict[str, QTensor] = {}
    keep = kept or Kept()

    def solved(groups: Sequence[Group]) -> dict[str, QTensor]:
        def solve_group(group: Group) -> list[QTensor]:
            form = way.formats.get(names[id(group.weights[0])], way.format)
            return _solve(group.weights, group.moment, form, way.rounds)

        longest_first = sorted(groups, key=lambda group: -group.moment.numel())
        found = {}
        with ThreadPoolExecutor(min(SIDE_BY_SIDE, usable_cores())) as pool:
            for group, parts in zip(longest_first, pool.map(solve_group, longest_first), strict=True):
                found.update({names[id(weight)]: part for weight, part in zip(group.weights, parts, strict=True)})
        release_freed()
        return found

    total = len(decoder.layers) + 1
    hidden = [decoder.embed(window) for window in windows]  # each [1, S, hidden]
    for layer in range(len(decoder.layers)):
        report(layer, total, "quantizing to 4 bits")
        part, groups = f"layer.{layer}", list[Group]()
        decoder.fetch(layer)
        if part in keep:
            hidden = [decoder.run(layer, h) for h in hidden]
        else:
            groups, hidden = _moments(decoder, layer, hidden)
        done.update(keep.weights(part, partial(solved, groups)))
        decoder.forget(layer)  # tuning builds them from the integers
        release_freed()
    finals = torch.stack([decoder.finish(h) for h in hidden])
    report(total - 1, total, "quantizing to 4 bits")
    vocabulary = keep.weights("vocabulary", lambda: solved(_vocabulary(decoder, finals)))
    for name, weight in vocabulary.items():
        parameters[name].data = torch.from_numpy(weight.dequantize())
    report(total, total, "quantizing to 4 bits")
    return done | vocabulary, finals


def _vocabulary(decoder: Decoder, finals: torch.Tensor) -> list[Group]:
    """Embedding and head, with the moments of what they are judged by. Where they are one matrix, errors of a lookup
    count in addition to those of a logit."""
    read = _rows(finals)
    moment = read.T @ read
    plain = torch.eye(len(moment)) * moment.diagonal().mean()
    if decoder.head is decoder.embedding:
        return [Group([decoder.embedding], moment + LOOKUP * plain)]
    return [Group([decoder.embedding], plain), Group([decoder.head], moment)]


def _moments(decoder: Decoder, layer: int, hidden: list[torch.Tensor]) -> tuple[list[Group], list[torch.Tensor]]:
    """The weights of a layer with second moments of what they read; of a value projection's inputs under attention, as
    `gptq_quick.Calibrating.scores` says. And what the layer makes of each of `hidden`."""
    moments: dict[tuple[str, ...], torch.Tensor] = {}
    made = list[torch.Tensor]()
    with decoder.watch(layer) as seen:
        for h in hidden:
            made.append(decoder.run(layer, h))
            readers: dict[tuple[int, bool], list[str]] = {}
            for name, tensor in seen.inputs.items():
                readers.setdefault((id(tensor), name.endswith("v_proj")), []).append(name)
            for (_, value), names in readers.items():
                x, same = _rows(seen.inputs[names[0]]), tuple(names)
                if value and seen.attention is not None:
                    x = _rows(seen.attention[:, ::ATTENTION_STRIDE] @ x)
                moments[same] = moments[same].addmm_(x.T, x) if same in moments else x.T @ x
    release_freed()
    module = decoder.layers[layer]
    return [Group([module.get_parameter(f"{n}.weight") for n in same], each) for same, each in moments.items()], made


def _solve(weights: Sequence[torch.Tensor], moment: torch.Tensor, form: Format, rounds: int) -> list[QTensor]:
    """Quantize weights that read the same input."""
    stacked = weights[0].data if len(weights) == 1 else torch.cat([w.data for w in weights])
    whole = solve(stacked.numpy(), moment.numpy(), form, rounds)
    starts = [0, *accumulate(map(len, weights))]
    return [whole.cut(start, stop) for start, stop in pairwise(starts)]


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])
