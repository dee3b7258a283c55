"""4 bits by GPTQ, layer after layer.

A decoder is calibrated on what each layer reads in the float model, so that one run of the text does for all. On
SmolLM2 the result is as good as on the outputs of layers that are quantized already, for which each runs three times
(docs/lab/export.md). An encoder-decoder's decoder is calibrated on such outputs, while it reads the model's answers to
some inputs.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from edge.errors import ExportError
from edge.export.facts.progress import Progress
from edge.export.facts.tensors import EMBEDDING, HEAD, Format, QTensor, Weight, matrices
from edge.export.quantize.allocate import bits_of, choose, log_probabilities, measure, most_sensitive_in_8_bits, sample
from edge.export.quantize.answers import answer
from edge.export.quantize.bfloat16 import fast_dtype
from edge.export.quantize.calibration import SpeechInputs, TextInputs, calibration_windows
from edge.export.quantize.calibration_cache import CalibrationCache, open_cache
from edge.export.quantize.calibration_set import AnswerSet, CalibrationSet, Group, TextSet, flat
from edge.export.quantize.encoder_decoder import INT4_BLOCK, of_layers
from edge.export.quantize.gptq_efforts import (
    BITS,
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
from edge.export.quantize.method import FORMATS, OWN_TEXT, TUNING, Options
from edge.export.quantize.sampled import sampled_windows
from edge.export.quantize.scales import Teacher, tune_scales
from edge.export.quantize.solve import ROUNDS, solve
from edge.export.reference.in_torch import load_torch
from edge.export.reference.streamed import StreamedModel
from edge.runtime.memory.process import release_freed
from edge.runtime.providers.cores import usable_cores

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

SKETCHING = "trying 4 bits"  # the stage before formats are chosen
SOLVING = "quantizing to 4 bits"
EXTRA = 0.5  # bits a weight more of an encoder-decoder's decoder, for which some matrices get 8 of them


@dataclass(frozen=True)
class SolveOptions:
    """The options for solving matrices. rounds: of descent. formats: of the matrices that do not use `format`."""

    format: Format
    rounds: int = ROUNDS
    formats: Mapping[str, Format] = field(default_factory=dict)


def quantize_decoder(checkpoint: Checkpoint, options: Options) -> dict[str, Weight]:
    """Every matrix of the checkpoint by its name, as the effort says.

    Layers are read from the checkpoint one at a time; to write text of its own the model is there as a whole.
    """
    effort = _within(EFFORTS[options.effort], options.left_out)
    windows = torch.from_numpy(calibration_windows(checkpoint, options.calibration)[: effort.windows])
    solving = SolveOptions(format_of(options), effort.rounds)
    budget = budget_of(options, effort)
    others = [solving.format._replace(bits=8)] if one_format(options) else OTHERS
    forms = [solving.format, *others]
    key = {"effort": effort, "solving": solving, "budget": budget, "forms": forms, "text": windows.tolist()}
    with open_cache(checkpoint, key) as cache:
        windows = _with_own_text(checkpoint, windows, effort.own_text, options, cache)
        decoder = TextSet(StreamedModel(checkpoint, copy=True), windows)
        head = EMBEDDING if decoder.head is decoder.embedding else HEAD

        def teacher(finals: torch.Tensor) -> Teacher:
            return Teacher(finals, torch.from_numpy(checkpoint.read(head)).to(fast_dtype()))

        if budget is not None:
            trying = partial(_formats, decoder, checkpoint, teacher, forms, budget, options)
            found = zip(matrices(checkpoint), cache.tensor("formats", trying).tolist(), strict=True)
            solving = dataclasses.replace(solving, formats={name: forms[i] for name, i in found})
        with torch.no_grad():
            weights, finals = solve_decoder(decoder, solving, options.report, cache)
        if effort.passes:
            weights = tune_scales(decoder, weights, teacher(finals), options.report, effort.passes)
    return {name: weights[name] for name in matrices(checkpoint)}


def _within(effort: Effort, left_out: frozenset[str]) -> Effort:
    """The effort without what the memory has no room for."""
    return dataclasses.replace(
        effort,
        own_text=0 if OWN_TEXT in left_out else effort.own_text,
        passes=0 if TUNING in left_out else effort.passes,
        bits=None if FORMATS in left_out else effort.bits,
    )


def _with_own_text(
    checkpoint: Checkpoint, windows: torch.Tensor, times: int, options: Options, cache: CalibrationCache
) -> torch.Tensor:
    """The windows, and `times` as many of text of the model's own: the whole model is there while it writes."""
    lead, model = len(checkpoint.tokenizer.tokens.lead), None

    def write(seed: int) -> torch.Tensor:
        nonlocal model
        model = model or load_torch(checkpoint, progress=options.progress)

        def report(done: int, total: int, text: str) -> None:
            options.report(seed * total + done, times * total, text)

        return sampled_windows(model, windows, lead, report, seed)

    whole = torch.cat([windows, *(cache.tensor(f"text.{i}", partial(write, i)) for i in range(times))])
    model = None
    gc.collect()  # a model's modules point at each other
    release_freed()
    return whole


