"""Choosing how much private memory a run may take, so that it stays inside a budget.

What is given up, in the order of least loss:

1. **The int8 prefill graph**: prompts are read in the decode graph, at half the speed.
2. **Step width** down to `KV8_STEP`: a shorter step verifies fewer drafted tokens; the answer is the same.
3. **Bits of the KV cache**: int8 takes a quarter. Plain decoding is 3% slower at a short context and 1.3 times as fast
   at context 2,000, steps of 4 to 8 tokens up to 25% slower. Where our kernels attend it has int8 from the start.
4. **Step width and prompt chunk**, in turns, by `WIDTH_LOSS` and `CHUNK_LOSS`. With steps of one token nothing is
   drafted, and there are no draft tables; those of the bundle go before steps of less than `OWN_TABLES` tokens.
5. **Context**, where none was asked for. All of the above goes first where less than `GOAL` tokens would be left.

Beams are never given up: with fewer of them a model says something else. A further thing to save on is a field of
`Demand`, and a step of `_Choices.ladder` before the context.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8_STEP
from edge.runtime.kernels.graph import attends_to_bytes
from edge.runtime.limits import DEFAULT_CONTEXT, PREFILL_CHUNK
from edge.runtime.memory.footprint import Demand, MemoryModel
from edge.runtime.memory.plan import Plan, needed
from edge.runtime.sizes import parse_size, show_size
from edge.runtime.speculate.drafter import AUTO, OFF, WIDTHS, chosen, table_bytes, widest_draft

GOAL = 1024  # tokens of context
MIN_CONTEXT = 128  # a question and a short answer
MIN_CHUNK = 16
TEXT_START = 4  # tokens that a text decoder begins with: start, language and what is forced
# What answers lose by steps of this size instead of twice as many tokens (Spec-Bench's questions, SmolLM2-135M), and
# prompts by chunks of this size instead of twice as many (SmolLM2-135M, and a model of hidden size 2048; two cores).
WIDTH_LOSS = {8: 0.02, 4: 0.04, 2: 0.08, 1: 0.12}
CHUNK_LOSS = {64: 0.05, 32: 0.10, 16: 0.15}
SPEECH_CHUNK = 64  # tokens of earlier text that a transcription runs at once
OWN_TABLES = 8  # tokens of a step from which on the tables that a bundle brings for drafts are kept
SHOWN = 10**6  # bytes, to which a list of budgets is rounded up
WIDEST = 64  # tokens of a step that `Plan.widest` looks for


def make_plan(
    bundle: Bundle,
    budget: int | str | None = None,
    *,
    context: int | None = None,
    chunk: int | None = None,
    branches: int | None = None,
    present: int = 0,
    speculate: str = OFF,
    prefill: bool = True,
    kv: Sequence[str] = (FLOAT32,),
    like: Demand | None = None,
) -> Plan:
    """Choose the largest context, prompt chunk and step width that fit.

    Args:
        bundle: an opened bundle.
        budget: maximum private bytes of the process, as a number or like ``300MB``; None: no limit.
        context: tokens of prompt and answer that must fit, and of an encoder's text; default: what the budget has room
            for, up to the bundle's; without a budget up to 4,096.
        chunk: maximum prompt tokens of a step; default: 128.
        branches: beams; default: as many as the bundle sets.
        speculate: ``auto``, ``off`` or a drafter's name.
        prefill: whether the run uses the int8 prefill graph of a bundle that has one.
        kv: types that the KV cache may have (`edge.runtime.engine.variant.kv_dtypes`), the preferred one first.
        present: private bytes of this process so far; see `MemoryModel`.
        like: a demand whose context, prompt chunk, prefill graph and KV cache are kept; default: all are chosen.

    Raises:
        InputError: the context is not within the bundle's, or the budget is too small; the smallest is named.
        BundleError: a file of the bundle cannot be read.
    """
    budget = parse_size(budget) if isinstance(budget, str) else budget
    model = MemoryModel(bundle, present)
    choices = _Choices(bundle, context, chunk, branches, speculate, prefill, kv, like)
    if budget is None:
        demand = choices.demand(context or min(DEFAULT_CONTEXT, choices.maximum), next(choices.ladder()))
        return Plan(demand, model.footprint(demand), None, demand.width)

    def fits(demand: Demand) -> bool:
        return needed(model.footprint(demand)) <= budget

    def fitting(sizes: range, rung: Demand) -> int:
        """Number of the sizes of the context that fit, counted from the first one."""
        return bisect.bisect_left(sizes, True, key=lambda n: not fits(choices.demand(n, rung)))

    sizes, count = range(choices.minimum, choices.maximum + 1), 0
    for rung in choices.ladder():
        count = fitting(sizes, rung)
        if count and sizes[count - 1] >= choices.goal:
            break
    if not count:
        smallest = needed(model.footprint(choices.demand(choices.minimum, rung)))
        what = "" if bundle.manifest.speech else f" with {choices.minimum} tokens of context"
        shorter = 0 if context is None else fitting(range(1, context), rung)
        raise InputError(
            f"{bundle.manifest.name}{what} does not fit into {show_size(budget, math.floor)}; the smallest budget that "
            f"would do is {show_size(smallest)}" + (f", and {shorter} tokens would fit." if shorter else ".")
        )
    demand = choices.demand(sizes[count - 1], rung)
    wider = (dataclasses.replace(demand, width=n) for n in range(WIDEST, demand.width, -1))
    widest = next((each.width for each in wider if fits(each)), demand.width)
    return Plan(demand, model.footprint(demand), budget, widest)


def make_exact_plan(bundle: Bundle, budget: int | str | None = None, *, speculate: str = OFF, **given: Any) -> Plan:
    """Choose a plan like `make_plan`, for a decoder whose answers are exact: context, prompt chunk, prefill graph and
    KV cache are what ``auto`` leaves, whatever drafts."""
    common = make_plan(bundle, budget, speculate=AUTO, **given)
    if speculate == AUTO:
        return common
    return make_plan(bundle, budget, speculate=speculate, like=common.demand, **given)


def budgets(bundle: Bundle, **given: Any) -> list[int]:
    """The budgets from which on less is given up, rising, in bytes, from the smallest that does to one for the whole
    context. Arguments and errors are those of `make_plan`.
    """
    model, choices = MemoryModel(bundle), _Choices(bundle, **given)
    rungs = list(choices.ladder())
    demands = [choices.demand(choices.maximum, rungs[0])]
    demands += [choices.demand(choices.goal, rung) for rung in rungs]
    demands += [choices.demand(choices.minimum, rungs[-1])]
    found: list[int] = []
    for demand in demands:  # the preferred first: what needs more is never chosen
        budget = math.ceil(needed(model.footprint(demand)) / SHOWN) * SHOWN
        if not found or budget < found[-1]:
            found.append(budget)
    return found[::-1]


class _Choices:
    """The demands that can be made of one bundle, and which of them are preferred."""

    def __init__(
        self,
        bundle: Bundle,
        context: int | None = None,
        chunk: int | None = None,
        branches: int | None = None,
        speculate: str = OFF,
        prefill: bool = True,
        kv: Sequence[str] = (FLOAT32,),
        like: Demand | None = None,
    ) -> None:
        manifest = bundle.manifest
        self._like = like
        context = context if like is None else like.context
        self._bundle, self._speculate = bundle, chosen(speculate, bundle)
        self._kv = kv
        self._widest_int8 = WIDEST if attends_to_bytes(bundle) else KV8_STEP
        self._prefill = prefill and manifest.prefill is not None and manifest.prefill.known and FLOAT32 in kv
        limit = manifest.context
        if context is not None and not 1 <= context <= limit:
            raise InputError(f"The context must be between 1 and {limit} tokens for this bundle, not {context}.")
        if chunk is not None and chunk < 1:
            raise InputError(f"The prefill chunk must be 1 token or more, not {chunk}.")
        if branches is not None and branches < 1:
            raise InputError(f"The number of beams must be 1 or more, not {branches}.")
        self._manifest, self._chunk = manifest, PREFILL_CHUNK if chunk is None else chunk
        self._branches = branches or (1 if manifest.generation is None else manifest.generation.num_beams)
        if manifest.encoder is not None and self._speculate != OFF:
            self._branches = branches or 1  # drafts are for one text at a time
        if manifest.speech is not None:
            if context not in (None, limit):
                raise InputError(f"{manifest.name} transcribes sound, a window at a time; leave out the context.")
            self._branches = branches or 1  # transcriptions are greedy, whatever the checkpoint's settings say
            context = limit  # of its window's text
        elif manifest.encoder is not None and context is None:
            limit = max(limit, manifest.encoder.max_length)
        self.maximum = limit if context is None else context
        self.minimum = min(MIN_CONTEXT, limit) if context is None else context
        self.goal = min(GOAL, limit) if context is None else context

    def ladder(self) -> Iterator[Demand]:
        """Yield demands that differ in step width, prompt chunk, prefill graph and KV cache, the best first; `demand`
        gives them a context."""
        widths = [self._branches] if self._manifest.text is not None else [1]
        if self._speculate != OFF:
            widest = widest_draft(self._manifest.dims.vocab_size)
            widths = [widest, *(width for width in WIDTHS if width < widest), 1]
        chunks = [self._chunk]
        if self._manifest.encoder is not None:
            chunks = [SPEECH_CHUNK if self._manifest.speech is not None else TEXT_START]
        while self._manifest.encoder is None and chunks[-1] // 2 >= MIN_CHUNK:
            chunks.append(chunks[-1] // 2)
        if (like := self._like) is not None:
            widest = self._widest_int8 if like.kv == INT8 else widths[0]
            yield from (dataclasses.replace(like, width=width) for width in widths if width <= widest)
            return
        pairs = list(_narrowing(widths, chunks))
        both = FLOAT32 in self._kv and INT8 in self._kv
        early = min(KV8_STEP, widths[0])  # floats go before narrower steps and smaller chunks where there are bytes
        if self._prefill:
            yield Demand(0, chunks[0], widths[0], prefill=True)
        if FLOAT32 in self._kv:
            floats = (pair for pair in pairs if not both or (pair[0] >= early and pair[1] == chunks[0]))
            yield from (Demand(0, chunk, width) for width, chunk in floats)
        if INT8 in self._kv:
            yield from (Demand(0, chunk, width, kv=INT8) for width, chunk in pairs if width <= self._widest_int8)

    def demand(self, size: int, rung: Demand) -> Demand:
        """The demand like `rung` for `size` tokens of context and, of an encoder, of text."""
        encoder = self._manifest.encoder
        source = min(size, encoder.max_length) if encoder is not None and encoder.input == "text" else 0
        context = min(size, self._manifest.context)
        drafts = 0
        if self._speculate != OFF and rung.width > 1:
            drafts = table_bytes(self._speculate, self._bundle, context, source, files=rung.width >= OWN_TABLES)
        return dataclasses.replace(rung, context=context, branches=self._branches, source=source, drafts=drafts)


def _narrowing(widths: Sequence[int], chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Step widths and prompt chunks, both falling, from the first of both to the last: what costs least goes next."""
    moves = [(WIDTH_LOSS.get(width, 0.0), width, 0) for width in widths[1:]]
    for chunk in chunks[1:]:  # of one that was not measured, what the next larger one loses
        loss = next((CHUNK_LOSS[size] for size in sorted(CHUNK_LOSS) if size >= chunk), 0.0)
        moves.append((loss, 0, chunk))
    width, chunk = widths[0], chunks[0]
    yield width, chunk
    for _, narrower, smaller in sorted(moves, key=lambda move: move[0]):
        width, chunk = narrower or width, smaller or chunk
        yield width, chunk
