"""`edge run` with a bundle from text to text: one text, line after line, or a file of lines into a file of lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge.cli.arguments import taken
from edge.cli.ending import INTERRUPTED
from edge.cli.run.on_cluster import cluster_of, job_of
from edge.cli.run.parser import check_lines
from edge.cli.run.prompt import lines_of_input, read_lines, read_prompt
from edge.cli.run.terminal import CtrlC, note, show_with_figures
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.decode.text2text_options import Text2TextOptions
    from edge.runtime.load_options import LoadOptions
    from edge.runtime.text2text import Text2Text


def run_text2text(args: argparse.Namespace, bundle: Bundle) -> int:
    """Answer what the arguments of `edge run` ask an opened bundle from text to text, and return the exit status."""
    asked = _asked(args)
    with cluster_of(args) as cluster, CtrlC() as interrupted:
        threads = args.threads if cluster is None else cluster.threads
        at_a_time = 1 if asked is None or isinstance(asked, str) else _at_a_time(args, asked, threads)
        model, options, loaded = _load(args, bundle, interrupted, threads if at_a_time == 1 else 1)
        if isinstance(asked, str):
            _one(model, asked, options, args)
        elif asked is not None:
            from edge.cli.run.lines import run_lines

            model.check(options)
            model.wait()
            return run_lines(model, asked, options, args, at_a_time, job_of(cluster, bundle, loaded))
        elif not sys.stdin.isatty():
            _pipe(model, options, args, interrupted)
    if asked is None and sys.stdin.isatty():
        _dialogue(model, options, args, interrupted)
        return 0
    return INTERRUPTED if interrupted() else 0


def _asked(args: argparse.Namespace) -> str | list[str] | None:
    """One text, the lines of a file, or None where lines come one by one from standard input."""
    check_lines(args)
    if args.lines is not None:
        return read_lines(args.lines)
    if args.prompt is None and args.file is None:
        return None
    text = read_prompt(args.prompt, args.file)
    if args.prompt is None and text is not None and "\n" in text.strip():
        note("The file is one text; --lines FILE answers each of its lines by itself.")
    return text


def _at_a_time(args: argparse.Namespace, lines: Sequence[str], threads: int | None) -> int:
    """Return the number of a file's lines that are answered at a time, each by one thread. Such threads wait for each
    other far less than threads that share a step's products. The result is 1, with all threads on one line, under a
    memory limit, which has room for one line, and with a skip policy, which decides line by line what the engine
    runs."""
    from edge.runtime.providers.threads import check_threads, default_threads
    from edge.runtime.skip import OFF

    check_threads(args.threads)
    if args.memory is not None or args.skip not in (None, OFF):
        return 1
    return max(1, min(threads or default_threads(), sum(map(bool, map(str.strip, lines)))))


def _load(
    args: argparse.Namespace, bundle: Bundle, interrupted: CtrlC, threads: int | None
) -> tuple[Text2Text, Text2TextOptions, LoadOptions]:
    from edge.runtime.load import start
    from edge.runtime.load_options import LoadOptions

    loading = start(bundle, LoadOptions(**taken(args, LoadOptions) | {"threads": threads}))
    from edge.runtime.decode.text2text_options import Text2TextOptions
    from edge.runtime.text2text import Text2Text

    options = Text2TextOptions(**taken(args, Text2TextOptions), interrupted=interrupted)
    model = loading.model()
    assert isinstance(model, Text2Text)
    return model, options, loading.options


def _one(model: Text2Text, text: str, options: Text2TextOptions, args: argparse.Namespace) -> None:
    import dataclasses
    import json

    if args.json and options.n_best <= 1:
        from edge.cli.run.placement import placement

        found = dataclasses.asdict(model.generate(text, options)) | {"placement": placement(model.engine)}
        print(json.dumps(found, ensure_ascii=False), flush=True)
    elif options.n_best > 1:
        from edge.cli.run.lines import scored

        best = model.candidates(text, options)
        as_json = args.json and json.dumps([dataclasses.asdict(each) for each in best], ensure_ascii=False)
        print(as_json or scored(best), flush=True)
    else:
        show_with_figures(model.stream(text, options))


def _pipe(model: Text2Text, options: Text2TextOptions, args: argparse.Namespace, interrupted: CtrlC) -> None:
    """Answer each line of standard input as it comes, on a line of its own; blank ones stay blank."""
    from edge.cli.run.lines import answer_line

    model.check(options)
    model.wait()
    for place, (name, line) in enumerate(lines_of_input()):
        try:
            shown = answer_line(model, place, line, options, args.json, numbered=False).shown
        except InputError as e:
            raise InputError(f"{name}: {e}") from None
        if interrupted():
            return
        print(shown, flush=True)


def _dialogue(model: Text2Text, options: Text2TextOptions, args: argparse.Namespace, interrupted: CtrlC) -> None:
    """Ask for a text, answer it, and again, until the end of the input; a text knows nothing of those before it."""
    from edge.cli.run.ask import Prompt
    from edge.cli.run.quiet import Quiet

    model.check(options)
    model.wait()
    note(f"{model.bundle.manifest.name} · a line at a time · Ctrl-C stops an answer · /quit leaves")
    prompt = Prompt()
    while (said := prompt.ask()) is not None:
        if said.strip() == "/quit":
            return
        try:
            with interrupted, Quiet(prompt.editor is not None):
                for line in filter(str.strip, said.split("\n")):
                    if not interrupted():
                        _one(model, line, options, args)
        except InputError as e:
            note(str(e))
