"""The memory of making vectors: how long a text, and how many tokens of a step, fit into a budget."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from edge.bundle import TOKENIZER, Bundle
from edge.embedding_format import EMBEDDER
from edge.errors import InputError
from edge.runtime.kernels.library import map_weights
from edge.runtime.kernels.rows import UNIT
from edge.runtime.memory.footprint import (
    FLOAT,
    GRAPH,
    IMPORTED,
    ROWS,
    SESSION,
    SLACK,
    TO_LOAD,
    TO_RUN,
    packed_bytes,
    tokenizer_bytes,
)
from edge.runtime.memory.plan import reserve
from edge.runtime.sizes import parse_size, show_size

STEP = 512  # tokens of a step, of as many texts as have the same length; more were no faster (two cores, MiniLM)
SHORT = 16  # tokens of the shortest texts that a budget must have room for
# Activations that are there at a time, in floats per token: multiples of the sizes of the first feed-forward product,
# of query, key and value together, and of the hidden size.
FEED_FORWARD, ATTENTION, STREAM = 3, 2, 4
# Where attention keeps the scores of all pairs of tokens, in floats per pair: multiples of the heads, for the scores
# and for a bias that differs by head, as MPNet's, and what a bias of all heads is made of. ModernBERT, whose bias is of
# all heads, took 16 to 18 with 12 of them, for texts of 512 and of 2,048 tokens.
SCORES, PLACES = 2, 4


@dataclass(frozen=True)
class Room:
    """Maximum tokens of a text, and of a step of several. limited: a memory budget has room for no longer text."""

    context: int
    step: int
    limited: bool = False


def room_of(bundle: Bundle, memory: int | str | None, context: int | None, present: int) -> Room:
    """Choose the longest text and the largest step that fit. memory: maximum private bytes; None: no limit. context:
    tokens of a text; default: the bundle's. present: private bytes of this process so far.

    Raises:
        InputError: the context is not within the bundle's, or the budget is too small; the smallest is named.
    """
    most = bundle.manifest.context
    if context is not None and not 1 <= context <= most:
        raise InputError(f"The context must be between 1 and {most} tokens for this bundle, not {context}.")
    longest = context or most
    if memory is None:
        return Room(longest, STEP)
    budget = parse_size(memory) if isinstance(memory, str) else memory
    frame = bundle.manifest.embedding.frame if bundle.manifest.embedding is not None else 0
    needed = _needed(bundle, longest, present)
    shortest = context or min(longest, frame + SHORT)
    if needed(shortest) > budget:
        raise InputError(
            f"{bundle.manifest.name} with texts of {shortest} tokens does not fit into "
            f"{show_size(budget, math.floor)}; the smallest budget that would do is {show_size(needed(shortest))}."
        )
    sizes = range(shortest, max(STEP, longest) + 1)
    most = sizes[bisect.bisect_left(sizes, True, key=lambda tokens: needed(tokens) > budget) - 1]
    return Room(min(longest, most), min(STEP, most), limited=most < longest)


def bytes_of(bundle: Bundle, present: int) -> int:
    """The smallest budget with which nothing is given up. present: as of `room_of`."""
    longest = bundle.manifest.context
    return _needed(bundle, longest, present)(max(STEP, longest))


def _needed(bundle: Bundle, longest: int, present: int) -> Callable[[int], int]:
    """What gives the budget that is needed for steps of so many tokens. longest: tokens of a text."""
    always, loading = _always(bundle, present), _loading(bundle, present)

    def needed(tokens: int) -> int:
        peak = max(loading, always + step_bytes(bundle, tokens, min(tokens, longest)))
        return peak + reserve(peak)

    return needed


def _always(bundle: Bundle, present: int) -> int:
    """Bytes besides those of a step."""
    return _program(present) + TO_RUN + tokenizer_bytes(bundle, bundle.size(TOKENIZER))[0] + _session(bundle)


def _loading(bundle: Bundle, present: int) -> int:
    """Bytes while the session is made."""
    return _program(present) + TO_LOAD + tokenizer_bytes(bundle, bundle.size(TOKENIZER))[1] + _session(bundle)


def _program(present: int) -> int:
    return present if present > IMPORTED + SLACK else IMPORTED


def _session(bundle: Bundle) -> int:
    """Bytes of the session, and of the weights as its kernels keep them."""
    manifest, dims = bundle.manifest, bundle.manifest.dims
    mapped = map_weights()
    whole = not any(size % UNIT for size in (dims.hidden_size, dims.intermediate_size))
    packed = 0
    for group in manifest.groups:
        if not group.name.endswith(("embedding", "norm")):
            ours = mapped and whole and group.method.startswith(ROWS)
            packed += 0 if ours else packed_bytes(group, mapped)
    table = manifest.context * dims.hidden_size * FLOAT
    return SESSION + GRAPH * bundle.size(manifest.graph(EMBEDDER).path) + packed + table


def step_bytes(bundle: Bundle, tokens: int, length: int) -> int:
    """Bytes of the activations of a step of so many tokens, of texts of at most `length`."""
    dims = bundle.manifest.dims
    attention = (dims.num_heads + 2 * dims.num_kv_heads) * dims.head_dim
    each = FEED_FORWARD * dims.intermediate_size + ATTENTION * attention + STREAM * dims.hidden_size
    if bundle.manifest.graph(EMBEDDER).scores:
        each += (SCORES * dims.num_heads + PLACES) * length
    return tokens * each * FLOAT
