"""Mixed precision: a format (bits and block size) for each matrix under a budget, so that the model's answers are
closest to the float model's.

A quick solution in one format shows the effect of each matrix on the answers. Near it the divergence D from the float
model is nearly a quadratic form of the weights' errors, so that half the product of a matrix's error with D's gradient
is the matrix's share of D, and the shares add up to D: one backward pass gives all of them. In another format a share
changes as the error of the matrix's outputs does, which rounding some of its rows shows (that losses add up and go with
the errors of single matrices: Malinovskii et al., 2024, arXiv:2411.17525). Bits then go where each reduces D most.

An encoder-decoder's decoder is small enough to try: D is measured with the float weights of each unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge.export.facts.progress import Progress
from edge.export.facts.tensors import Format, QTensor, packed_with
from edge.export.quantize.calibration_set import AnswerSet, Example, TextSet
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest
from edge.export.quantize.scales import Teacher
from edge.export.quantize.solve import nearest
from edge.runtime.memory.process import release_freed

WINDOWS = 4  # of the text that shares are measured on
_SAMPLED = 256  # rows of a matrix that are rounded to see its error in a format
_ROWS = 128  # of logits computed at a time: bounds memory

EIGHT = Format(8, INT8_BLOCK)
TOKENS = 256  # of an encoder-decoder's answers, about, that D is measured on: their logits stay in memory

Read = Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Unit:
    """Matrices of one format, which a graph packs together. harms: divergence that they cause, in nats a token, and
    costs: bits that they take, both by format."""

    names: tuple[str, ...]
    harms: Mapping[Format, float]
    costs: Mapping[Format, float]


def bits_of(weights: Mapping[str, QTensor]) -> float:
    """Bits a weight, scales and zero points included."""
    sizes = (Format(w.bits, w.block_size, w.zero_points is None).size(*w.q.shape) for w in weights.values())
    return sum(sizes) / sum(weight.q.size for weight in weights.values())


def choose(units: Sequence[Unit], room: float = math.inf, enough: float = 0.0) -> dict[str, Format] | None:
    """A format for each matrix: all in `room` bits with the least harm, or as few bits as bring the harm of all down to
    `enough`. None where there is too little room for any choice.

    Begins with the smallest formats and takes, one by one, the step that saves most for each bit.
    """
    chosen = {unit: min(unit.costs, key=lambda form: (unit.costs[form], unit.harms[form])) for unit in units}
    room -= sum(unit.costs[now] for unit, now in chosen.items())
    if room < 0:
        return None

    def best(unit: Unit) -> tuple[float, Format] | None:
        """The step that saves most for each bit, of those for which there is room; what it saves first."""
        now = chosen[unit]
        more = {form: unit.costs[form] - unit.costs[now] for form in unit.harms}
        saved = {form: unit.harms[now] - harm for form, harm in unit.harms.items()}
        steps = [(saved[form] / bits, form) for form, bits in more.items() if 0 < bits <= room and saved[form] > 0]
        return max(steps, key=itemgetter(0), default=None)

    def waiting(i: int) -> list[tuple[float, int, Format]]:
        found = best(units[i])
        return [] if found is None else [(-found[0], i, found[1])]

    heap = [each for i in range(len(units)) for each in waiting(i)]
    heapify(heap)
    while heap and not (enough and sum(unit.harms[now] for unit, now in chosen.items()) <= enough):
        _, i, after = heappop(heap)
        more = units[i].costs[after] - units[i].costs[chosen[units[i]]]
        if more <= room:  # there was when the step was found
            room -= more
            chosen[units[i]] = after
        for each in waiting(i):
            heappush(heap, each)
    return {name: form for unit, form in chosen.items() for name in unit.names}


def measure(
    decoder: TextSet,
    weights: Mapping[str, QTensor],
    teacher: Teacher,
    formats: Sequence[Format],
    read: Read,
    report: Progress,
) -> list[Unit]:
    """The units of a decoder whose matrices are `weights`, all in the first of the formats, with what each would do in
    every one of them.

    teacher: its answers to the first windows. read: gives float weights. The matrices of the decoder's layers are gone
    afterwards.
    """
    shares, variances = _shares(decoder, weights, teacher, read, report)
    units, names, told = list[Unit](), list(weights), set[str]()
    for name in names:
        if name in told:
            continue
        packed = packed_with(name, names)
        told.update(packed)
        harms, costs = dict.fromkeys(formats, 0.0), dict.fromkeys(formats, 0.0)
        for member in packed:
            w = read(member)
            errors = [_error(w, variances[member].numpy(), f) for f in formats]
            for f, error in zip(formats, errors, strict=True):
                harms[f] += max(shares[member], 0.0) * error / errors[0]
                costs[f] += f.size(*w.shape)
        units.append(Unit(tuple(packed), harms, costs))
    return units


def _error(w: NDArray[np.float32], variances: NDArray[np.float32], form: Format) -> float:
    """Return the error of the outputs of some of a matrix's rows when they are rounded, for inputs with these variances
    [K]."""
    rows = w[:: max(1, len(w) // _SAMPLED)]
    off = nearest(rows, variances, form).dequantize() - rows
    return float((np.square(off) * variances).sum()) + math.ulp(0)


def _shares(
    decoder: TextSet, weights: Mapping[str, QTensor], teacher: Teacher, read: Read, report: Progress
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Each matrix's share of the divergence, in nats a token, and the variances [K] of what it reads."""
    windows = decoder.windows[: min(WINDOWS, len(teacher.finals))]
    names = {id(parameter): name for name, parameter in decoder.parameters.items()}
    decoder.model.requires_grad_(False)

    def put(*matrices: nn.Parameter) -> None:
        for matrix in matrices:
            matrix.data = torch.from_numpy(weights[names[id(matrix)]].dequantize())

    put(decoder.embedding, decoder.head)
    linears = [
        {names[id(module.weight)]: module.weight for module in layer.modules() if isinstance(module, nn.Linear)}
        for layer in decoder.layers
    ]
    tied = decoder.head is decoder.embedding
    total = len(decoder.layers) + 1
    report(0, total, "measuring what bits bring")
    with torch.no_grad():
        states = [torch.cat([decoder.embed(window) for window in windows])]  # what each layer reads, [W, S, hidden]
        for layer, matrices in enumerate(linears):
            put(*matrices.values())
            states.append(torch.cat([decoder.run(layer, state[None]) for state in states[-1]]))
            decoder.forget(layer)
            release_freed()
    last = states.pop().requires_grad_()
    final = torch.stack([decoder.finish(state[None]) for state in last])
    embedding, head = names[id(decoder.embedding)], names[id(decoder.head)]
    by_final, share = _of_head(final.detach(), decoder.head, torch.from_numpy(read(head)), teacher)
    shares, variances = {head: share}, {head: final.detach().square().mean((0, 1))}
    (gradient,) = torch.autograd.grad(final, last, by_final)
    for layer in reversed(range(len(decoder.layers))):
        report(len(decoder.layers) - layer, total, "measuring what bits bring")
        matrices, inputs = linears[layer], states.pop()
        put(*matrices.values())
        decoder.layers[layer].requires_grad_(True)
        errors = {name: matrix.detach() - torch.from_numpy(read(name)) for name, matrix in matrices.items()}
        for i, window in enumerate(inputs):
            state = window[None].requires_grad_()
            with decoder.watch(layer) as inputs_of:
                output = decoder.run(layer, state)
            by_state, *by_matrix = torch.autograd.grad(output, [state, *matrices.values()], gradient[i : i + 1])
            gradient[i] = by_state[0]
            for name, by in zip(matrices, by_matrix, strict=True):
                shares[name] = shares.get(name, 0.0) + float(by.mul_(errors[name]).sum()) / 2
                square = inputs_of.by_weight[name][0].detach().square().mean((0, 1)) / len(windows)
                variances[name] = variances[name] + square if name in variances else square
        decoder.layers[layer].requires_grad_(False)
        decoder.forget(layer)
        release_freed()
    rounded = torch.cat([decoder.embed(window) for window in windows])
    decoder.embedding.data = torch.from_numpy(read(embedding))
    exact = torch.cat([decoder.embed(window) for window in windows])
    shares[embedding] = shares.get(embedding, 0.0) + float((gradient * (rounded - exact)).sum()) / 2
    if not tied:
        variances[embedding] = torch.ones(decoder.embedding.shape[1])
    return shares, variances


