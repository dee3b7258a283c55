"""The arguments of `edge run`, and which kind of bundle obeys which."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser, add_fields, taken
from edge.cli.reports import same_file
from edge.cli.run.prompt import DASH, has_piped
from edge.errors import InputError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.load_options import LoadOptions
from edge.runtime.options import DECODER, SPEECH, TEXT, check_together, fields, option_of
from edge.runtime.speech.transcribe_options import TranscribeOptions

if TYPE_CHECKING:
    pass

OPTIONS = GenerateOptions, Text2TextOptions, TranscribeOptions, LoadOptions  # whose fields are options of `edge run`
ANSWERS = {DECODER: GenerateOptions, TEXT: Text2TextOptions, SPEECH: TranscribeOptions}

MORE = """\
What is piped into the command, the files of -f and PROMPT are one prompt, in this order, with blank lines between.

With --lines FILE each line of FILE is a prompt of its own: several are answered at a time, and each answer is printed
as a line, in the order of the prompts, or with --json as an object. Line breaks in an answer are written as \\n, and
backslashes as \\\\; a blank line stays blank. With --output OUT each answer is kept in OUT.part at once, and OUT
appears when all are there; after Ctrl-C or a failure, the same command goes on where it was stopped.

A bundle from text to text (a translator, a summariser) answers each text by itself, and without a prompt the lines of
standard input one by one. A speech bundle transcribes --audio or --stdin-pcm."""


def check_kind(kind: str, given: argparse.Namespace) -> None:
    """Raise InputError where a bundle of this kind would ignore an option that was given."""
    check_together(LoadOptions, taken(given, LoadOptions))
    for name, option, kinds in given.obeyed:
        if getattr(given, name) is None or kind in kinds:
            continue
        if kinds == {SPEECH}:
            raise InputError(f"{given.bundle} reads text and hears no sound; {option} needs a speech bundle.")
        if kind == DECODER or kinds == {TEXT}:
            raise InputError(f"{given.bundle} is no bundle from text to text, and {option} means nothing to it.")
        if kind == TEXT:
            raise InputError(f"{given.bundle} turns one text into another; {option} means nothing to it.")
        raise InputError(f"{given.bundle} transcribes sound and has no use for {option}.")


def check_lines(given: argparse.Namespace) -> None:
    """Raise InputError where --lines, --output and a prompt do not go together."""
    if given.lines is not None and (given.prompt is not None or given.file is not None):
        other = repr(given.prompt) if given.prompt is not None else f"-f {given.file[0]}"
        raise InputError(f"Each line of {given.lines} is a whole prompt; leave out {other[:60]}, or --lines.")
    if given.lines is not None and str(given.lines) != DASH and has_piped():
        raise InputError(
            f"Each line of {given.lines} is a whole prompt, so that what is piped in would be dropped; leave one out."
        )
    written = () if given.output is None else (given.output, Path(f"{given.output}.part"))
    if given.lines is not None and any(same_file(given.lines, path) for path in written):
        raise InputError(f"The answers would overwrite the prompts in {given.lines}; name another --output.")
    if given.cluster is not None and given.lines is None:
        raise InputError("--cluster is for the lines of a file, each a prompt; name it with --lines FILE.")
    if given.output is not None and given.lines is None:
        advice = "redirect the output" if given.file is None else f"write --lines {given.file[0]} if each line is one"
        raise InputError(f"--output takes the answers to the prompts in a file's lines, one a line; {advice}.")


def add_arguments(parser: Parser) -> None:
    """All arguments of `edge run`: those of its own, and the fields of `OPTIONS`, each under its heading. What is not
    given is None."""
    parser.epilog = f"{MORE}\n\n{parser.epilog}"
    bundle = (
        "a bundle, a folder NAME.edge; a .gguf file or a model's folder; a name of the catalog; org/NAME or "
        "org/NAME:Q4_K_M on the Hugging Face hub; or the address of a .gguf file"
    )
    parser.add_argument("bundle", metavar="MODEL", nargs="?", help=bundle)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to answer; '-': standard input")
    parser.surplus = "put a prompt of several words in quotes"
    parser.elsewhere = {
        **dict.fromkeys(("-n", "--n-predict", "--num-predict", "--max-new-tokens"), "--max-tokens"),
        **dict.fromkeys(("-c", "--ctx-size", "--num-ctx", "--n-ctx"), "--context"),
        **{"-t": "--threads", "-s": "--system", "--system-prompt": "--system", "-o": "--output", "-i": "--lines"},
    }
    own = dict[str, set[str]]()  # the kinds of bundles that obey it, of an option that is no field

    def only(kind: str, action: argparse.Action, *others: str) -> None:
        own[action.dest] = {kind, *others}

    add = parser.options("prompt")
    add("-f/--file FILE", "put a file's text before the prompt, or ask it alone; repeatable", Path, action="append")
    add("--lines FILE", "answer each line of a file as a prompt of its own; see below", Path)
    only(DECODER, add("--system TEXT", "a system message"))
    add_fields(add, "prompt", *OPTIONS)
    only(DECODER, add("--raw", "give the prompt as it is, without the chat template", default=None))

    add = parser.options("answer")
    add_fields(add, "answer", *OPTIONS)
    add("--json", "print the whole answer and its figures as one JSON object", default=None)

    add = parser.options("chat")
    only(DECODER, add("--verbose", "show figures after each answer", default=None))
    history = "keep nothing of what is typed for the next chat (always: EDGE_HISTORY=off)"
    only(DECODER, add("--no-history", history, default=None))

    add = parser.options("speech")
    only(SPEECH, add("--audio FILE", "transcribe this sound file: WAV, FLAC, MP3, OGG, ..."))
    pipe = "transcribe 16-bit mono samples from standard input at the model's rate (16 kHz) while they come"
    only(SPEECH, add("--stdin-pcm", pipe, default=None))
    add_fields(add, "speech", *OPTIONS)
    only(SPEECH, add("--timestamps", "print when each segment begins and ends", default=None))
    only(SPEECH, add("--srt", "write SubRip subtitles", default=None))
    only(SPEECH, add("--vtt", "write WebVTT subtitles", default=None))

    add = parser.options("text to text")
    add("--output FILE", "write a transcript, or the answers to --lines, to this file; see below", Path)
    add_fields(add, "text to text", *OPTIONS)

    add = parser.options("speed")
    add_fields(add, "speed", *OPTIONS)
    batch = "with --lines: prompts answered in parallel (default: 8; with --memory: 1)"
    only(DECODER, add("--batch N", batch, int))
    cluster = "with --lines: the nodes of a Ray cluster answer: auto, local or HOST:PORT (docs/guide/cluster.md)"
    only(DECODER, add("--cluster ADDRESS", cluster), TEXT)

    add_fields(parser.options("machine"), "machine", *OPTIONS)
    limits = _kinds() | own
    named = [(each.dest, each.option_strings[0]) for each in parser.actions if each.dest in limits]
    parser.set_defaults(obeyed=[(name, option, limits[name]) for name, option in named])


def _kinds() -> dict[str, set[str]]:
    """The kinds of bundles that obey an option that is a field, by what the command line calls it."""
    kinds = defaultdict[str, set[str]](set)
    for options in OPTIONS:
        obey = {kind for kind, answers in ANSWERS.items() if answers is options}
        for field in fields(options):
            known = option_of(field)
            kinds[known.destination] |= obey or {*known.kinds}
    return kinds
