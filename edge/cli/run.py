"""`edge run`: answer a prompt, streamed, or chat with a bundle."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from edge.errors import InputError

if TYPE_CHECKING:
    from edge.runtime.answer import GenerateOptions, Piece, Timings
    from edge.runtime.model import Model

INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle, a folder NAME.edge.")],
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="What to answer; '-' or nothing: standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the prompt here.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 512,
    temperature: Annotated[
        float, typer.Option(help="0: the most likely token, the same answer every time. Above 0: drawn.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k most likely tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the most likely tokens that hold this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Leave out tokens below this share of the likeliest one's.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: what was said becomes less likely.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Make draws repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End the answer before this text; may be repeated.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads to compute with; default: one per core.")] = None,
    context: Annotated[
        int | None, typer.Option(help="Most tokens, prompt and answer; default: the bundle's, up to 4096.")
    ] = None,
    prefill_chunk: Annotated[int, typer.Option(help="Prompt tokens run at once; fewer need less memory.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when the answer is whole.")] = False,
) -> None:
    """Answer a prompt with a bundle, the text streamed to standard output and one line of figures to standard error.

    Without a prompt, on a terminal: a chat that remembers its turns, with /reset, /stats and /quit. Ctrl-C stops the
    answer. One line end at the end of a file or of standard input does not count as part of the prompt.
    """
    with CtrlC() as interrupted:
        text = _read_prompt(prompt, file)
        from edge.runtime.answer import GenerateOptions
        from edge.runtime.model import load

        options = GenerateOptions(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop or [],
            interrupted=interrupted,
        )
        if text is None and (raw or as_json):
            raise InputError(f"A chat takes no {'--raw' if raw else '--json'}; give a prompt.")
        model = load(bundle, context=context, threads=threads, prefill_chunk=prefill_chunk, wait=False)
        if not raw and model.template is None:
            print(f"{bundle} has no chat template, so the model gets the prompt as it is.", file=sys.stderr)
        if text is not None:
            _answer(model, text, options, system, raw, as_json)
    if text is None:
        from edge.cli.chat import chat

        chat(model, options, system, interrupted)
    elif interrupted():
        raise typer.Exit(INTERRUPTED)


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


def _read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """The prompt from the argument, a file or standard input; None where a person is to be asked."""
    if file is not None:
        if prompt is not None:
            raise InputError(f"There are two prompts, {prompt[:40]!r} and the file {file}; give one of them.")
        if str(file) != "-":
            try:
                return _decoded(file.read_bytes(), f"The prompt file {file}")
            except (OSError, ValueError) as e:
                raise InputError(f"The prompt file {file} cannot be read: {getattr(e, 'strerror', e)}.") from None
    elif prompt is not None and prompt != "-":
        return _checked(prompt, "The prompt")
    elif prompt is None and sys.stdin.isatty():
        return None
    return _decoded(sys.stdin.buffer.read(), "Standard input")


def _decoded(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"{source} is not UTF-8 text (see byte {e.start}); convert it first.") from None
    return _checked(text.removesuffix("\n").removesuffix("\r"), source)


def _checked(text: str, source: str) -> str:
    if not text.strip():
        raise InputError(f"{source} is empty; give the model something to answer.")
    return text


def _answer(
    model: Model, prompt: str, options: GenerateOptions, system: str | None, raw: bool, as_json: bool
) -> None:
    pieces = model.stream(prompt, options, system=system, raw=raw)
    if as_json:
        import dataclasses
        import json

        from edge.runtime.answer import collect

        print(json.dumps(dataclasses.asdict(collect(pieces)), ensure_ascii=False))
        return
    last = show(pieces)
    print(figures(last.timings), file=sys.stderr)


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

    rate, rss = timings.decode_tokens_per_s, peak_rss_mb()
    return " · ".join(
        [
            f"{timings.prompt_tokens} prompt tokens",
            "no first token" if timings.ttft_ms is None else f"TTFT {timings.ttft_ms:.0f} ms",
            f"{timings.generated_tokens} tokens" + ("" if rate is None else f", {rate:.1f} tokens/s"),
            "peak RSS unknown" if rss is None else f"peak RSS {rss:.0f} MiB",
        ]
    )
