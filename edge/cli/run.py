"""`edge run`: answer a prompt, streamed, or chat with a bundle.

Its arguments are read with argparse, not typer as those of the other commands: importing typer took 85 ms on the
machine where `edge run` showed its first token after 390 ms.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from edge.bundle import open_bundle
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.runtime.answer import GenerateOptions, Piece, Timings
    from edge.runtime.model import Model

ENDED_BY = {"length": ["cut off by --max-tokens"], "context": ["the context is full"], "interrupted": ["stopped"]}
MAX_TOKENS = 512  # of an answer, where no number is given
INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended
ABOUT = """\
Answer a prompt with a bundle: the text is streamed to standard output, one line of figures goes to standard error.
Without a prompt, on a terminal: a chat that remembers its turns, with /reset, /stats and /quit. Ctrl-C stops the
answer."""
MORE = """\
With -f FILE and --output OUT, each line of FILE is a prompt of its own: several are answered side by side, each answer
becomes a line of OUT, in the order of the prompts, or with --json an object. After Ctrl-C or a failure, the same
command goes on where it was stopped.

A bundle from text to text (a translator, a summariser) answers each text by itself. With -f FILE it answers every line
of a file, in the order of the lines; blank ones stay blank. With --output OUT as well, the longest lines go first, each
answer is kept in OUT.part at once, and OUT appears when all are there; after Ctrl-C or a failure, the same command goes
on where it was stopped. Without a prompt it answers the lines of standard input one by one. A speech bundle transcribes
--audio or --stdin-pcm. Any command takes --debug, which shows the traceback of an error."""


def execute(args: list[str]) -> int:
    """Run the command and return its exit status."""
    from edge.cli import speech, text2text

    try:
        given = _parser(speech, text2text).parse_intermixed_args(args)  # options may stand between bundle and prompt
    except SystemExit:  # --help was printed
        return 0
    bundle = open_bundle(given.bundle)
    if bundle.manifest.speech is not None:
        text2text.check_no_text2text(bundle, given, also=text2text.SPEECH_TOO)
        return speech.run_speech(given, bundle)
    speech.check_no_speech(bundle, given)
    if bundle.manifest.text is not None:
        return text2text.run_text2text(given, bundle)
    text2text.check_no_text2text(bundle, given, also=("output",))
    if given.output is not None or given.batch is not None:
        from edge.cli.prompts import check_prompts

        check_prompts(given)
    with CtrlC() as interrupted:
        prompt = read_prompt(given.prompt, given.file)
        if prompt is None and (given.raw or given.json):
            raise InputError(f"A chat takes no {'--raw' if given.raw else '--json'}; give a prompt.")
        from edge.runtime.speculate.base import AUTO, OFF, check_name

        # Answers that grow side by side take no drafts, nor the graph for such that branch.
        speculate = given.speculate or (AUTO if given.output is None else OFF)
        check_name(speculate)
        from edge.runtime.loading import start

        if prompt is not None and given.output is None:
            from edge.runtime.huge_pages import expect_one_answer

            expect_one_answer(_most(given))
        loading = start(
            bundle,
            context=given.context,
            threads=given.threads,
            memory=given.memory,
            chunk=given.prefill_chunk,
            beams=given.batch,
            speculate=speculate,
            exact=given.exact,
            skip=given.skip,
            kv=given.kv or AUTO,
        )
        from edge.runtime.answer import GenerateOptions
        from edge.runtime.model import PREFILL_CHUNK, Model
        from edge.runtime.text import Text

        options = GenerateOptions(
            max_tokens=_most(given),
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p,
            min_p=given.min_p,
            repetition_penalty=given.repetition_penalty,
            seed=given.seed,
            stop=given.stop,
            interrupted=interrupted,
        )
        chunk = PREFILL_CHUNK if given.prefill_chunk is None else given.prefill_chunk
        model = Model(loading.bundle, loading.engine, Text(loading.bundle), prefill_chunk=chunk, speculate=speculate)
        if not given.raw and model.template is None:
            print(f"{given.bundle} has no chat template, so the model gets the prompt as it is.", file=sys.stderr)
        if prompt is not None and given.output is not None:
            from edge.cli.prompts import run_prompts

            return run_prompts(model, prompt, options, given, interrupted)
        if prompt is not None:
            _answer(model, prompt, options, given)
    if prompt is None:
        from edge.cli.chat import chat

        chat(model, options, given.system, interrupted)
        return 0
    return INTERRUPTED if interrupted() else 0


def _most(given: argparse.Namespace) -> int:
    """Tokens that an answer may have."""
    return MAX_TOKENS if given.max_tokens is None else int(given.max_tokens)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].upper()}{message[1:]}; see {self.prog} --help.")


class _Help(argparse.HelpFormatter):
    """argparse's help, in the same shape as the other commands'."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)

    def start_section(self, heading: str | None) -> None:
        super().start_section("Arguments" if heading == "positional arguments" else heading and heading.capitalize())

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: ")


