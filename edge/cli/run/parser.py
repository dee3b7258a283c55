"""The arguments of `edge run`, and which kind of bundle obeys which."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import Parser, add_provider, add_strict, add_threads, listed
from edge.cli.reports import same_file
from edge.cli.run.prompt import DASH, has_piped
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.decode.beam_options import EarlyStopping

DECODER, TEXT, SPEECH = "decoder", "text", "speech"  # kinds of bundles
# What not every kind obeys.
OF_SPEECH = ("audio", "stdin_pcm", "language", "task", "timestamps", "srt", "vtt")
OF_TEXT = (
    *("source_language", "target_language", "n_best", "length_penalty", "early_stopping", "beam_groups"),
    *("diversity", "no_repeat_ngram", "min_tokens", "whole"),
)
OF_DECODERS = ("system", "raw", "date", "prefill_chunk", "kv", "batch", "think", "think_tokens")
OF_CHATS = ("verbose", "no_history")
NOT_OF_SPEECH = ("max_tokens", "stop", "top_k", "top_p", "min_p", "repetition_penalty", "circles", "context")
IGNORED = {
    DECODER: (*OF_SPEECH, *OF_TEXT, "beams"),
    TEXT: (*OF_SPEECH, *OF_DECODERS, *OF_CHATS),
    SPEECH: (*OF_TEXT, *OF_DECODERS, *OF_CHATS, *NOT_OF_SPEECH),
}
NAMES = {"source_language": "--from", "target_language": "--to"}  # of options, where they are not as in the namespace
EARLY_STOPPING: dict[str, EarlyStopping] = {"true": True, "false": False, "never": "never"}

MORE = """\
What is piped into the command, the files of -f and PROMPT are one prompt, in this order, with blank lines between.

With --lines FILE each line of FILE is a prompt of its own: several are answered at a time, and each answer is printed
as a line, in the order of the prompts, or with --json as an object. Line breaks in an answer are written as \\n, and
backslashes as \\\\; a blank line stays blank. With --output OUT each answer is kept in OUT.part at once, and OUT
appears when all are there; after Ctrl-C or a failure, the same command goes on where it was stopped.

