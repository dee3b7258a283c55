"""`edge run` with a bundle from text to text: one text, line after line, or a file of lines into a file of lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edge.errors import InputError
from edge.text_file import lines_of

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.cli.run import CtrlC
    from edge.runtime.beam import EarlyStopping
    from edge.runtime.text2text import Text2Text, Text2TextOptions

# Arguments that only bundles from text to text take, and options of other bundles that mean nothing to them.
OWN = (
    *("source_language", "target_language", "beams", "n_best", "length_penalty", "early_stopping", "beam_groups"),
    *("diversity", "no_repeat_ngram", "min_tokens", "draft_from_input", "output"),
)
FOREIGN = ("system", "raw", "prefill_chunk", "speculate", "kv", "batch")
NAMES = {"source_language": "--from", "target_language": "--to"}
SPEECH_TOO = ("beams", "output")  # of OWN: what speech bundles take as well
OUTPUT_OF_LINES = "--output takes the answers to a file's lines; name the file with -f, or redirect the output."
CUT = ("length", "context")  # why an answer that might go on ended
EARLY_STOPPING: dict[str, EarlyStopping] = {"true": True, "false": False, "never": "never"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what bundles from text to text take."""
    add = parser.add_argument_group("text to text").add_argument
    kept = "write a transcript, or the answers to a file's lines, to this file; see below"
    add("--output", metavar="FILE", type=Path, help=kept)
    source = "of a multilingual model: the text's language, such as en or eng_Latn"
    add("--from", "--source-language", dest="source_language", metavar="CODE", help=source)
    target = "of a multilingual model: the language to translate into, such as de, deu_Latn or deu"
    add("--to", "--target-language", dest="target_language", metavar="CODE", help=target)
    add("--beams", metavar="N", type=int, help="texts pursued at a time; 1: greedy (default: the bundle's)")
    add("--n-best", metavar="N", type=int, help="print the N best texts of the beams, each behind its score")
    penalty = "above 0 favours longer texts among the beams (default: the bundle's)"
    add("--length-penalty", metavar="P", type=float, help=penalty)
    stopping = "true: end with as many whole texts as beams; false; or never before nothing better can come"
    add("--early-stopping", metavar="WHEN", choices=tuple(EARLY_STOPPING), help=stopping)
    add("--beam-groups", metavar="N", type=int, help="split the beams into N groups with texts of their own")
    add("--diversity", metavar="D", type=float, help="how far the groups are kept apart, for example 0.5")
    ngram = "no run of N tokens occurs twice; 0: no such rule (default: the bundle's)"
    add("--no-repeat-ngram", metavar="N", type=int, help=ngram)
    add("--min-tokens", metavar="N", type=int, help="fewest tokens to generate")
    draft = "sooner done where output resembles input (corrections): the input is verified as a draft of the output"
    add("--draft-from-input", action="store_true", help=draft)


def check_no_text2text(bundle: Bundle, args: argparse.Namespace, *, also: tuple[str, ...] = ()) -> None:
    """Raise InputError where a bundle of another kind is given one of `OWN`, those of `also` left out."""
    for name in OWN:
        if name not in also and _given(args, name):
            option = NAMES.get(name, f"--{name.replace('_', '-')}")
            raise InputError(f"{bundle.root} is no bundle from text to text, and {option} means nothing to it.")


def _given(args: argparse.Namespace, name: str) -> bool:
    """Whether an option was given, 0 among others, which equals False."""
    return getattr(args, name) is not None and getattr(args, name) is not False


