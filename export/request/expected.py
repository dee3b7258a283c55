"""Expected time of an export, by its stages: from the shapes of the tensors, the options, and the machine's speed in
products.

The seconds below were measured: docs/lab/export.md says where and how. A stage that nobody measured is not estimated.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from edge.export.quantize import gptq_efforts
from edge.export.quantize.method import Options
from edge.export.request.choices import Named
from edge.export.request.timeline import Stages
from edge.runtime.providers.cores import usable_cores


@dataclass(frozen=True)
class Asked:
    """The options of an export that its time and size depend on.

    weights: the method's name. compare: with the model in float32. candidates: are collected for drafts. drafts: tokens
    that the model writes for them.
    """

    weights: str
    options: Options
    compare: bool = True
    candidates: bool = True
    drafts: int = 0


class Row(NamedTuple):
    """Seconds of a stage. fixed: the same for any model. products: of the measured model, in products, which all cores
    compute; they grow with a model's weights. columns: of the measured model, in work on one core column after column;
    they grow with each matrix's weights times its columns."""

    stage: str
    fixed: float = 0.0
    products: float = 0.0
    columns: float = 0.0


class Measured(NamedTuple):
    """The model whose stages were timed: its weights, and the sum of each matrix's weights times its columns."""

    weights: float
    columns: float


SMOLLM2 = Measured(134.5e6, 8.66e10)
WHISPER = Measured(72.6e6, 1.0)  # whose stages have nothing to do column after column
PRODUCTS, CORES = 130e9, 2  # multiplications and additions a second of that machine, by `speed`, and its cores
PRODUCTS_TIMED = 500  # 10 µs each
DRAFTS = 16_000  # tokens to draft from
EXPERTS = r"\.experts\.|_exps\.|\.block_sparse_moe\."  # in the names of their tensors, in folders and files


def expected(model: Named, asked: Asked) -> Stages | None:
    """Return each stage with its seconds on this machine; None if no such export was measured."""
    if model.embeds:
        return None
    names = [name for name in model.names() if len(model.shape(name)) > 1]
    if any(re.search(EXPERTS, name) for name in names):
        return None
    if model.config.get("is_encoder_decoder"):
        speech, t5 = (
            any(re.search(part, name) for name in names) for part in (r"encoder\.conv1", r"Attention|enc\.blk")
        )
        measured, rows = WHISPER, list(_encoder_decoder(asked, speech=speech, numpy=t5))
    else:
        measured, rows = SMOLLM2, list(_decoder(asked))
    if not rows:
        return None
    shapes = {name: model.shape(name) for name in names}
    weights = sum(map(math.prod, shapes.values())) / measured.weights
    layers = (shape for name, shape in shapes.items() if re.search(r"\.\d+\.", name))
    columns = sum(math.prod(shape) * shape[-1] for shape in layers) / measured.columns
    slower = PRODUCTS / speed()
    alone = slower * usable_cores() / CORES
    return [
        (row.stage, alone * row.fixed + slower * weights * row.products + alone * columns * row.columns)
        for row in rows
    ]  # fmt: skip


@cache
def speed() -> float:
    """Return the multiplications and additions in float32 per second that this machine has for one more program.

    Products that BLAS computes on one core, the fastest of many: other programs interrupt longer ones, and are counted
    by the load.
    """
    a = np.ones((64, 64), np.float32)
    took = []
    for _ in range(PRODUCTS_TIMED):
        start = time.perf_counter()
        a @ a
        took.append(time.perf_counter() - start)
    cores = usable_cores()
    return cores * 2 * len(a) ** 3 / min(took) / crowd(*_load(), cores)


def crowd(load: float, cores: int, own: int) -> float:
    """Return the factor by which work is slower if `load` threads already run on a machine of `cores` cores, of which
    this program uses `own`. All threads get the same share."""
    return max(1.0, (load + own) / cores)


def _load() -> tuple[float, int]:
    """Return the threads that ran or waited for a core in the last minute, and the machine's cores."""
    known = hasattr(os, "getloadavg")  # not on Windows
    return os.getloadavg()[0] if known else 0.0, os.cpu_count() or 1


def _decoder(asked: Asked) -> Iterator[Row]:
    options, quick = asked.options, asked.options.effort == "quick"
    if asked.weights not in ("int4", "int8", "keep"):
        return
    calibrated = asked.weights == "int4"
    in_one_run = calibrated and gptq_efforts.in_one_run(options)
    yield Row("opening the checkpoint", 2 if quick and (in_one_run or not calibrated) else 6)
    if in_one_run:
        yield Row("quantizing to 4 bits", products=24)
    elif quick:
        yield Row("running the reference", products=6)
    elif asked.compare:
        yield Row("running Torch on the check's text", products=3)
    if calibrated and not in_one_run:
        yield from _layers(options)
    yield Row("writing weights", products=3 if quick or calibrated else 9)
    if asked.compare:
        yield Row("checking against the model in float32", products=0.5 if quick else 2)
    if asked.candidates:
        yield Row("collecting candidates for drafts", products=16)
    yield Row("recording golden answers", products=1 if quick else 6)
    if asked.drafts:
        yield Row("writing text to draft from", products=75 * asked.drafts / DRAFTS)
    if not quick:
        yield Row("measuring keys and values", products=2)
    yield Row("checking the KV cache in int8", products=2 if quick else 4)
    yield Row("hashing the bundle", products=0.5)


def _layers(options: Options) -> Iterator[Row]:
    """Yield the stages for 4 bits that are calibrated layer after layer. Windows of text and its multiples are relative
    to those of `normal` in the measured export."""
    effort, normal = gptq_efforts.EFFORTS[options.effort], gptq_efforts.EFFORTS["normal"]
    own = effort.own_text * effort.windows / normal.windows
    text = effort.windows * (1 + effort.own_text) / (normal.windows * 2)
    if effort.own_text:
        yield Row("writing text to calibrate on", products=25 * own)
    if gptq_efforts.budget_of(options, effort) is not None:
        yield Row("trying 4 bits", products=33)
        yield Row("measuring what bits bring", products=29)
    yield Row("quantizing to 4 bits", products=65 * text, columns=46)
    if effort.passes:
        yield Row("tuning scales", products=90 * effort.passes * text)


def _encoder_decoder(asked: Asked, *, speech: bool, numpy: bool) -> Iterator[Row]:
    """Yield the stages for 8 bits; calibrating 4 bits was not timed. numpy: the reference of a quick export is the one
    without Torch."""
    if asked.weights != "int8":
        return
    in_torch = asked.compare and not (numpy and asked.options.effort == "quick")
    yield Row("opening the checkpoint", 5)
    if in_torch:
        yield Row("loading the Torch model", products=1)
        yield Row("running Torch on the check's inputs", fixed=8, products=5)
    elif asked.compare:
        yield Row("running the reference", fixed=1, products=5)
    yield Row("writing weights", fixed=0.5, products=4)
    if asked.compare:
        yield Row("checking against the model in float32", fixed=0.2, products=3 if speech else 1)
    yield Row("recording golden answers", fixed=0.5, products=8 if speech else 4)
    yield Row("hashing the bundle", products=0.3)
