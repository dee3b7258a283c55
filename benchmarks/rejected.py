"""Every drafter on texts of which no draft is accepted, next to plain decoding: no more than 4% may be lost.

    python benchmarks/rejected.py --bundle MODEL.edge [--smaller SMALLER.edge]

Each text begins with words that repeat, so that what looks for repetitions finds some, and goes on with anything but
what is drafted. Plain decoding and each drafter say one text after the other, in turns, in one process; figures are
medians of the rounds' ratios. The drafters are all that there are, but for models that draft, of which one is named.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from report import table

from edge.bundle import Bundle, open_bundle
from edge.errors import EdgeError
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.generate_options import never
from edge.runtime.decode.loop import PLAIN, generate
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine
from edge.runtime.speculate.drafter import DRAFTERS, OFF, runs_units
from edge.runtime.speculate.planner import RISK, STAKE
from edge.runtime.speculate.speculation import AnswerDrafts, Speculation, make_speculation

SELVES = ("self", "self=exit", "self=unified:0.5")
REPEATED, PERIOD = 120, 11  # tokens of the prompt, which come again after so many
ENOUGH = 0.01  # of plain decoding's time, beyond what is promised: as far as medians of a quiet machine are wrong


class Foe:
    """Says anything but what was drafted, on and on like the prompt where it may."""

    def __init__(self) -> None:
        self.proposed: Draft = NOTHING
        self._said = 0

    def __call__(self, logits: Any) -> int:
        self._said += 1
        drafted, self.proposed = self.proposed.tokens[:1], NOTHING
        return next(token for token in itertools.count(100 + self._said % PERIOD) if token not in drafted)


class Form:
    """Plain decoding or a drafter, over an engine."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.speculation: Speculation | None = make_speculation(name, engine)
        self.drafted = 0
        self._foe = Foe()
        if self.speculation is not None:
            self._watch(self.speculation.drafter.propose)

    def _watch(self, propose: Callable[..., Draft]) -> None:
        def proposed(*given: Any) -> Draft:
            self._foe.proposed = propose(*given)
            return self._foe.proposed

        assert self.speculation is not None
        self.speculation.drafter.propose = proposed  # type: ignore[method-assign]

    def seconds(self, tokens: int) -> float:
        """What a text of so many tokens takes after its first one."""
        prompt, cache = [100 + i % PERIOD for i in range(REPEATED)], self.engine.new_cache(REPEATED + tokens + 20)
        self._foe = Foe()
        drafts = PLAIN if self.speculation is None else AnswerDrafts(self.speculation, prompt, tokens, source=prompt)
        ids = np.array(prompt, np.int64)
        said = generate(self.engine, cache, ids, self._answer, chunk=128, interrupted=never, drafts=drafts)
        next(said)
        began = time.perf_counter()
        for _ in itertools.islice(said, tokens):
            pass
        took = time.perf_counter() - began
        if isinstance(drafts, AnswerDrafts):
            self.drafted = drafts.figures.drafted
            assert not drafts.figures.accepted
        return took

    def _answer(self, logits: Any) -> int:
        return self._foe(logits)


def forms(bundle: Bundle, threads: int | None, smaller: Path | None) -> list[Form]:
    """Plain decoding first."""
    context = min(1024, bundle.manifest.context)
    engine = open_engine(bundle, context=context, threads=threads, kv="auto")
    units = open_engine(bundle, context=context, threads=threads, kv="auto", speculate="self")
    names = [name for name in DRAFTERS if name not in ("self", "model")] + [*SELVES]
    names += [f"model={smaller}"] if smaller is not None else []
    return [Form(name, units if runs_units(name) else engine) for name in (OFF, *names)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--smaller", type=Path, help="a smaller bundle with the same tokenizer, to draft")
    parser.add_argument("--tokens", type=int, default=150, help="of each text")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args(argv)
    bundle = open_bundle(given.bundle)
    tried = forms(bundle, given.threads, given.smaller)
    spent: dict[str, list[float]] = {form.name: [] for form in tried}
    for turn in range(given.rounds + 1):
        for form in tried if turn % 2 else tried[::-1]:
            took = form.seconds(given.tokens)
            if turn:  # the first one teaches what steps cost
                spent[form.name].append(took)
    plain, least = spent[OFF], 1 / (1 + RISK + STAKE / given.tokens + ENOUGH)
    print(f"{bundle.manifest.name}: {given.tokens / median(plain):.0f} tokens/s; texts of which no draft is accepted")
    rows, met = [["", "times plain decoding", "quartiles", "tokens drafted"]], True
    for form in tried[1:]:
        ratios = [theirs / ours for theirs, ours in zip(plain, spent[form.name], strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        met &= middle >= least
        rows.append([form.name, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", str(form.drafted)])
    print(table(rows) + f"\nat least {least:.3f} wanted of each: {'met' if met else 'MISSED'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeError as e:
        sys.exit(f"rejected: {e}")
