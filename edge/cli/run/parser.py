"""The arguments of `edge run`, and which kind of bundle obeys which."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import Parser, add_bundle, add_provider, add_threads, listed
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.decode.beam import EarlyStopping

DECODER, TEXT, SPEECH = "decoder", "text", "speech"  # kinds of bundles
# What not every kind obeys.
OF_SPEECH = ("audio", "stdin_pcm", "language", "task", "timestamps", "srt", "vtt")
OF_TEXT = (
    *("source_language", "target_language", "n_best", "length_penalty", "early_stopping", "beam_groups"),
    *("diversity", "no_repeat_ngram", "min_tokens"),
)
OF_DECODERS = ("system", "raw", "prefill_chunk", "kv", "batch")
NOT_OF_SPEECH = ("max_tokens", "stop", "top_k", "top_p", "min_p", "repetition_penalty", "context")
IGNORED = {
    DECODER: (*OF_SPEECH, *OF_TEXT, "beams"),
    TEXT: (*OF_SPEECH, *OF_DECODERS),
    SPEECH: (*OF_TEXT, *OF_DECODERS, *NOT_OF_SPEECH),
}
# What says how tokens are drawn, under the names that GenerateOptions and Text2TextOptions have for it.
SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
NAMES = {"source_language": "--from", "target_language": "--to"}  # of options, where they are not as in the namespace
FLAG: dict[str, Any] = {"action": "store_const", "const": True}
EARLY_STOPPING: dict[str, EarlyStopping] = {"true": True, "false": False, "never": "never"}
OUTPUT_OF_LINES = "--output takes the answers to a file's lines; name the file with -f, or redirect the output."

MORE = """\
With -f FILE and --output OUT, each line of FILE is a prompt of its own: several are answered side by side, each answer
becomes a line of OUT, in the order of the prompts, or with --json an object. After Ctrl-C or a failure, the same
command goes on where it was stopped.

A bundle from text to text (a translator, a summariser) answers each text by itself. With -f FILE it answers every line
of a file, in the order of the lines; blank ones stay blank. With --output OUT as well, the longest lines go first, each
answer is kept in OUT.part at once, and OUT appears when all are there; after Ctrl-C or a failure, the same command goes
on where it was stopped. Without a prompt it answers the lines of standard input one by one. A speech bundle transcribes
--audio or --stdin-pcm."""


def kind_of(bundle: Bundle) -> str:
    """DECODER, TEXT or SPEECH."""
    if bundle.manifest.speech is not None:
        return SPEECH
    return DECODER if bundle.manifest.text is None else TEXT


def check_kind(kind: str, given: argparse.Namespace) -> None:
    """Raise InputError where a bundle of this kind would ignore an option that was given."""
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


def taken(given: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Those of the named options that were given: for the others the library's defaults hold."""
    return {name: value for name in names if (value := getattr(given, name)) is not None}