def run_text2text(args: argparse.Namespace, bundle: Bundle) -> int:
    """Answer what the arguments of `edge run` ask an opened bundle from text to text, and return the exit status."""
    from edge.cli.run import INTERRUPTED, CtrlC

    for name in FOREIGN:
        if _given(args, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{args.bundle} turns one text into another; {option} means nothing to it.")
    with CtrlC() as interrupted:
        asked = _asked(args)
        at_a_time = 1 if asked is None or isinstance(asked, str) else _at_a_time(args, asked)
        model, options = _load(args, bundle, interrupted, args.threads if at_a_time == 1 else 1)
        if isinstance(asked, str):
            _one(model, asked, options, args)
        elif asked is not None:
            from edge.cli.lines import run_lines

            return run_lines(model, asked, options, args, interrupted, at_a_time)
        elif not sys.stdin.isatty():
            _pipe(model, options, args, interrupted)
    if asked is None and sys.stdin.isatty():
        _dialogue(model, options, args, interrupted)
        return 0
    return INTERRUPTED if interrupted() else 0


def _asked(args: argparse.Namespace) -> str | list[str] | None:
    """One text, the lines of a file, or None where lines come one by one from standard input."""
    from edge.cli.run import read_prompt

    if args.file is not None:
        text = read_prompt(args.prompt, args.file)  # refuses two prompts
        return lines_of(text or "")
    if args.output is not None:
        raise InputError(OUTPUT_OF_LINES)
    return None if args.prompt is None else read_prompt(args.prompt, None)


def _at_a_time(args: argparse.Namespace, lines: Sequence[str]) -> int:
    """How many of a file's lines are answered at a time, each by a thread of its own: they wait for each other far less
    than threads that share a step's products do. Under a memory limit and with layers left out one after the other, by
    all threads: the one has room for one line, the other decides line by line what the engine runs."""
    from edge.runtime.providers.cpu import check_threads, default_threads
    from edge.runtime.skip import OFF

    check_threads(args.threads)
    if args.memory is not None or args.skip != OFF:
        return 1
    return max(1, min(args.threads or default_threads(), sum(map(bool, map(str.strip, lines)))))


def _load(
    args: argparse.Namespace, bundle: Bundle, interrupted: CtrlC, threads: int | None
) -> tuple[Text2Text, Text2TextOptions]:
    from edge.runtime.loading import start

    loading = start(
        bundle,
        context=args.context,
        threads=threads,
        memory=args.memory,
        beams=args.beams,
        exact=args.exact,
        skip=args.skip,
    )
    from edge.runtime.text import Text
    from edge.runtime.text2text import Text2Text, Text2TextOptions

    given: dict[str, Any] = {
        "groups": args.beam_groups,
        "diversity": args.diversity,
        "n_best": args.n_best,
        "min_tokens": args.min_tokens,
    }
    options = Text2TextOptions(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
        stop=args.stop,
        beams=args.beams,
        length_penalty=args.length_penalty,
        early_stopping=EARLY_STOPPING[args.early_stopping] if args.early_stopping else None,
        no_repeat_ngram=args.no_repeat_ngram,
        draft_from_input=args.draft_from_input,
        source_language=args.source_language,
        target_language=args.target_language,
        interrupted=interrupted,
        **{name: value for name, value in given.items() if value is not None},
    )
    return Text2Text(loading.bundle, loading.engine, Text(loading.bundle)), options


class Answer(NamedTuple):
    """The whole answer to one text: as it is printed, without a line end behind it; its number of tokens; and whether
    it ended because there may not be more."""

    shown: str
    tokens: int = 0
    cut: bool = False


def answer(model: Text2Text, text: str, options: Text2TextOptions, as_json: bool) -> Answer:
    """Answer one text as a whole."""
    import dataclasses
    import json

    if options.n_best > 1:
        candidates = model.candidates(text, options)
        if as_json:
            shown = json.dumps([dataclasses.asdict(each) for each in candidates], ensure_ascii=False)
        else:
            shown = "\n".join(f"{each.score:.4f}\t{on_one_line(each.text)}" for each in candidates)
        best = candidates[0]
        return Answer(shown, len(best.token_ids), best.finish_reason in CUT)
    result = model.generate(text, options)
    shown = json.dumps(dataclasses.asdict(result), ensure_ascii=False) if as_json else on_one_line(result.text)
    return Answer(shown, result.generated_tokens, result.finish_reason in CUT)


def on_one_line(text: str) -> str:
    """An answer that shares its place with others may not begin a line of its own."""
    return " ".join(text.splitlines())


def _one(model: Text2Text, text: str, options: Text2TextOptions, args: argparse.Namespace) -> None:
    if args.json or options.n_best > 1:
        print(answer(model, text, options, args.json).shown, flush=True)
        return
    from edge.cli.run import ENDED_BY, figures, show

    last = show(model.stream(text, options))
    print(figures(last.timings), *ENDED_BY.get(last.finish_reason or "", []), sep=" · ", file=sys.stderr)


def _pipe(model: Text2Text, options: Text2TextOptions, args: argparse.Namespace, interrupted: CtrlC) -> None:
    """Answer each line of standard input as it comes, on a line of its own; blank ones stay blank."""
    from edge.cli.run import decoded

    model.check(options)
    for number, data in enumerate(sys.stdin.buffer, 1):
        line = decoded(data, f"Line {number} of standard input")
        try:
            shown = answer(model, line, options, args.json).shown if line.strip() else ""
        except InputError as e:
            raise InputError(f"Line {number} of standard input: {e}") from None
        if interrupted():
            return
        print(shown, flush=True)


def _dialogue(model: Text2Text, options: Text2TextOptions, args: argparse.Namespace, interrupted: CtrlC) -> None:
    """Ask for a text, answer it, and again, until the end of the input; a text knows nothing of those before it."""
    from edge.cli.chat import ask, note

    model.check(options)
    note(f"{model.bundle.manifest.name} · a line at a time · Ctrl-C stops an answer · /quit leaves")
    while (line := ask()) is not None:
        if not line.strip():
            continue
        if line.strip() == "/quit":
            return
        try:
            with interrupted:
                _one(model, line, options, args)
        except InputError as e:
            note(str(e))
