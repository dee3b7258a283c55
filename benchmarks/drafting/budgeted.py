"""This runtime under a memory budget, for conversations: what they take above what is loaded, and how fast they are."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.runtime.memory.process import MIB, private_bytes


@dataclass(frozen=True)
class Talked:
    """A conversation's answers: tokens after each first one, the seconds that these took, and those to the first ones;
    how many drafted tokens were run and held; and private MiB at its end above those when the model was loaded."""

    tokens: int
    decode_s: float
    prefill_s: float
    steps: int
    drafted: int
    accepted: int
    private_mb: float


@dataclass(frozen=True)
class Planned:
    """What the plan chose, and bytes of it by kind while it runs."""

    context: int
    chunk: int
    width: int
    running: dict[str, int]


class _Budgeted:
    def __init__(self, model: Path, threads: int, memory: int | None, context: int | None, speculate: str) -> None:
        import edge
        from edge.runtime.budget import make_plan
        from edge.runtime.memory.footprint import MemoryModel

        self._edge, bundle = edge, edge.open_bundle(model)
        self._model: Any = edge.load(model, threads=threads, context=context, speculate=speculate, memory=memory)
        plan = self._model.engine.plan or make_plan(bundle, None, context=context, speculate=speculate)
        # The int8 prefill graph is a second copy of weights, opened by the first long prompt: it would count.
        self._model.engine.prefill = None
        self._demand = dataclasses.replace(plan.demand, prefill=False)
        self._running = MemoryModel(bundle).footprint(self._demand).running
        # One token: libraries touch code of theirs that has nothing to do with how much is generated.
        self._model.generate("Hello", edge.GenerateOptions(max_tokens=2))
        gc.collect()
        self._loaded = private_bytes()

    def plan(self) -> Planned:
        demand = self._demand
        return Planned(demand.context, demand.chunk, demand.width, self._running)

    def talk(self, turns: list[str], n: int) -> Talked:
        """A new conversation with these turns, answers of up to `n` tokens, greedily."""
        gc.collect()  # the conversation before
        chat, options = self._model.chat(), self._edge.GenerateOptions(max_tokens=n, temperature=0)
        sums = dict.fromkeys(("steps", "drafted", "accepted"), 0)
        tokens, decode_s, prefill_s = 0, 0.0, 0.0
        for turn in turns:
            result = chat.generate(turn, options)
            did = result.speculation or {"steps": result.generated_tokens - 1}
            sums = {key: count + did.get(key, 0) for key, count in sums.items()}
            tokens += result.generated_tokens - 1
            decode_s += (result.generated_tokens - 1) / (result.decode_tokens_per_s or 1)
            prefill_s += (result.ttft_ms or 0) / 1e3
        return Talked(tokens, decode_s, prefill_s, private_mb=(private_bytes() - self._loaded) / MIB, **sums)

    def fill(self, text: str) -> Talked:
        """A conversation whose first turn takes all the context but a few tokens."""
        room = self._demand.context - 64 - len(self._model.prompt_ids("x"))
        ids = self._model.text.encode(text[: 8 * room])[:room]  # characters of a token: 4 to 5
        return self.talk([self._model.text.decode(ids)], 32)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> _Budgeted:
    """`capacity` is the context that is asked for; 0: as much as the budget has room for."""
    return _Budgeted(model, threads, settings["memory"], capacity or None, settings["speculate"])
