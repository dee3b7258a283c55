"""Speculative decoding beside plain decoding and beside peers' own drafts, over Spec-Bench's questions.

    python benchmarks/speculation.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl

Figures are tokens per second after the first token. A prompt is read once, and every form of this runtime goes on from
there, in turns, on one engine: all see the same state of the machine. Plain decoding runs one token a step, whatever
that does to the last bits; the other forms are exact, as `edge run` is, or not where their name ends in ~. Several
`--bundle` and `--temperature` are measured one after the other. With `--peer`, each peer is then measured by itself in
turns with `auto`, beside the first bundle, at the fastest of its settings, all in one run. `--tasks` with `--append`
does it in parts. `--check` compares texts instead: exact answers with and without drafts; see docs/lab/speculation.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import IO, TYPE_CHECKING, Any

from decoder_vs_peers import names_of
from drafting import drafting_file
from drafting.answers import Answer, against, form_goals, forms_table, peer_goals, peers_table, rate, summary
from drafting.drafting_engine import PLAIN
from drafting.replay import Setting
from processes import Worker
from questions import TASKS, Question, chosen, read
from report import Goal

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Result
    from edge.runtime.decode.generate_options import GenerateOptions
    from edge.runtime.model import Model

OFF, OURS = "off", "auto"
# A drafter, whether its answers need not be exact, its tokens, a match and a step's width.
FORM = re.compile(r"(.+?)(~)?(?::(\d+)(?:/(\d+))?)?(?:@(\d+))?")
PEERS = {"genai": "onnxruntime-genai", "llamacpp": "llama-cpp-python"}
DRAFTS = 64  # tokens beyond an answer's end: llama-cpp-python drafts there
BLOCK = 12  # questions that a process beside a peer's answers
TRIALS = 6  # questions that a peer's settings are tried with
SAID = 10  # questions between two lines of a check
LOW = 0.97  # times plain decoding below which a question is asked again
FEWEST_TURNS, TURNS, LONG_S = 3, 12, 1.0  # of such a question: at least, at most, and seconds of each form at least
CERTAIN = 0.015  # half the interquartile range of the turns' ratios over the root of their number, to end with
WRITTEN_S = 10  # seconds between two times that figures are written
Asked = tuple[str, int, str]  # task, number and first turn
Peers = list[tuple[str, list[str]]]  # names and settings; no settings: the fastest


@dataclass
class Case:
    """What was measured of one bundle at one temperature: figures of earlier runs, then those of this one."""

    bundle: Path
    temperature: float
    answers: dict[tuple[str, str, int], Answer] = field(default_factory=dict)  # by peer beside it, form and question
    trials: dict[str, dict[str, float]] = field(default_factory=dict)

    def take(self, kept: dict[str, Any]) -> None:
        """What an earlier run wrote."""
        self.trials = kept["trials"]
        for each in kept["answers"]:
            self.add(Answer(**each))

    def add(self, answer: Answer) -> None:
        """One more, in the place of an earlier one to the same question."""
        self.answers[answer.beside, answer.form, answer.question] = answer

    def written(self) -> dict[str, Any]:
        """For later runs and for other programs."""
        answers = list(self.answers.values())
        content = {"bundle": self.bundle.name, "temperature": self.temperature, "trials": self.trials}
        content |= {"rows": summary(answers, forms_of(answers)), "peers": against(answers, OURS)}
        return content | {"answers": [dataclasses.asdict(answer) for answer in answers]}


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    asked = list(chosen(read(args.questions), args.skip, args.count, args.tasks))
    if args.only:
        asked = [each for each in asked if each[1]["question_id"] in args.only]
    if args.check:
        return max(check(args, bundle, asked) for bundle in args.bundles)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "speculation.json"
    cases = [Case(bundle, temperature) for bundle in args.bundles for temperature in args.temperatures]
    kept: dict[tuple[str, float], dict[str, Any]] = {}
    if args.append and path.exists():
        kept = {(each["bundle"], each["temperature"]): each for each in json.loads(path.read_text())["cases"]}
        for case in cases:
            if (case.bundle.name, case.temperature) in kept:
                case.take(kept.pop((case.bundle.name, case.temperature)))
    with (args.out / "speculation.log").open("a") as log:
        for case in cases:
            run, written = Run(args, case, args.peers if case is cases[0] else [], asked, log), time.monotonic()
            for answer in run.measured():
                case.add(answer)
                if time.monotonic() - written > WRITTEN_S:  # what was measured stays, should the run be ended
                    write(path, args, kept.values(), cases)
                    written = time.monotonic()
            write(path, args, kept.values(), cases)
            show(case, args)
    return 0


def write(path: Path, args: argparse.Namespace, kept: Iterable[dict[str, Any]], cases: Iterable[Case]) -> None:
    """All that was measured, earlier runs' other cases first."""
    found = [*kept, *(case.written() for case in cases)]
    path.write_text(json.dumps({"tokens": args.tokens, "cases": found}, indent=1) + "\n")


