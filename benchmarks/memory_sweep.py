"""Does a run stay under its memory budget, and is its peak what was predicted?

    python benchmarks/memory_sweep.py smollm2.edge translator.edge whisper-base.edge
    python benchmarks/memory_sweep.py smollm2.edge --speculate lookup,recycle,trigram,cascade,self,model=smaller.edge

Every case is a fresh process: it loads a bundle under a budget, from just enough to plenty, and takes a prompt, from a
few tokens to the whole context that the plan allows. Its private memory is watched from outside, each millisecond
(Linux only); the peak that the runtime itself reports stands next to it. The exit status is 0 where every peak was
under its budget and within 10% of the prediction. With `--speculate`, decoders run with each
of these drafters instead, under each budget from which on the planner gives up less and something is drafted; each step
then checks as long a draft as it has room for, and what counts is the budget, as drafters rarely take their most.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from processes import PrivatePeak

from edge.bundle import Bundle, open_bundle
from edge.errors import InputError
from edge.runtime.budget import budgets, make_plan
from edge.runtime.engine.variant import kv_dtypes, runs_whole
from edge.runtime.load import as_asked
from edge.runtime.load_options import LoadOptions
from edge.runtime.memory.footprint import Demand, MemoryModel
from edge.runtime.memory.plan import Plan, needed
from edge.runtime.speculate.drafter import AUTO, parts_of_model

TOLERANCE = 0.1
LOOK_S = 0.001  # between two looks at a process's memory
BUDGETS = (1.0, 1.08, 1.25, 1.6, 2.2)  # times the smallest that would do; the last one holds everything
PROMPTS = (0.0, 0.5, 1.0)  # of what the plan leaves for the prompt
SHORT, ANSWER = 16, 16  # tokens
DRAFTED, DRAFTED_CONTEXT = 200, 1024  # tokens of an answer with a drafter, and of its context
BEAMS, BEAM_CONTEXT = 4, 256
FRAME = 3  # tokens that a format puts around a text
RATE, SECONDS = 16_000, 70  # of sound: three windows, so that earlier text leads the later ones
MB = 1e6


@dataclass(frozen=True)
class Case:
    """One process: what it loads, under which budget, and how many tokens of prompt and answer it takes."""

    bundle: str
    budget: int | None
    prompt: int
    answer: int
    beams: int | None = None
    drafter: str | None = None  # that was asked for
    context: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Private bytes that were predicted for what the process did, and those that it had at its peak: as it was watched,
    and as it reports. rss: all that were resident at their peak."""

    predicted: int
    measured: int
    reported: int
    rss: int
    prompt: int
    answer: int
    context: int
    chunk: int
    drafted: int = 0  # tokens that were

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1

    def held(self, case: Case) -> bool:
        near = abs(self.off) <= TOLERANCE or case.drafter is not None
        return near and (case.budget is None or self.measured <= case.budget)


