"""4 bits for an encoder-decoder's decoder: layer after layer, each calibrated on what the layers already quantized hand
it while they read the model's answers to some inputs."""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from edge.export.facts.progress import Progress
from edge.export.facts.tensors import Format, QTensor
from edge.export.quantize.allocate import bits_of
from edge.export.quantize.allocate_pairs import answers, most_sensitive_in_8_bits, some
from edge.export.quantize.encoder_decoder import INT4_BLOCK, of_layers
from edge.export.quantize.kept import Kept, keeping
from edge.export.quantize.pairs import Material, Pair, PairDecoder, Report
from edge.export.quantize.solve import solve
from edge.export.reference.in_torch import load_torch
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

BITS = 4
EXTRA = 0.5  # bits a weight more, for which some matrices get 8 of them
SHRINKAGE = 0.3  # of the moments towards uncorrelated inputs: calibration is little and never quite what will be read


@torch.no_grad()
def quantize_layers(
    checkpoint: Checkpoint, material: Material, block_size: int | None, progress: Progress
) -> dict[str, QTensor]:
    """The matrices of the decoder's layers by name.

    Peak memory: the model in float32, what its encoder makes of the inputs, and what one layer's solution takes.
    """
    size = block_size or INT4_BLOCK
    with keeping(checkpoint, {"decoder": BITS, "block_size": size, "pairs": material.key}) as kept:
        model = load_torch(checkpoint, progress=progress)
        pairs = material.pairs(model, progress, kept)
        measured = some(pairs)
        wanted = answers(model, measured)
        solved, groups = solve_layers(model, pairs, of_layers(checkpoint), size, progress, kept)
        found = most_sensitive_in_8_bits(
            model, measured, wanted, solved, groups, bits_of(solved) + EXTRA, checkpoint.read, progress
        )
    del model, pairs, measured, wanted
    gc.collect()  # a model's modules point at each other
    release_freed()
    return found


def solve_layers(
    model: Any,
    pairs: Sequence[Pair],
    names: Collection[str],
    block_size: int,
    report: Report,
    kept: Kept,
) -> tuple[dict[str, QTensor], list[tuple[str, ...]]]:
    """Quantize those matrices of a decoder's layers that are in `names`. Return them, and groups of them that read the
    same input. The model's matrices become the values that the kernels compute with."""
    decoder = PairDecoder(model, pairs)
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    done: dict[str, QTensor] = {}
    groups: list[tuple[str, ...]] = []

    def solved(layer: int, readers: Sequence[Sequence[str]]) -> dict[str, QTensor]:
        found = {}
        for members, moment in zip(readers, _moments(decoder, layer, readers), strict=True):
            moment.lerp_(torch.diag(moment.diagonal()), SHRINKAGE)
            for name in members:
                found[name] = solve(parameters[name].numpy(), moment.numpy(), Format(BITS, block_size))
                release_freed()
        return found

    for layer in range(len(decoder.layers)):
        report(layer, len(decoder.layers), "quantizing to 4 bits")
        readers = decoder.readers(layer, names)
        found = kept.weights(f"layer.{layer}", partial(solved, layer, readers))
        for name, weight in found.items():
            parameters[name].copy_(torch.from_numpy(weight.dequantize()))
        decoder.advance(layer)
        done |= found
        groups += readers
    return done, groups


def _moments(decoder: PairDecoder, layer: int, readers: Sequence[Sequence[str]]) -> list[torch.Tensor]:
    """The second moments [K, K] of what each group of a layer's matrices reads."""
    moments: list[torch.Tensor] = []
    with decoder.watch(layer) as inputs:
        for i, _ in enumerate(decoder.run(layer)):
            for place, members in enumerate(readers):
                x = inputs[members[0]][0]  # [S, K]
                if i == 0:
                    moments.append(x.T @ x)
                else:
                    moments[place].addmm_(x.T, x)
    return moments
