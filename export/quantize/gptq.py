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
from edge.export.quantize.allocate import Format, choose, measure
from edge.export.quantize.base import EMBEDDING, HEAD, Options, QTensor, Weight, matrices, stack_rows
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.decoder import Decoder
from edge.export.quantize.sampled import sampled_windows
from edge.export.quantize.solve import ROUNDS, solve
from edge.export.quantize.tune import Teacher, tune
from edge.export.streamed import StreamedModel
from edge.export.torch_reference import load_torch
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

NAME = "int4"
HELP = "4 bits, calibrated on text"
TRAITS = {"bits": 4, "calibrated": True, "max_kl": 1.0, "symmetric": True, "budget": True}

BITS, BLOCK = 4, 64
OTHERS = Format(4, 128), Format(4, 32), Format(8, 64)  # that matrices may get instead, under a budget
SYMMETRIC_BLOCK = 32  # which the fast paths of NPUs and GPUs take
ATTENTION_STRIDE = 4  # of the queries of each head, every fourth is taken
LOOKUP = 0.2  # weight of a tied embedding's lookups: its head costs SmolLM2 four times as much divergence
HEAD_ROWS = 4096  # of the vocabulary, solved at a time: bounds memory
TRYING = "trying 4 bits"  # the stage before formats are chosen


@dataclass(frozen=True)
class Effort:
    """How much is done for 4 bits. windows: at most, of the calibration text; own: text of the model's own, as a
    multiple of that; rounds: of descent in each matrix; passes: over all text when scales are tuned; bits: a weight, on
    average, for which each matrix gets a format of its own."""

    windows: int
    own: int
    rounds: int
    passes: int
    bits: float | None = None


@dataclass(frozen=True)
class Budget:
    """What matrices may take. bits: a weight, on average, as asked for; by_default: where nothing is, and at least what
    one format for all takes; enough: divergence, in nats a token, for which fewer bits will do."""

    bits: float | None = None
    by_default: float | None = None
    enough: float = 0.0


def one_format(options: Options) -> bool:
    """Whether blocks are asked for that all matrices have alike."""
    return options.block_size is not None or options.symmetric


def budget_of(options: Options, effort: Effort) -> Budget | None:
    """What matrices may take; None where all get the same format."""
    if options.perplexity is not None:
        return Budget(math.inf, enough=math.log(options.perplexity))
    by_default = None if one_format(options) else effort.bits
    return None if options.bits is None and by_default is None else Budget(options.bits, by_default)


@dataclass(frozen=True)
class Way:
    """How matrices are solved. rounds: of descent. formats: of those that have another one."""

    format: Format
    rounds: int = ROUNDS
    formats: Mapping[str, Format] = field(default_factory=dict)


EFFORTS = {
    "quick": Effort(windows=6, own=0, rounds=0, passes=0),
    "normal": Effort(windows=16, own=1, rounds=2, passes=0, bits=4.8),
    "best": Effort(windows=24, own=2, rounds=2, passes=2, bits=5.2),
}


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """4-bit blocks for every matrix, embedding and head included: GPTQ, then scales tuned end to end. Under a budget
    each matrix has a format of its own, in 4 or 8 bits.

    Layers are read from the checkpoint one at a time; to write text of its own the model is there as a whole.
    """
    effort = _within(EFFORTS[options.effort], options.left_out)
    windows = torch.from_numpy(calibration_windows(checkpoint, options.calibration)[: effort.windows])
    size = options.block_size or (SYMMETRIC_BLOCK if options.symmetric else BLOCK)
    way = Way(Format(BITS, size, options.symmetric), effort.rounds)
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
            sketch = partial(_formats, decoder, checkpoint, windows, finals, teacher, forms, budget, options.report)
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
    finals: torch.Tensor,
    teacher: Callable[[], Teacher],
    forms: Sequence[Format],
    budget: Budget,
    report: Callable[[int, int, str], None],
) -> torch.Tensor:
    """Which of the formats each matrix gets, by a quick solution in the first of them.

    Raises:
        ExportError: they take more bits than were asked for.
    """
    names, quick = matrices(checkpoint), EFFORTS["quick"]
    text, way = windows[: quick.windows], Way(forms[0], quick.rounds)

    def trying(done: int, total: int, _: str) -> None:
        report(done, total, TRYING)

    with torch.no_grad():
        weights = quantize_decoder(decoder, text, finals[: quick.windows], way, trying)
    units = measure(decoder, weights, text, teacher(), forms, checkpoint.read, report)
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
    """Second moments [K, K] of what a layer's linears read, with the weights that read the same tensor.

    A value projection is judged by what attention makes of it. Attention averages values over tokens, and so their
    errors: only errors on *averaged* inputs reach the output, hence the moment is that of the inputs under attention.
    On SmolLM2 at block 64 this takes a third off the divergence of the whole model.
    """
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
    parts = []
    for rows in stacked.split(HEAD_ROWS):
        solution = solve(rows, moment, form.bits, form.block_size, rounds, symmetric=form.symmetric)
        rows.copy_(solution.dequantize())
        parts.append(solution.pack("gptq"))
        del solution
        release_freed()  # else every part of a vocabulary takes new memory: 350 MB in all for one of 49,152 rows
    whole, result, start = stack_rows(parts), [], 0
    assert isinstance(whole, QTensor)
    for weight in weights:
        stop = start + len(weight)
        weight.data.copy_(stacked[start:stop])
        result.append(_cut(whole, start, stop))
        start = stop
    release_freed()
    return result


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _cut(whole: QTensor, start: int, stop: int) -> QTensor:
    """Rows of a matrix."""
    zeros = None if whole.zero_points is None else whole.zero_points[start:stop]
    return dataclasses.replace(whole, q=whole.q[start:stop], scales=whole.scales[start:stop], zero_points=zeros)
