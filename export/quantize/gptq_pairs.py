"""4 bits for an encoder-decoder's decoder: layer after layer, each calibrated on what the layers already quantized hand
it while they read the model's answers to some inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from edge.export.kept import Kept, keeping
from edge.export.quantize.base import Progress, QTensor
from edge.export.quantize.encoder_decoder import INT4_BLOCK, of_layers
from edge.export.quantize.pairs import Material, Pair, PairDecoder, Report
from edge.export.quantize.solve import solve
from edge.export.torch_reference import load_torch
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

BITS = 4
METHOD = "gptq"


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
        return solve_layers(model, pairs, of_layers(checkpoint), size, progress, kept)


def solve_layers(
    model: Any, pairs: Sequence[Pair], names: Collection[str], block_size: int, report: Report, kept: Kept
) -> dict[str, QTensor]:
    """Those matrices of a decoder's layers that are among `names`. The model's own become what the kernels compute
    with."""
    decoder = PairDecoder(model, pairs)
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    paths = {id(parameter): name for name, parameter in parameters.items()}
    done: dict[str, QTensor] = {}

    def solved(layer: int) -> dict[str, QTensor]:
        found = {}
        for members, moment in _moments(decoder, layer, names, paths).items():
            for name in members:
                found[name] = solve(parameters[name].data, moment, BITS, block_size).pack(METHOD)
                release_freed()
        return found

    for layer in range(len(decoder.layers)):
        report(layer, len(decoder.layers), "quantizing to 4 bits")
        found = kept.weights(f"layer.{layer}", partial(solved, layer))
        for name, weight in found.items():
            parameters[name].copy_(torch.from_numpy(weight.dequantize()))
        decoder.advance(layer)
        done |= found
    return done


def _moments(
    decoder: PairDecoder, layer: int, names: Collection[str], paths: dict[int, str]
) -> dict[tuple[str, ...], torch.Tensor]:
    """Second moments [K, K] of what a layer's matrices read, by the names of those that read the same."""
    moments: dict[tuple[str, ...], torch.Tensor] = {}
    module = decoder.layers[layer]
    with decoder.watch(layer) as inputs:
        for _ in decoder.run(layer):
            readers: dict[int, tuple[torch.Tensor, list[str]]] = {}
            for path, read in inputs.items():
                if (name := paths[id(module.get_parameter(f"{path}.weight"))]) in names:
                    readers.setdefault(id(read), (read[0], []))[1].append(name)
            for x, members in readers.values():  # [S, K]
                same = tuple(members)
                moments[same] = moments[same].addmm_(x.T, x) if same in moments else x.T @ x
    return moments
