"""4 bits by GPTQ: layer after layer, each calibrated on what the layers already quantized hand it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from edge.export.bfloat16 import fast_dtype
from edge.export.quantize.base import EMBEDDING, HEAD, Options, QTensor, Weight, matrices, stack_rows
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.decoder import Decoder
from edge.export.quantize.sampled import sampled_windows
from edge.export.quantize.solve import solve
from edge.export.quantize.tune import Teacher, tune
from edge.export.torch_reference import load_torch
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

NAME = "int4"
HELP = "4 bits, calibrated on text"
TRAITS = {"max_kl": 1.0}

INT4_BLOCK = 64
ATTENTION_STRIDE = 4  # of the queries of each head, every fourth is taken
LOOKUP = 0.2  # weight of a tied embedding's lookups: its head costs SmolLM2 four times as much divergence
HEAD_ROWS = 4096  # of the vocabulary, solved at a time: bounds memory


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """4-bit blocks for every matrix, embedding and head included: GPTQ, then scales tuned end to end.

    Peak memory: the model in float32, its integers, and what one layer's solution takes.
    """
    windows = torch.from_numpy(calibration_windows(checkpoint, options.calibration))
    model = load_torch(checkpoint, progress=options.progress)
    own = sampled_windows(model, windows, len(checkpoint.tokenizer.tokens.lead), options.report)
    windows = torch.cat([windows, own])
    decoder = Decoder(model, windows[0])
    with torch.no_grad():
        finals = _finals(decoder, windows, options.report)
        weights = quantize_decoder(decoder, windows, finals, options.block_size or INT4_BLOCK, options.report)
        head = EMBEDDING if decoder.head is decoder.embedding else HEAD  # read again: the decoder's is quantized now
        teacher = Teacher(finals, torch.from_numpy(checkpoint.read(head)).to(fast_dtype()))
    weights = tune(decoder, weights, windows, teacher, options.report)
    return {name: weights[name] for name in matrices(checkpoint)}


def _finals(decoder: Decoder, windows: torch.Tensor, report: Callable[[int, int, str], None]) -> torch.Tensor:
    """What the float model's head reads, [W, S, hidden]."""
    finals = []
    for i, window in enumerate(windows):
        report(i, len(windows), "running the calibration text")
        hidden = decoder.embed(window)
        for layer in range(len(decoder.layers)):
            hidden = decoder.run(layer, hidden)
        finals.append(decoder.finish(hidden))
    return torch.stack(finals)


def quantize_decoder(
    decoder: Decoder,
    windows: torch.Tensor,
    finals: torch.Tensor,
    block_size: int,
    report: Callable[[int, int, str], None],
) -> dict[str, QTensor]:
    """Quantize all matrices of a decoder, and return them by name. Of the decoder's own, only embedding and head are
    left, as the kernels will compute with them.
    """
    names = {id(p): n for n, p in decoder.model.named_parameters()}
    done: dict[str, QTensor] = {}

    def store(weights: list[torch.Tensor], moment: torch.Tensor) -> None:
        for weight, stored in zip(weights, _solve(weights, moment, block_size), strict=True):
            done[names[id(weight)]] = stored

    total = len(decoder.layers) + 1
    report(0, total, "quantizing to 4 bits")
    _vocabulary(decoder, finals, store)
    hidden = [decoder.embed(window) for window in windows]  # each [1, S, hidden]
    for layer in range(len(decoder.layers)):
        report(layer + 1, total, "quantizing to 4 bits")
        for linears, moment in _moments(decoder, layer, hidden):
            store(linears, moment)
        for i, h in enumerate(hidden):
            hidden[i] = decoder.run(layer, h)
        decoder.forget(layer)  # tuning builds them from the integers
        release_freed()
    report(total, total, "quantizing to 4 bits")
    return done


def _vocabulary(
    decoder: Decoder, finals: torch.Tensor, store: Callable[[list[torch.Tensor], torch.Tensor], None]
) -> None:
    """Embedding and head. Where they are one matrix, errors of a lookup count in addition to those of a logit."""
    read = _rows(finals)
    moment = read.T @ read
    plain = torch.eye(len(moment)) * moment.diagonal().mean()
    if decoder.head is decoder.embedding:
        store([decoder.embedding], moment + LOOKUP * plain)
    else:
        store([decoder.embedding], plain)
        store([decoder.head], moment)


def _moments(decoder: Decoder, layer: int, hidden: list[torch.Tensor]) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Second moments [K, K] of what a layer's linears read, with the weights that read the same tensor.

    A value projection is judged by what attention makes of it. Attention averages values over tokens, and so their
    errors: only errors on *averaged* inputs reach the output, hence the moment is that of the inputs under attention.
    On SmolLM2 at block 64 this takes a third off the divergence of the whole model.
    """
    moments: dict[tuple[str, ...], torch.Tensor] = {}
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


def _solve(weights: list[torch.Tensor], moment: torch.Tensor, block_size: int) -> list[QTensor]:
    """Quantize weights that read the same input, and put what the kernels will compute with in their place."""
    stacked = weights[0].data if len(weights) == 1 else torch.cat([w.data for w in weights])
    parts = []
    for rows in stacked.split(HEAD_ROWS):
        solution = solve(rows, moment, 4, block_size)
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