def add_arguments(parser: Parser) -> None:
    """All arguments of `edge run`. What was not given is None, except where a default is said here."""
    from edge.runtime.skip import OFF, policy_names
    from edge.runtime.speculate.base import drafter_names

    parser.epilog = f"{MORE}\n\n{parser.epilog}"
    add_bundle(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to answer; '-': standard input")

    add = parser.add_argument_group("prompt").add_argument
    add("-f", "--file", type=Path, help="read the prompt from a file; from text to text, each line is one")
    add("--system", metavar="TEXT", help="a system message")
    add("--raw", **FLAG, help="give the prompt as it is, without the chat template")

    add = parser.add_argument_group("answer").add_argument
    add("--max-tokens", metavar="N", type=int, help="maximum tokens to generate (default: 512, or the bundle's)")
    add("--stop", metavar="TEXT", action="append", help="end the answer before this text; repeatable")
    drawn = "0, the default, takes the most likely token, the same every time; above 0 tokens are drawn"
    add("--temperature", metavar="T", type=float, help=drawn)
    add("--top-k", metavar="K", type=int, help="draw from the K most likely tokens; with --temperature")
    likely = "draw from the fewest likely tokens whose probabilities reach P together; with --temperature"
    add("--top-p", metavar="P", type=float, help=likely)
    unlikely = "draw no token below P times the probability of the most likely one; with --temperature"
    add("--min-p", metavar="P", type=float, help=unlikely)
    said = "above 1, tokens that occurred before become less likely"
    add("--repetition-penalty", metavar="R", type=float, help=said)
    add("--seed", metavar="N", type=int, help="make draws repeatable")
    add("--json", **FLAG, help="print the whole answer and its figures as one JSON object")

    _add_speech(parser)
    _add_text2text(parser)

    add = parser.add_argument_group("speed").add_argument
    drafts = "what drafts tokens, several of which the model verifies in a step: auto (default for chat models), off, "
    listed(add("--speculate", metavar="WHAT", help=f"{drafts}or a name: %(names)s"), drafter_names)
    exact = (
        "the same text every time, whatever is drafted: the default for chat models. --no-exact is faster, and once in "
        "a while a word differs; text to text and speech need it only with --speculate"
    )
    add("--exact", action=argparse.BooleanOptionalAction, help=exact)
    left_out = "which layers are left out, of a bundle with segments: off (default), %(names)s"
    listed(add("--skip", metavar="POLICY", default=OFF, help=left_out), policy_names)
    several = "with -f and --output: prompts answered side by side (default: 8; with --memory: 1)"
    add("--batch", metavar="N", type=int, help=several)

    group = parser.add_argument_group("machine")
    add = group.add_argument
    add_threads(group)
    room = "maximum tokens of prompt and answer (default: the bundle's, up to 4096)"
    add("--context", metavar="N", type=int, help=room)
    chunk = "maximum prompt tokens of a step; fewer need less memory (default: 128)"
    add("--prefill-chunk", metavar="N", type=int, help=chunk)
    add_provider(group)
    kept = "what the KV cache is kept in: float32, int8, or auto (default): int8 where --memory is short"
    add("--kv", metavar="TYPE", help=kept)
    add("--memory", metavar="SIZE", help="hold at most this much private memory, such as 300MB; see edge plan")


def _add_speech(parser: Parser) -> None:
    add = parser.add_argument_group("speech").add_argument
    add("--audio", metavar="FILE", help="transcribe this sound file: WAV, FLAC, MP3, OGG, ...")
    pipe = "transcribe 16-bit mono samples from standard input at the model's rate (16 kHz) while they come"
    add("--stdin-pcm", **FLAG, help=pipe)
    add("--language", metavar="CODE", help="the language that is spoken, such as de (default: heard)")
    add("--task", metavar="TASK", help="transcribe (default), or translate into English")
    add("--timestamps", **FLAG, help="print when each segment begins and ends")
    add("--srt", **FLAG, help="write SubRip subtitles")
    add("--vtt", **FLAG, help="write WebVTT subtitles")


def _add_text2text(parser: Parser) -> None:
    add = parser.add_argument_group("text to text").add_argument
    kept = "write a transcript, or the answers to a file's lines, to this file; see below"
    add("--output", metavar="FILE", type=Path, help=kept)
    source = "of a multilingual model: the text's language, such as en or eng_Latn"
    add("--from", "--source-language", dest="source_language", metavar="CODE", help=source)
    target = "of a multilingual model: the language to translate into, such as de, deu_Latn or deu"
    add("--to", "--target-language", dest="target_language", metavar="CODE", help=target)
    add("--beams", metavar="N", type=int, help="beams of the search; 1: greedy (default: the bundle's)")
    add("--n-best", metavar="N", type=int, help="print the N best texts of the beams, each after its score")
    penalty = "above 0 favours longer texts among the beams (default: the bundle's)"
    add("--length-penalty", metavar="P", type=float, help=penalty)
    stopping = "when the search ends: true: with as many whole texts as beams; never: when none can be better; or false"
    add("--early-stopping", metavar="WHEN", choices=tuple(EARLY_STOPPING), help=stopping)
    add("--beam-groups", metavar="N", type=int, help="split the beams into N groups with texts of their own")
    add("--diversity", metavar="D", type=float, help="how far the groups are kept apart, for example 0.5")
    ngram = "no run of N tokens occurs twice; 0: any may (default: the bundle's)"
    add("--no-repeat-ngram", metavar="N", type=int, help=ngram)
    add("--min-tokens", metavar="N", type=int, help="minimum tokens to generate")
