"""Efforts of 4-bit calibration, and the formats of its matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge.export.facts.tensors import Format
from edge.export.quantize.method import Options

BITS, BLOCK = 4, 64
OTHERS = Format(4, 128), Format(4, 32), Format(8, 64)  # that matrices may get instead, under a budget
SYMMETRIC_BLOCK = 32  # which the fast paths of NPUs and GPUs take
ATTENTION_STRIDE = 4  # of the queries of each head, every fourth is taken
SIDE_BY_SIDE = 2  # groups of a layer's matrices that are solved at a time: more would take more memory
LOOKUP = 0.2  # weight of a tied embedding's lookups: its head costs SmolLM2 four times as much divergence


@dataclass(frozen=True)
class Effort:
    """The work for 4 bits. windows: maximum, of the calibration text; own_text: text that the model generates, as a
    multiple of that; rounds: of descent in each matrix; passes: over all text when scales are tuned; bits: per weight,
    on average, for which each matrix gets a separate format."""

    windows: int
    own_text: int
    rounds: int
    passes: int
    bits: float | None = None


@dataclass(frozen=True)
class Budget:
    """The budget of all matrices. bits: per weight, on average, as asked for; by_default: bits where none are asked
    for, at least those of one format for all; enough: divergence, in nats a token, at which fewer bits suffice."""

    bits: float | None = None
    by_default: float | None = None
    enough: float = 0.0


def one_format(options: Options) -> bool:
    """True if the options ask for one format for all matrices: a block size, or symmetric blocks."""
    return options.block_size is not None or options.symmetric


def budget_of(options: Options, effort: Effort) -> Budget | None:
    """Return the budget of all matrices; None if all get the same format."""
    if options.perplexity is not None:
        return Budget(math.inf, enough=math.log(options.perplexity))
    by_default = None if one_format(options) else effort.bits
    return None if options.bits is None and by_default is None else Budget(options.bits, by_default)


EFFORTS = {
    "quick": Effort(windows=5, own_text=0, rounds=0, passes=0),
    "normal": Effort(windows=16, own_text=1, rounds=2, passes=0, bits=4.8),
    "best": Effort(windows=24, own_text=2, rounds=2, passes=2, bits=5.2),
}


def format_of(options: Options) -> Format:
    """Return the format that all matrices without a separate one have."""
    size = options.block_size or (SYMMETRIC_BLOCK if options.symmetric else BLOCK)
    return Format(BITS, size, options.symmetric)


def in_one_run(options: Options) -> bool:
    """True if one run of the reference in numpy does all the calibration, without Torch."""
    effort = EFFORTS[options.effort]
    return not (effort.own_text or effort.rounds or effort.passes) and budget_of(options, effort) is None