def forms_of(answers: Iterable[Answer]) -> list[str]:
    """The forms that were compared with each other, plain decoding first."""
    return sorted({a.form for a in answers if not a.beside}, key=lambda form: (form != OFF, form != OURS, form))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, action="append", required=True, dest="bundles", help="may be repeated")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    forms = "compared with plain decoding: auto, drafters, lookup:K for always K tokens, lookup:K/N where N matched, "
    forms += "auto@W for narrower steps; with ~ after the name as with --no-exact"
    parser.add_argument("--forms", default=OURS, help=f"{forms}; several between blanks; default: auto")
    parser.add_argument(
        "--peer",
        type=peer_of,
        action="append",
        default=[],
        dest="peers",
        metavar="NAME[=SETTING;...]",
        help=f"a peer with drafts of its own: {', '.join(PEERS)}; default of its setting: the fastest",
    )
    parser.add_argument(
        "--tasks",
        type=partial(names_of, TASKS),
        default=list(TASKS),
        metavar="NAME,...",
        help="default: all of " + ",".join(TASKS),
    )
    parser.add_argument(
        "--only",
        type=lambda text: {int(each) for each in text.split(",")},
        metavar="NUMBER,...",
        help="of those, the questions with these numbers; with --append to ask some again",
    )
    parser.add_argument("--append", action="store_true", help="keep what --out has of earlier runs, and show all of it")
    parser.add_argument("--count", type=int, help="questions of each task; default: 20, with --quick 3")
    parser.add_argument("--skip", type=int, default=0, help="questions of each task to leave out first")
    parser.add_argument("--tokens", type=int, help="most tokens of an answer; default: 200, with --quick 80")
    parser.add_argument("--context", type=int, default=2048, help="longer prompts are left out")
    repeats = "answers of each form to a question, of which the fastest counts, and for single questions the median; "
    repeats += f"where that is below {LOW:g} times plain, up to {TURNS}, until it is known to about {CERTAIN:g}"
    parser.add_argument("--repeats", type=int, default=1, help=repeats)
    parser.add_argument(
        "--temperature",
        type=float,
        action="append",
        dest="temperatures",
        metavar="T",
        help="may be repeated; default: 0, which is greedy",
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--genai", type=Path, help="the model as onnxruntime-genai's builder writes it by default")
    parser.add_argument("--gguf", type=Path, help="the model as llama.cpp reads it")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--check", action="store_true", help="compare exact texts with and without drafts")
    parser.add_argument("--quick", action="store_true", help="fewer questions and tokens: a minute, less certain")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON")
    args = parser.parse_args(arguments)
    args.count = args.count or (3 if args.quick else 20)
    args.tokens = args.tokens or (80 if args.quick else 200)
    args.temperatures = args.temperatures or [0.0]
    args.forms = [OFF, *args.forms.split()]
    args.models = {"genai": args.genai, "llamacpp": args.gguf}
    for peer, _ in args.peers:
        if args.models[peer] is None:
            parser.error(f"--peer {peer} needs --{'genai' if peer == 'genai' else 'gguf'}")
        if args.temperatures[0]:
            parser.error("peers are compared greedily alone, beside the first bundle: name --temperature 0 first")
    return args


def peer_of(text: str) -> tuple[str, list[str]]:
    """A peer and its settings, none where the fastest is to be found, from `NAME=SETTING;...` or `NAME`."""
    name, _, chosen = text.partition("=")
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"there is no peer {name!r}; there is: {', '.join(PEERS)}")
    known, settings = drafting_file(name).SETTINGS, [each for each in chosen.split(";") if each]
    for each in settings:
        if each not in known:
            raise argparse.ArgumentTypeError(f"{name} has no setting {each!r}; it has: {'; '.join(known)}")
    return name, settings