def _formats(
    decoder: TextSet,
    checkpoint: Checkpoint,
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
    sketch = calibrated(checkpoint, options, SKETCHING)
    weights = sketch.weights.in_order(names)
    finals = torch.from_numpy(sketch.read) * decoder.head_scale
    units = measure(decoder, weights, teacher(finals), forms, checkpoint.read, options.report)
    count = sum(math.prod(checkpoint.shape(name)) for name in names)
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


def solve_decoder(
    decoder: TextSet, solving: SolveOptions, report: Progress, cache: CalibrationCache
) -> tuple[dict[str, QTensor], torch.Tensor]:
    """Quantize all matrices of a decoder. Returns them by name, and what the float model's head reads of the windows,
    [W, S, hidden]. Of the decoder's own, only embedding and head are left, as the kernels will compute with them."""
    total = len(decoder.layers) + 1
    weights = solve_layers(decoder, solving, lambda done: report(done, total, SOLVING), cache)
    finals = torch.stack([decoder.finish(h) for h in decoder.hidden])
    report(total - 1, total, SOLVING)
    vocabulary = cache.weights("vocabulary", lambda: _solved(decoder, solving, _vocabulary(decoder, finals)))
    for name, weight in vocabulary.items():
        decoder.parameters[name].data = torch.from_numpy(weight.dequantize())
    report(total, total, SOLVING)
    return weights | vocabulary, finals


@torch.no_grad()
def quantize_encoder_decoder(
    checkpoint: Checkpoint, inputs: TextInputs | SpeechInputs, block_size: int | None, progress: Progress
) -> dict[str, QTensor]:
    """The matrices of the layers of an encoder-decoder's decoder by name, calibrated on its answers to `inputs`.

    Peak memory: the model in float32, what its encoder makes of the inputs, and what one layer's solution takes.
    """
    form = Format(BITS, block_size or INT4_BLOCK)
    with open_cache(checkpoint, {"decoder": form, "inputs": inputs.key}) as cache:
        model = load_torch(checkpoint, progress=progress)
        answers = AnswerSet(model, answer(inputs, model, progress, cache), of_layers(checkpoint))
        examples = sample(answers.examples)
        wanted, total = log_probabilities(model, examples), len(answers.layers)
        solved = solve_layers(answers, SolveOptions(form), lambda done: progress(done, total, SOLVING), cache)
        bits = bits_of(solved) + EXTRA
        found = most_sensitive_in_8_bits(answers, examples, wanted, solved, bits, checkpoint.read, progress)
    del model, answers, examples, wanted
    gc.collect()  # a model's modules point at each other
    release_freed()
    return found


def solve_layers(
    calibration: CalibrationSet, solving: SolveOptions, report: Callable[[int], None], cache: CalibrationCache
) -> dict[str, QTensor]:
    """Quantize the matrices of all layers that are calibrated. Returns them by name.

    report: is told how many layers are done. cache: provides layers that were quantized before, and stores the others.
    """
    weights: dict[str, QTensor] = {}
    calibration.begin()
    for layer in range(len(calibration.layers)):
        report(layer)
        part = f"layer.{layer}"
        groups = [] if part in cache else calibration.groups(layer)
        found = cache.weights(part, partial(_solved, calibration, solving, groups))
        calibration.advance(layer, found)
        weights |= found
        release_freed()
    return weights


def _solved(calibration: CalibrationSet, solving: SolveOptions, groups: Sequence[Group]) -> dict[str, QTensor]:
    """Quantize the weights of all groups, the largest first, some side by side."""

    def solve_group(group: Group) -> list[QTensor]:
        weights = [calibration.parameters[name] for name in group.names]
        return _solve(weights, group.moment, solving.formats.get(group.names[0], solving.format), solving.rounds)

    largest_first = sorted(groups, key=lambda group: -group.moment.numel())
    found: dict[str, QTensor] = {}
    with ThreadPoolExecutor(min(SIDE_BY_SIDE, usable_cores())) as pool:
        for group, parts in zip(largest_first, pool.map(solve_group, largest_first), strict=True):
            found.update(zip(group.names, parts, strict=True))
    release_freed()
    return found


def _vocabulary(decoder: TextSet, finals: torch.Tensor) -> list[Group]:
    """Embedding and head, with the moments of what they are judged by. Where they are one matrix, errors of a lookup
    count in addition to those of a logit."""
    read = flat(finals)
    moment = read.T @ read
    plain = torch.eye(len(moment)) * moment.diagonal().mean()
    if decoder.head is decoder.embedding:
        return [Group((EMBEDDING,), moment + LOOKUP * plain)]
    return [Group((EMBEDDING,), plain), Group((HEAD,), moment)]


def _solve(weights: Sequence[torch.Tensor], moment: torch.Tensor, form: Format, rounds: int) -> list[QTensor]:
    """Quantize weights that read the same input."""
    stacked = weights[0].data if len(weights) == 1 else torch.cat([w.data for w in weights])
    whole = solve(stacked.numpy(), moment.numpy(), form, rounds)
    starts = [0, *accumulate(map(len, weights))]
    return [whole.cut(start, stop) for start, stop in pairwise(starts)]
