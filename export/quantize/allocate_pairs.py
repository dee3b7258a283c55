"""Mixed precision of an encoder-decoder's decoder: 8 bits for the matrices whose rounding to 4 bits changes its answers
most.

The method is that of `edge.export.quantize.allocate` for decoders, on inputs with their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from edge.export.facts.tensors import Format, QTensor
from edge.export.quantize.allocate import Read, Unit, choose
from edge.export.quantize.pairs import Pair, Report
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest

EIGHT = Format(8, INT8_BLOCK)
TOKENS = 256  # of answers, at most, that benefits are measured on: their logits are kept


def some(pairs: Sequence[Pair]) -> list[Pair]:
    """Return evenly spaced pairs of the list, with about TOKENS tokens in all."""
    mean = sum(pair.answer.numel() for pair in pairs) / len(pairs)
    return list(pairs[:: max(1, round(len(pairs) * mean / TOKENS))])


@torch.no_grad()
def answers(model: Any, pairs: Sequence[Pair]) -> list[torch.Tensor]:
    """Return the distributions of the next token [S, vocabulary], as logarithms."""
    return [torch.log_softmax(pair.run(model)[0], -1) for pair in pairs]


@torch.no_grad()
def most_sensitive_in_8_bits(
    model: Any,
    pairs: Sequence[Pair],
    wanted: Sequence[torch.Tensor],
    weights: dict[str, QTensor],
    groups: Sequence[tuple[str, ...]],
    bits: float,
    read: Read,
    report: Report,
) -> dict[str, QTensor]:
    """The weights, of which those groups are in 8 bits that bring most, to `bits` bits a weight at most.

    model: computes with `weights`. wanted: what the float model answered the pairs with. groups: matrices that read the
    same input, which a graph may pack together. read: gives float weights.
    """
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())

    def divergence() -> float:
        total = sum(float((p.exp() * (p - q)).sum()) for p, q in zip(wanted, answers(model, pairs), strict=True))
        return total / sum(map(len, wanted))

    whole, units = divergence(), list[Unit]()
    for done, members in enumerate(groups):
        report(done, len(groups), "measuring what 8 bits bring")
        for name in members:
            parameters[name].copy_(torch.tensor(read(name)))
        benefit = whole - divergence()
        for name in members:
            parameters[name].copy_(torch.from_numpy(weights[name].dequantize()))
        shapes = [weights[name].q.shape for name in members]
        own = Format(weights[members[0]].bits, weights[members[0]].block_size)
        costs = {form: sum(form.size(*shape) for shape in shapes) for form in (own, EIGHT)}
        units.append(Unit(tuple(members), {own: max(benefit, 0.0), EIGHT: 0.0}, costs))
    chosen = choose(units, bits * sum(weight.q.size for weight in weights.values())) or {}
    in_8_bits = (name for name, form in chosen.items() if form == EIGHT)
    return weights | {name: round_to_nearest(read(name), *EIGHT[:2], symmetric=False) for name in in_8_bits}