A bundle from text to text (a translator, a summariser) answers each text by itself, and without a prompt the lines of
standard input one by one. A speech bundle transcribes --audio or --stdin-pcm."""


def kind_of(bundle: Bundle) -> str:
    """DECODER, TEXT or SPEECH."""
    if bundle.manifest.speech is not None:
        return SPEECH
    return DECODER if bundle.manifest.text is None else TEXT


def check_kind(kind: str, given: argparse.Namespace) -> None:
    """Raise InputError where a bundle of this kind would ignore an option that was given."""
    from edge.runtime.skip import OFF

    if given.skip_anyway and given.skip == OFF:
        raise InputError("--skip-anyway insists on what --skip leaves out; name a policy with --skip, or omit it.")
    for name in IGNORED[kind]:
        if getattr(given, name) is None:
            continue
        option = NAMES.get(name, f"--{name.replace('_', '-')}")
        if name in OF_SPEECH:
            raise InputError(f"{given.bundle} reads text and hears no sound; {option} needs a speech bundle.")
        if kind == DECODER or name in OF_TEXT:
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
    if given.output is not None and given.lines is None:
        advice = "redirect the output" if given.file is None else f"write --lines {given.file[0]} if each line is one"
        raise InputError(f"--output takes the answers to the prompts in a file's lines, one a line; {advice}.")


def taken(given: argparse.Namespace, options: Sequence[str] | type) -> dict[str, Any]:
    """Those of the named options, or of the fields of a class of options, that were given: for the others the library's
    defaults hold."""
    names = options if isinstance(options, Sequence) else [each.name for each in dataclasses.fields(options)]
    return {name: value for name in names if (value := getattr(given, name, None)) is not None}


def _seed(text: str) -> int | str:
    """A whole number, or else what the options take or refuse."""
    return int(text) if text.lstrip("-").isdecimal() else text
def _day(given: str) -> str:
    from edge.runtime.options import day

    try:
        return day(given)
    except InputError:
        raise argparse.ArgumentTypeError(f"a day is written as 2025-01-31, not {given!r}") from None


def add_arguments(parser: Parser) -> None:
    """All arguments of `edge run`. What is not given is None, except where a default stands here."""
    from edge.runtime.skip import OFF, POLICIES
    from edge.runtime.speculate.base import DRAFTERS

    parser.epilog = f"{MORE}\n\n{parser.epilog}"
    bundle = (
        "a bundle, a folder NAME.edge; a .gguf file or a model's folder; a name of the catalog; org/NAME or "
        "org/NAME:Q4_K_M on the Hugging Face hub; or the address of a .gguf file"
    )
    parser.add_argument("bundle", metavar="MODEL", help=bundle)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to answer; '-': standard input")
    parser.surplus = "put a prompt of several words in quotes"
    parser.elsewhere = {
        **dict.fromkeys(("-n", "--n-predict", "--num-predict", "--max-new-tokens"), "--max-tokens"),
        **dict.fromkeys(("-c", "--ctx-size", "--num-ctx", "--n-ctx"), "--context"),
        **{"-t": "--threads", "-s": "--system", "--system-prompt": "--system", "-o": "--output", "-i": "--lines"},
    }

    add = parser.options("prompt")
    add("-f/--file FILE", "put a file's text before the prompt, or ask it alone; repeatable", Path, action="append")
    add("--lines FILE", "answer each line of a file as a prompt of its own; see below", Path)
    add("--system TEXT", "a system message")
    add("--date YYYY-MM-DD", "the date that a chat template tells the model, where it does (default: today)", _day)
    add("--raw", "give the prompt as it is, without the chat template", default=None)

    add = parser.options("answer")
    most = "maximum tokens to generate (default: 512, or the bundle's; and up to 2048 more of thoughts)"
    add("--max-tokens N", most, int)
    think = "think before the answer, or do not, where the model can (default: as its chat template has it)"
    add("--think", think, action=argparse.BooleanOptionalAction, default=None)
    add("--think-tokens N", "maximum tokens of thoughts, after which the answer follows", int)
    add("--stop TEXT", "end the answer before this text; repeatable", action="append")
    drawn = "0: the most likely token; above 0 tokens are drawn (default: as the model's makers set it for chats, or 0)"
    add("--temperature T", drawn, float)
    add("--top-k K", "draw from the K most likely tokens; where tokens are drawn", int)
    add("--top-p P", "draw from the fewest likely tokens whose probabilities sum to P", float)
    unlikely = "draw no token below P times the probability of the most likely one"
    add("--min-p P", unlikely, float)
    add("--repetition-penalty R", "above 1, tokens that occurred before become less likely", float)
    add("--seed N", "what draws begin with (default: 0); random: other draws every time", _seed)
    add("--circles WHAT", "avoid (default): lead an answer out of what it repeats without end; allow: do not")
    add("--json", "print the whole answer and its figures as one JSON object", default=None)

    add = parser.options("chat")
    add("--verbose", "show figures after each answer", default=None)
    add("--no-history", "keep nothing of what is typed for the next chat (always: EDGE_HISTORY=off)", default=None)

    add = parser.options("speech")
    add("--audio FILE", "transcribe this sound file: WAV, FLAC, MP3, OGG, ...")
    pipe = "transcribe 16-bit mono samples from standard input at the model's rate (16 kHz) while they come"
    add("--stdin-pcm", pipe, default=None)
    add("--language CODE", "the language that is spoken, such as de (default: detected)")
    add("--task TASK", "transcribe (default), or translate into English")
    add("--timestamps", "print when each segment begins and ends", default=None)
    add("--srt", "write SubRip subtitles", default=None)
    add("--vtt", "write WebVTT subtitles", default=None)

    add = parser.options("text to text")
    add("--output FILE", "write a transcript, or the answers to --lines, to this file; see below", Path)
    source = "of a multilingual model: the text's language, such as en or eng_Latn"
    add("--from/--source-language CODE", source, dest="source_language")
    target = "of a multilingual model: the language to translate into, such as de, deu_Latn or deu"
    add("--to/--target-language CODE", target, dest="target_language")
    add("--beams N", "beams of the search; 1: greedy (default: the bundle's)", int)
    add("--n-best N", "print the N best texts of the beams, each after its score", int)
    add("--length-penalty P", "above 0 favours longer texts among the beams (default: the bundle's)", float)
    ends = "when the search ends: true: with as many whole texts as beams; never: when none can be better; or false"
    add("--early-stopping WHEN", ends, choices=tuple(EARLY_STOPPING))
    add("--beam-groups N", "split the beams into N groups with texts of their own", int)
    add("--diversity D", "how different the groups are, for example 0.5", float)
    add("--no-repeat-ngram N", "no run of N tokens occurs twice; 0: any may (default: the bundle's)", int)
    add("--min-tokens N", "minimum tokens to generate", int)
    apart = "give the model a text as a whole, where it would get sentence by sentence or line by line"
    add("--whole", apart, default=None)

    add = parser.options("speed")
    drafts = "what drafts tokens, several of which the model verifies in a step: auto (default for chat models), off, "
    listed(add("--speculate WHAT", f"{drafts}or a name: %(names)s"), DRAFTERS)
    exact = (
        "the same text every time, whatever is drafted: the default for chat models, and with --speculate for text to "
        "text and speech. --no-exact is faster, and once in a while a word differs"
    )
    add("--exact", exact, action=argparse.BooleanOptionalAction)
    skipped = "which layers are skipped: off (default), %(names)s"
    listed(add("--skip POLICY", skipped, default=OFF), POLICIES)
    add("--skip-anyway", "answer though what --skip leaves out ruins this model, which is refused", default=None)
    add("--batch N", "with --lines: prompts answered in parallel (default: 8; with --memory: 1)", int)

    add = parser.options("machine")
    add_threads(add)
    add("--context N", "maximum tokens of prompt and answer (default: the bundle's, up to 4096)", int)
    add("--prefill-chunk N", "maximum prompt tokens of a step; fewer need less memory (default: 128)", int)
    add_provider(add)
    add_strict(add)
    add("--kv TYPE", "type of the KV cache: float32, int8, or auto (default): int8 if faster or --memory is short")
    add("--memory SIZE", "maximum private memory, such as 300MB; see edge plan")
