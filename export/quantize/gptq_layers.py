"""4 bits by GPTQ: layer after layer, each calibrated on what the layers already quantized hand it."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from edge.errors import ExportError
from edge.export.bfloat16 import fast_dtype
from edge.export.kept import Kept, keeping
from edge.export.memory import FORMATS, OWN_TEXT, TUNING
from edge.export.quantize.allocate import choose, measure
from edge.export.quantize.base import EMBEDDING, HEAD, Format, Options, QTensor, Weight, matrices
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.decoder import Decoder
from edge.export.quantize.gptq import (
    ATTENTION_STRIDE,
    EFFORTS,
    LOOKUP,
    OTHERS,
    Budget,
    Effort,
    budget_of,
    format_of,
    one_format,
)
from edge.export.quantize.gptq_quick import calibrate
from edge.export.quantize.sampled import sampled_windows
from edge.export.quantize.solve import ROUNDS, solve
from edge.export.quantize.tune import Teacher, tune
from edge.export.streamed import StreamedModel
from edge.export.torch_reference import load_torch
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

TRYING = "trying 4 bits"  # the stage before formats are chosen


@dataclass(frozen=True)
class Way:
    """How matrices are solved. rounds: of descent. formats: of those that have another one."""

    format: Format
    rounds: int = ROUNDS
    formats: Mapping[str, Format] = field(default_factory=dict)


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
        with torch.no_grad():
            finals = kept.tensor("finals", lambda: _finals(decoder, windows, options.report))

        def teacher() -> Teacher:
            return Teacher(finals, torch.from_numpy(checkpoint.read(head)).to(fast_dtype()))

        if budget is not None:
            sketch = partial(_formats, decoder, checkpoint, windows, teacher, forms, budget, options)
            found = zip(matrices(checkpoint), kept.tensor("formats", sketch).tolist(), strict=True)
            way = dataclasses.replace(way, formats={name: forms[i] for name, i in found})
        with torch.no_grad():
            weights = quantize_decoder(decoder, windows, finals, way, options.report, kept)
        if effort.passes:
            weights = tune(decoder, weights, windows, teacher(), options.report, effort.passes)
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
    teacher: Callable[[], Teacher],
    forms: Sequence[Format],
    budget: Budget,
    options: Options,
) -> torch.Tensor:
    """Which of the formats each matrix gets, by a quick solution in the first of them.

    Raises:
        ExportError: they take more bits than were asked for.
    """
    names = matrices(checkpoint)
    weights = calibrate(checkpoint, options, TRYING)
    text = windows[: EFFORTS["quick"].windows]
    units = measure(decoder, weights, text, teacher(), forms, checkpoint.read, options.report)
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


def _finals(decoder: Decoder, windows: torch.Tensor, report: Callable[[int, int, str], None]) -> torch.Tensor:
    """What the float model's head reads, [W, S, hidden]."""
    hidden, total = [decoder.embed(window) for window in windows], len(decoder.layers)
    for layer in range(total):
        report(layer, total, "running the calibration text")
        decoder.fetch(layer)
        for i, h in enumerate(hidden):
            hidden[i] = decoder.run(layer, h)
        decoder.forget(layer)
        release_freed()
    return torch.stack([decoder.finish(h) for h in hidden])


def quantize_decoder(
    decoder: Decoder,
    windows: torch.Tensor,
    finals: torch.Tensor,
    way: Way,
    report: Callable[[int, int, str], None],
    kept: Kept | None = None,
) -> dict[str, QTensor]:
    """Quantize all matrices of a decoder, and return them by name. Of the decoder's own, only embedding and head are
    left, as the kernels will compute with them.

    kept: gives those that were quantized before, and takes the others.
    """
    parameters = dict(decoder.model.named_parameters())
    names = {id(p): n for n, p in parameters.items()}
    done: dict[str, QTensor] = {}
    keep = kept or Kept()

    def solved(groups: Iterable[tuple[list[torch.Tensor], torch.Tensor]]) -> dict[str, QTensor]:
        found = {}
        for weights, moment in groups:
            form = way.formats.get(names[id(weights[0])], way.format)
            for weight, stored in zip(weights, _solve(weights, moment, form, way.rounds), strict=True):
                found[names[id(weight)]] = stored
        return found

    def store(part: str, groups: Callable[[], Iterable[tuple[list[torch.Tensor], torch.Tensor]]]) -> None:
        there = part in keep
        found = keep.weights(part, lambda: solved(groups()))
        for name, weight in found.items() if there else ():
            parameters[name].data = torch.from_numpy(weight.dequantize())
        done.update(found)

    total = len(decoder.layers) + 1
    report(0, total, "quantizing to 4 bits")
    store("vocabulary", lambda: _vocabulary(decoder, finals))
    hidden = [decoder.embed(window) for window in windows]  # each [1, S, hidden]
    for layer in range(len(decoder.layers)):
        report(layer + 1, total, "quantizing to 4 bits")
        store(f"layer.{layer}", partial(_moments, decoder, layer, hidden))
        for i, h in enumerate(hidden):
            hidden[i] = decoder.run(layer, h)
        decoder.forget(layer)  # tuning builds them from the integers
        release_freed()
    report(total, total, "quantizing to 4 bits")
    return done


def _vocabulary(decoder: Decoder, finals: torch.Tensor) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Embedding and head, with the moments of what they are judged by. Where they are one matrix, errors of a lookup
    count in addition to those of a logit."""
    read = _rows(finals)
    moment = read.T @ read
    plain = torch.eye(len(moment)) * moment.diagonal().mean()
    if decoder.head is decoder.embedding:
        return [([decoder.embedding], moment + LOOKUP * plain)]
    return [([decoder.embedding], plain), ([decoder.head], moment)]


def _moments(decoder: Decoder, layer: int, hidden: list[torch.Tensor]) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Second moments [K, K] of what a layer's linears read, with the weights that read the same tensor; of a value
    projection's inputs under attention, as `gptq_quick.Calibrating.scores` says."""
    moments: dict[tuple[str, ...], torch.Tensor] = {}
    decoder.fetch(layer)
    with decoder.watch(layer) as seen:
        for h in hidden:
            decoder.run(layer, h)
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
    return [([module.get_parameter(f"{n}.weight") for n in same], moment) for same, moment in moments.items()]


def _solve(weights: list[torch.Tensor], moment: torch.Tensor, form: Format, rounds: int) -> list[QTensor]:
    """Quantize weights that read the same input, and put what the kernels will compute with in their place."""
    stacked = weights[0].data if len(weights) == 1 else torch.cat([w.data for w in weights])
    whole, result, start = solve(stacked.numpy(), moment.numpy(), form, rounds), [], 0
    del stacked
    for weight in weights:
        stored = whole.cut(start, start + len(weight))
        weight.data.copy_(torch.from_numpy(stored.dequantize()))
        result.append(stored)
        start += len(weight)
    release_freed()
    return result


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])