class Prompted:
    """A prompt that an engine has read, from which answer after answer goes on."""

    def __init__(self, model: Model, ids: list[int], room: int) -> None:
        import numpy as np

        from edge.runtime.decode.generate_options import never
        from edge.runtime.decode.loop import prefill

        self._ids, self._engine = ids, model.engine
        self._cache = model.engine.new_cache(min(model.engine.context, len(ids) + room))
        if len(ids) > 1:
            read = np.asarray(ids[:-1], np.int64)
            prefill(self._engine, self._cache, read, chunk=model.prefill_chunk, interrupted=never)

    def answer(self, model: Model, options: GenerateOptions, exact: bool = True) -> Result:
        """What `model.generate` gives, but for the time to the first token."""
        from edge.runtime.decode.answer import answer, collect

        self._engine.exact = exact
        self._cache.truncate(len(self._ids) - 1)
        pieces = answer(
            model.engine,
            model.text,
            self._cache,
            self._ids,
            options,
            chunk=model.prefill_chunk,
            started_ns=time.perf_counter_ns(),
            speculation=model.speculation,
        )
        return collect(pieces)


class Turns:
    """The forms' answers to one question, time after time. Only the first `repeats` count in rates over all questions,
    as only low ones are asked more often; all turns say how the forms compare.
    """

    def __init__(self, forms: Sequence[str], repeats: int) -> None:
        self.forms = forms  # plain decoding first
        self.repeats = repeats
        self.count = 0
        self._best: dict[str, Answer] = {}
        self._rates = defaultdict[str, list[float]](list)
        self._took = 0.0  # seconds, of the faster form

    def add(self, answers: dict[str, Answer]) -> None:
        """One turn more."""
        self.count += 1
        self._took += min(answer.seconds for answer in answers.values())
        for form, answer in answers.items():
            if answer.tokens:
                self._rates[form].append(rate([answer]))
                best = self._best.setdefault(form, answer)
                if self.count <= self.repeats and rate([answer]) > rate([best]):
                    self._best[form] = answer

    def answers(self) -> Iterator[Answer]:
        """Of each form the fastest that counts, with the rates of all."""
        for form, answer in self._best.items():
            yield dataclasses.replace(answer, turns=list(self._rates[form]))

    def _ratios(self) -> Iterator[list[float]]:
        """Each form's rates over plain decoding's."""
        plain = self._rates[self.forms[0]]
        for form in self.forms[1:]:
            if len(self._rates[form]) == len(plain) > 0:
                yield [ours / theirs for ours, theirs in zip(self._rates[form], plain, strict=True)]

    @property
    def low(self) -> bool:
        """Whether a form may have been slower than plain decoding."""
        return any(median(ratios) < LOW for ratios in self._ratios())

    @property
    def known(self) -> bool:
        """Whether the turns say how each form compares with plain decoding, or there were enough of them."""
        if self.count >= TURNS:
            return True
        if self.count < FEWEST_TURNS or self._took < LONG_S:
            return False
        quarters = (quantiles(ratios, n=4) for ratios in self._ratios())
        return all(high - low <= 2 * CERTAIN * math.sqrt(self.count) for low, _, high in quarters)