@torch.no_grad()
def _of_head(
    final: torch.Tensor, head: torch.Tensor, exact: torch.Tensor, teacher: Teacher
) -> tuple[torch.Tensor, float]:
    """The gradient of the mean divergence from the teacher by `final` [W, S, hidden], and the head's share."""
    rows, wanted = final.reshape(-1, final.shape[-1]), teacher.finals[: len(final)].reshape(-1, final.shape[-1])
    gradient, share = torch.empty_like(rows), 0.0
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        p = torch.softmax((wanted[start : start + _ROWS].to(teacher.head.dtype) @ teacher.head.T).float(), -1)
        logits = part @ head.T
        off = torch.softmax(logits, -1).sub_(p).div_(len(rows))
        gradient[start : start + _ROWS] = off @ head
        share += float(logits.sub_(part @ exact.T).mul_(off).sum()) / 2
    return gradient.view_as(final), share


def sample(examples: Sequence[Example]) -> list[Example]:
    """Return evenly spaced examples of the list, with about TOKENS tokens in all."""
    mean = sum(example.answer.numel() for example in examples) / len(examples)
    return list(examples[:: max(1, round(len(examples) * mean / TOKENS))])


@torch.no_grad()
def log_probabilities(model: Any, examples: Sequence[Example]) -> list[torch.Tensor]:
    """Return the logarithms of a model's distributions of the next token [S, vocabulary]."""
    return [torch.log_softmax(example.run(model)[0], -1) for example in examples]