def _parser(*kinds: ModuleType) -> argparse.ArgumentParser:
    from edge.runtime.skip import OFF, POLICIES
    from edge.runtime.speculate.base import DRAFTERS

    parser = _Parser(
        prog="edge run",
        usage="edge run [OPTIONS] BUNDLE [PROMPT]",
        description=ABOUT,
        epilog=MORE,
        allow_abbrev=False,
        formatter_class=_Help,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="the bundle, a folder NAME.edge")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to answer; '-': standard input")

    add = parser.add_argument_group("prompt").add_argument
    add("-f", "--file", type=Path, help="read the prompt from a file; from text to text, each line is one")
    add("--system", metavar="TEXT", help="a system message")
    add("--raw", action="store_true", help="give the prompt as it is, without the chat template")

    add = parser.add_argument_group("answer").add_argument
    add("--max-tokens", metavar="N", type=int, help="most tokens to generate (default: 512, or the bundle's)")
    add("--stop", metavar="TEXT", action="append", default=[], help="end the answer before this text; repeatable")
    drawn = "0, the default, takes the most likely token, the same every time; above 0 tokens are drawn"
    add("--temperature", metavar="T", type=float, default=0.0, help=drawn)
    add("--top-k", metavar="K", type=int, default=0, help="draw from the K most likely tokens; with --temperature")
    likely = "draw from the most likely that together have chance P; with --temperature"
    add("--top-p", metavar="P", type=float, default=1.0, help=likely)
    unlikely = "draw no token below P times the likeliest's chance; with --temperature"
    add("--min-p", metavar="P", type=float, default=0.0, help=unlikely)
    said = "above 1, tokens that occurred before become less likely"
    add("--repetition-penalty", metavar="R", type=float, help=said)
    add("--seed", metavar="N", type=int, help="make draws repeatable")
    add("--json", action="store_true", help="print the whole answer and its figures as one JSON object")

    for kind in kinds:
        kind.add_arguments(parser)

    add = parser.add_argument_group("speed").add_argument
    drafts = "what guesses tokens that the model then checks several at once: auto (default), off, or a name: "
    add("--speculate", metavar="WHAT", help=drafts + ", ".join(DRAFTERS))
    exact = (
        "the same text every time, whatever is guessed: the default for chat models. --no-exact is faster, and now and "
        "then another word; text to text is exact anyway unless --draft-from-input is given"
    )
    add("--exact", action=argparse.BooleanOptionalAction, help=exact)
    left_out = "which layers are left out, of a bundle with segments: off (default), "
    add("--skip", metavar="POLICY", default=OFF, help=left_out + ", ".join(POLICIES.values()))
    beside = "with -f and --output: prompts answered side by side (default: 8; with --memory: 1)"
    add("--batch", metavar="N", type=int, help=beside)

    add = parser.add_argument_group("machine").add_argument
    add("--threads", metavar="N", type=int, help="threads to compute with (default: one per core)")
    room = "most tokens of prompt and answer (default: the bundle's, up to 4096)"
    add("--context", metavar="N", type=int, help=room)
    add("--prefill-chunk", metavar="N", type=int, help="prompt tokens run at once; fewer need less memory")
    kept = "keep the KV cache in float32, or in int8, a quarter of it (default: auto: int8 where --memory is short)"
    add("--kv", metavar="TYPE", help=kept)
    add("--memory", metavar="SIZE", help="stay under so much memory, such as 300MB; see edge plan")
    return parser


class CtrlC:
    """While entered, Ctrl-C is remembered and asks the answer to end; pressed once more it ends the program."""

    def __init__(self) -> None:
        self._pressed = False

    def __call__(self) -> bool:
        return self._pressed

    def __enter__(self) -> CtrlC:
        self._pressed = False
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True


def read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """The prompt from the argument, a file or standard input; None where a person is to be asked."""
    if file is not None:
        if prompt is not None:
            raise InputError(f"There are two prompts, {prompt[:40]!r} and the file {file}; give one of them.")
        if str(file) != "-":
            try:
                source = f"The prompt file {file}"
                return _checked(decoded(file.read_bytes(), source), source)
            except (OSError, ValueError) as e:
                raise InputError(f"The prompt file {file} cannot be read: {getattr(e, 'strerror', e)}.") from None
    elif prompt is not None and prompt != "-":
        return _checked(prompt, "The prompt")
    elif prompt is None and sys.stdin.isatty():
        return None
    return _checked(decoded(sys.stdin.buffer.read(), "Standard input"), "Standard input")


def decoded(data: bytes, source: str) -> str:
    """UTF-8 text without its last line end; `source` names where it came from."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"{source} is not UTF-8 text (see byte {e.start}); convert it first.") from None
    return text.removesuffix("\n").removesuffix("\r")


def _checked(text: str, source: str) -> str:
    if not text.strip():
        raise InputError(f"{source} is empty; give the model something to answer.")
    return text


def _answer(model: Model, prompt: str, options: GenerateOptions, given: argparse.Namespace) -> None:
    pieces = model.stream(prompt, options, system=given.system, raw=given.raw)
    if given.json:
        import dataclasses
        import json

        from edge.runtime.answer import collect

        print(json.dumps(dataclasses.asdict(collect(pieces)), ensure_ascii=False))
        return
    last = show(pieces)
    print(figures(last.timings), *ENDED_BY.get(last.finish_reason or "", []), sep=" · ", file=sys.stderr)


def show(pieces: Iterable[Piece]) -> Piece:
    """Write an answer to standard output as it comes, with a line end behind it; returns the last piece."""
    out = sys.stdout
    for piece in pieces:
        if piece.text:
            out.write(piece.text)
            out.flush()
    out.write("\n")
    out.flush()
    return piece


def figures(timings: Timings) -> str:
    """One line: prompt tokens, time to first token, tokens per second, peak memory."""
    from edge.runtime.memory import peak_rss_mb

    rate, rss, speculation = timings.decode_tokens_per_s, peak_rss_mb(), timings.speculation
    drafts = f" ({speculation.accepted} drafted)" if speculation and speculation.accepted else ""
    return " · ".join(
        [
            f"{timings.prompt_tokens} prompt token{'' if timings.prompt_tokens == 1 else 's'}",
            "no first token" if timings.ttft_ms is None else f"TTFT {timings.ttft_ms:.0f} ms",
            f"{timings.generated_tokens} tokens" + ("" if rate is None else f", {rate:.1f} tokens/s") + drafts,
            "peak RSS unknown" if rss is None else f"peak RSS {rss:.0f} MiB",
        ]
    )