class Run:
    """The models in memory, and the questions that fit."""

    def __init__(
        self, args: argparse.Namespace, case: Case, peers: Peers, asked: list[tuple[str, Question]], log: IO[str]
    ) -> None:
        import edge

        self._args, self._case, self._peers, self._log = args, case, peers, log
        self._models = models(args, case.bundle, args.forms)
        for model in self._models.values():
            model.generate("Say hello, and hello again.", edge.GenerateOptions(max_tokens=24))
        self._plain = self._models[OFF]
        self._asked = fitting(args, self._plain, asked)

    def measured(self) -> Iterator[Answer]:
        """The forms' answers, then those beside each of the peers at some of its settings."""
        if len(self._args.forms) > 1:
            yield from self.forms()
        for peer, settings in self._peers:
            yield from (answer for answer in self.beside(peer, settings) if answer.tokens)

    def _answer(self, form: str, number: int, prompted: Prompted) -> Answer:
        import edge

        options = edge.GenerateOptions(max_tokens=self._args.tokens, temperature=self._case.temperature, seed=number)
        task, question, _ = self._asked[number]
        result = prompted.answer(self._models[form], options, exact=form != OFF and "~" not in form)
        tokens = result.generated_tokens - 1
        seconds = tokens / (result.decode_tokens_per_s or 1)
        return Answer(task, question, form, tokens, seconds, result.ttft_ms or 0.0, result.speculation)

    def _prompted(self, number: int) -> Prompted:
        return Prompted(self._plain, self._plain.prompt_ids(self._asked[number][2]), self._args.tokens)

    def forms(self) -> Iterator[Answer]:
        """Every form's answer to every question; then those again that came out low, until their ratio is known."""
        given = [Turns(self._args.forms, self._args.repeats) for _ in self._asked]
        for number, turns in enumerate(given):
            yield from self._ask(number, turns, lambda turns: turns.count >= turns.repeats)
        for number, turns in enumerate(given):
            if turns.low and not turns.known:
                yield from self._ask(number, turns, lambda turns: turns.known)

    def _ask(self, number: int, turns: Turns, enough: Callable[[Turns], bool]) -> Iterator[Answer]:
        """Each form's fastest answer to a question, which is asked in turns until that is enough."""
        prompted = self._prompted(number)
        while not enough(turns):
            order = turns.forms if (number + turns.count) % 2 else turns.forms[::-1]
            turns.add({form: self._answer(form, number, prompted) for form in order})
        yield from turns.answers()

    def beside(self, peer: str, settings: list[str]) -> Iterator[Answer]:
        """A peer's answers at some settings and ours, all in turns, one process at a time and each for a few questions:
        processes of one kind differ by a tenth for as long as they live. Where no setting is named, the fastest with
        drafts is found, and its plain decoding is measured too where that was faster."""
        forms = [OURS, *(settings or self._fastest(peer))]
        for turn, at in enumerate(range(0, len(self._asked), BLOCK)):
            for form in forms[:: -1 if turn % 2 else 1]:
                worker = self._worker(peer, form)
                ends = sorted(self._plain.text.eos)
                worker.ask("answer", ids=self._plain.prompt_ids("Say hello, and hello again."), n=24, ends=ends)
                for number in range(at, min(at + BLOCK, len(self._asked))):
                    yield self._apart(worker, peer, form, number)
                worker.close()

    def _worker(self, peer: str, form: str) -> Worker:
        """A process with the peer at a setting, or with this runtime."""
        python, engine, model = self._args.peer_python, peer, self._args.models[peer]
        if form == OURS:
            python, engine, model = sys.executable, "edge_runtime", self._case.bundle
        request = {"model": str(model), "threads": self._plain.engine.threads}
        request |= {"capacity": self._args.context + DRAFTS, "settings": drafting_file(engine).SETTINGS[form]}
        return Worker(python, f"drafting.{engine}", self._log, request)

    def _apart(self, worker: Worker, peer: str, form: str, number: int) -> Answer:
        """A process's answer to a question."""
        task, question, prompt = self._asked[number]
        ids, ends = self._plain.prompt_ids(prompt), sorted(self._plain.text.eos)
        got = worker.ask("answer", ids=ids, n=self._args.tokens, ends=ends)
        return Answer(task, question, form, got["tokens"], got["decode_s"], 1e3 * got["prefill_s"], None, peer)

    def _fastest(self, peer: str) -> list[str]:
        """The peer's fastest setting with drafts, and plain decoding where that is faster still."""
        rates = {}
        for name in drafting_file(peer).SETTINGS:
            worker = self._worker(peer, name)
            numbers = range(min(TRIALS, len(self._asked)))
            self._apart(worker, peer, name, 0)
            rates[name] = rate([self._apart(worker, peer, name, number) for number in numbers])
            worker.close()
        self._case.trials[peer] = rates
        print(f"{PEERS[peer]}, tokens/s: " + "; ".join(f"{name} {each:.1f}" for name, each in rates.items()))
        best = max((name for name in rates if name != PLAIN), key=lambda name: rates[name])
        return [best, *([PLAIN] if rates[PLAIN] > rates[best] else [])]