@torch.no_grad()
def most_sensitive_in_8_bits(
    answers: AnswerSet,
    examples: Sequence[Example],
    wanted: Sequence[torch.Tensor],
    weights: dict[str, QTensor],
    bits: float,
    read: Read,
    report: Progress,
) -> dict[str, QTensor]:
    """The weights, of which those groups are in 8 bits that bring most, to `bits` bits a weight at most.

    answers: all that was calibrated on; the model computes with `weights`. wanted: log probabilities of the float model
    for `examples`. Matrices that read the same input form a group, because a graph may pack them together. read: gives
    float weights.
    """
    model = answers.model

    def divergence() -> float:
        found = log_probabilities(model, examples)
        return sum(float((p.exp() * (p - q)).sum()) for p, q in zip(wanted, found, strict=True)) / sum(map(len, wanted))

    groups = [group for layer in range(len(answers.layers)) for group in answers.readers(layer)]
    whole, units = divergence(), list[Unit]()
    for done, members in enumerate(groups):
        report(done, len(groups), "measuring what 8 bits bring")
        for name in members:
            answers.parameters[name].copy_(torch.tensor(read(name)))
        benefit = whole - divergence()
        for name in members:
            answers.parameters[name].copy_(torch.from_numpy(weights[name].dequantize()))
        shapes = [weights[name].q.shape for name in members]
        now = Format(weights[members[0]].bits, weights[members[0]].block_size)
        costs = {form: sum(form.size(*shape) for shape in shapes) for form in (now, EIGHT)}
        units.append(Unit(members, {now: max(benefit, 0.0), EIGHT: 0.0}, costs))
    chosen = choose(units, bits * sum(weight.q.size for weight in weights.values())) or {}
    in_8_bits = (name for name, form in chosen.items() if form == EIGHT)
    return weights | {name: round_to_nearest(read(name), *EIGHT[:2], symmetric=False) for name in in_8_bits}