def main() -> int:
    """Run all cases, print a line for each, and return the exit status."""
    args = _arguments()
    if args.case:
        print(json.dumps(asdict(run(Case(**json.loads(args.case))))))
        return 0
    print("Megabytes. Budget, then the plan: context and prompt chunk; then what ran: prompt and answer.\n")
    print(f"{'bundle':24} {'budget':>7} {'context':>7} {'chunk':>5} {'prompt':>6} {'answer':>6} {'beams':>5} "
          f"{'predicted':>9} {'measured':>8} {'off':>6} {'reported':>8} {'RSS':>6} {'drafts':>6}")  # fmt: skip
    failed = 0
    for path in args.bundles:
        bundle = open_bundle(path)
        for case in drafting(bundle, args.speculate) if args.speculate else cases(bundle, args.quick):
            outcome = measure(case)
            held = outcome.held(case)
            failed += not held
            print(
                f"{path.stem[:24]:24} {'none' if case.budget is None else f'{case.budget / MB:.0f}':>7} "
                f"{outcome.context:7} {outcome.chunk:5} {outcome.prompt:6} {outcome.answer:6} {case.beams or 1:5} "
                f"{outcome.predicted / MB:9.1f} {outcome.measured / MB:8.1f} {outcome.off:+6.1%} "
                f"{outcome.reported / MB:8.1f} {outcome.rss / MB:6.1f} {outcome.drafted:6} {case.drafter or AUTO}"
                f"{'' if held else '  MISSED'}",
                flush=True,
            )
    print(f"\n{'All held.' if not failed else f'{failed} missed.'}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="two budgets and the longest prompts alone")
    parser.add_argument("--speculate", type=lambda text: text.split(","), help="drafters, separated by commas")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def cases(bundle: Bundle, quick: bool) -> Iterator[Case]:
    """Budgets from just enough to plenty, prompts from short to all that fits."""
    name, manifest = str(bundle.root), bundle.manifest
    if manifest.speech is not None:  # a window has one size: its length and context are given
        for beams in (None, BEAMS):
            enough = needed(planned(bundle, branches=beams).footprint)
            for times in BUDGETS[:1] if quick else (BUDGETS[0], BUDGETS[-1]):
                yield Case(name, int(enough * times), 0, 0, beams)
        return
    smallest = smallest_budget(bundle)
    most = needed(planned(bundle, context=manifest.context).footprint)
    several = sorted({min(int(smallest * times), most) for times in BUDGETS} | {most})
    for budget in sorted({several[0], several[-1]}) if quick else several:
        plan = planned(bundle, budget)
        room = plan.demand.context - ANSWER
        if manifest.text is not None:
            for share in PROMPTS[-1:] if quick else PROMPTS:
                length = max(4, int(share * (plan.demand.source - 1)))
                yield Case(name, budget, length, min(plan.demand.context - 4, max(length, ANSWER)))
            continue
        for share in PROMPTS[-1:] if quick else PROMPTS:
            yield Case(name, budget, max(SHORT, int(share * room)), ANSWER)
    if manifest.text is not None:
        budget = needed(planned(bundle, context=min(BEAM_CONTEXT, manifest.context), branches=BEAMS).footprint)
        plan = planned(bundle, budget, branches=BEAMS)
        yield Case(name, budget, plan.demand.source - 1, plan.demand.context - 4, beams=BEAMS)


def drafting(bundle: Bundle, drafters: Sequence[str]) -> Iterator[Case]:
    """Each drafter of a decoder under each budget that has room for drafts, and from which on less is given up."""
    for drafter in drafters if bundle.manifest.encoder is None else ():
        context = min(DRAFTED_CONTEXT, bundle.manifest.context)
        asked: dict[str, Any] = {"context": context, "speculate": drafter, "kv": _kinds(bundle, drafter)}
        for budget in budgets(bundle, **asked):
            if make_plan(bundle, budget, **asked).demand.width > 1:
                prompt = max(SHORT, context // 2)
                answer = min(DRAFTED, context - prompt - ANSWER)
                yield Case(str(bundle.root), budget, prompt, answer, drafter=drafter, context=context)


def _kinds(bundle: Bundle, drafter: str) -> list[str]:
    """What the KV cache may be in."""
    bundle = as_asked(bundle, LoadOptions(speculate=drafter))
    return kv_dtypes(bundle, whole=runs_whole(bundle, parts_of_model(drafter, bundle)))


def smallest_budget(bundle: Bundle) -> int:
    """The smallest budget that the planner accepts, in bytes."""
    low, high = 0, needed(planned(bundle).footprint)
    while high - low > 10_000:
        middle = (low + high) // 2
        try:
            planned(bundle, middle)
            high = middle
        except InputError:
            low = middle
    return high


def measure(case: Case) -> Outcome:
    """Run a case in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = PrivatePeak(process.pid, LOOK_S)
    said, wrong = process.communicate()
    if process.returncode:
        raise SystemExit(f"memory_sweep: {case} ended with status {process.returncode}:\n{wrong}")
    outcome = Outcome(**json.loads(said.splitlines()[-1]))
    return replace(outcome, measured=max(outcome.reported, int(watch.stop() * 2**20)))


def planned(bundle: Bundle, budget: int | None = None, **asked: int | None) -> Plan:
    """The plan that `edge.load` and `edge run` make."""
    return make_plan(bundle, budget, speculate=AUTO, kv=kv_dtypes(bundle), **asked)


def run(case: Case) -> Outcome:
    """Load, answer, and look back at the peak. Runs in a fresh process."""
    import edge
    from edge.runtime.memory.process import held, private_bytes

    bundle = open_bundle(case.bundle)
    present = private_bytes()
    asked: dict[str, Any] = {"context": case.context, "speculate": case.drafter or AUTO}
    model = edge.load(case.bundle, memory=case.budget, beams=case.beams, **asked)
    plan = model.engine.plan or planned(bundle)
    drafted = 0
    if case.drafter is not None:  # whatever is expected of its drafts
        from speculation import fix  # not sooner, because what is imported counts

        fix(model.speculation, case.drafter, plan.demand.width - 1)  # type: ignore[union-attr]
    if isinstance(model, edge.Transcriber):
        prompt, answer, windows = _transcribe(model, case)
        # What was said leads the next window's text; a first window has no such prompt.
        chunk = plan.demand.chunk if windows > 1 else FRAME + 1
        ran = replace(plan.demand, context=min(plan.demand.context, FRAME + answer), chunk=chunk)
    elif isinstance(model, edge.Text2Text):
        prompt, answer = _translate(model, case)
        ran = Demand(answer, plan.demand.chunk, plan.demand.branches, plan.demand.branches, prompt)
    else:
        prompt, answer, drafted = _answer(model, case)
        ran = replace(plan.demand, context=prompt + answer)
    predicted = MemoryModel(bundle, present).footprint(ran).peak
    found = held()
    assert found is not None
    peaks = (found.peak_private, found.peak_private, found.peak_rss)
    return Outcome(predicted, *peaks, prompt, answer, plan.demand.context, plan.demand.chunk, drafted)


def _answer(model: Any, case: Case) -> tuple[int, int, int]:
    """A prompt of real text, cut to its length, and an answer; the last number is that of drafted tokens."""
    from pydoc_data.topics import topics

    from edge import GenerateOptions

    text = ""
    for paragraph in "\n\n".join(topics.values()).split("\n\n"):
        ids = model.text.encode(f"{text}\n\n{paragraph}")
        text = f"{text}\n\n{paragraph}"
        if len(ids) >= case.prompt:
            break
    while len(model.prompt_ids(text, raw=True)) > case.prompt:
        text = text[: -max(1, (len(ids) - case.prompt) // 2)]
    result = model.generate(text, GenerateOptions(max_tokens=case.answer), raw=True)
    return result.prompt_tokens, result.generated_tokens, (result.speculation or {}).get("drafted", 0)


def _translate(model: Any, case: Case) -> tuple[int, int]:
    """A text of its length, and an output that goes on to the number of tokens that was asked for."""
    from edge import Text2TextOptions

    words = ["a", "man", "in", "blue", "cleans", "the", "window", "of", "his", "house", "and", "sees", "a", "dog"]
    text = words[0]
    for count in range(2, case.prompt + 1):
        longer = " ".join((words * count)[:count])
        if len(model.text.encode(longer)) > case.prompt - FRAME:
            break
        text = longer
    options = Text2TextOptions(max_tokens=case.answer, min_tokens=case.answer, beams=case.beams)
    result = model.generate(text, options)
    return result.prompt_tokens, result.generated_tokens


def _transcribe(model: Any, case: Case) -> tuple[int, int, int]:
    """Noise that swells and fades; the last number is that of windows."""
    import numpy as np

    from edge import TranscribeOptions

    time = np.arange(RATE * SECONDS) / RATE
    noise = np.random.default_rng(0).normal(size=len(time))
    sound = (0.1 * noise * (1 + np.sin(5 * time))).astype(np.float32)
    transcript = model.transcribe(sound, TranscribeOptions(temperatures=(0.0,), beams=case.beams or 1))
    windows = math.ceil(transcript.duration * RATE / model.speech.window_samples)
    return 0, sum(len(segment.tokens) for segment in transcript.segments), windows


if __name__ == "__main__":
    sys.exit(main())