def models(args: argparse.Namespace, path: Path, forms: Iterable[str]) -> dict[str, Model]:
    """A model for each form, all over one engine, whose caches have room for exact steps."""
    import edge
    from edge.runtime.load import open_engine
    from edge.runtime.model import Model
    from edge.runtime.text.tokenizer import Text

    bundle = edge.open_bundle(path)
    parts = {form: FORM.fullmatch(form) for form in forms}
    # Segments run in the place of the whole graph where a model drafts with some of its layers.
    own = next((found[1] for found in parts.values() if found and found[1].split("=")[0] == "self"), OFF)
    engine = open_engine(bundle, context=args.context, threads=args.threads, exact=True, speculate=own, kv="auto")
    text, made = Text(bundle), {}
    for form, found in parts.items():
        assert found is not None
        name, _, length, match, width = found.groups()
        made[form] = Model(bundle, engine, text, speculate=name)
        if length:
            Setting(name, int(length), int(match or 1)).decide(made[form].speculation.planner)  # type: ignore[union-attr]
        if width:
            narrow(made[form].speculation, int(width))
    return made


def narrow(speculation: Any, width: int) -> None:
    """Let no step have more than `width` tokens, as under a memory budget."""
    from edge.runtime.speculate.planner import Planner, StepCosts

    old, drafter = speculation.planner, speculation.drafter
    costs, even = (StepCosts(old.costs._curve_of, width, multiple) for multiple in (1, 2))
    speculation.planner = Planner(drafter.priors, costs, width, cost=drafter.cost, even=even)


def fitting(args: argparse.Namespace, model: Model, asked: Iterable[tuple[str, Question]]) -> list[Asked]:
    """Task, number and first turn of the questions whose prompts leave room for an answer."""
    found = [(task, question["question_id"], question["turns"][0]) for task, question in asked]
    return [each for each in found if len(model.prompt_ids(each[2])) + args.tokens <= args.context]


def show(case: Case, args: argparse.Namespace) -> None:
    """The tables, and whether the goals are met."""
    what = "greedy" if case.temperature == 0 else f"temperature {case.temperature:g}"
    print(f"{case.bundle.name}, {what}, up to {args.tokens} tokens\n")
    answers = list(case.answers.values())
    forms, peers, goals = forms_of(answers), against(answers, OURS), list[Goal]()
    if forms:
        rows = summary(answers, forms)
        print(forms_table(rows) + "\n")
        goals += [goal for form in forms if form != OFF for goal in form_goals(rows, form)]
    if peers:
        print(peers_table(peers, OURS) + "\n")
        goals += peer_goals(peers)
    print("\n".join(map(str, goals)) + "\n", flush=True)


def check(args: argparse.Namespace, bundle: Path, asked: list[tuple[str, Question]]) -> int:
    """Compare exact answers with those without drafts, token for token; the status is 1 where one differs."""
    import edge

    forms = models(args, bundle, args.forms)
    options, began = edge.GenerateOptions(max_tokens=args.tokens, temperature=0), time.monotonic()
    compared, accepted, differing = 0, dict.fromkeys(args.forms[1:], 0), []
    fits = fitting(args, forms[OFF], asked)
    for number, (_, question, prompt) in enumerate(fits, 1):
        prompted = Prompted(forms[OFF], forms[OFF].prompt_ids(prompt), args.tokens)
        wanted = prompted.answer(forms[OFF], options).token_ids
        for form in args.forms[1:]:
            result = prompted.answer(forms[form], options)
            compared += 1
            accepted[form] += (result.speculation or {"accepted": 0})["accepted"]
            if result.token_ids != wanted:
                differing.append((form, question))
        if number % SAID == 0 or number == len(fits):
            found = f"{len(differing)} differ: {differing}" if differing else "none differs"
            held = ", ".join(f"{form} {count}" for form, count in accepted.items())
            print(
                f"{number} of {len(asked)} questions, {compared} answers, tokens drafted that held: {held}; "
                f"{time.monotonic() - began:.0f} s: {found}",
                flush=True,
            )
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
