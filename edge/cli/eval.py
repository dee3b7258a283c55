"""`edge eval`: perplexity on a text, how far two models agree on it, and how good answers are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.export import stages
from edge.errors import InputError
from edge.text_file import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.manifest import Tokens
    from edge.runtime.evaluate import LogitsSource

WINDOW, TOKENS = 512, 10240  # where no other numbers are given


def command(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="The bundle to measure, a folder NAME.edge.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="The text to predict, in UTF-8.")
    ] = None,
    qa: Annotated[
        Path | None,
        typer.Option("--qa", metavar="FILE.jsonl", help="Answer each question, and compare with its answer."),
    ] = None,
    summarize: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Summarize each text, and compare with its summary.")
    ] = None,
    translate: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Translate each source, and compare with its target.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that are predicted from each other; default: 512.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Use no more tokens from the start of the text; default: 10240.")
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Measure this checkpoint in float32 with Torch, or compare with it."),
    ] = None,
    agree: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Compare with this bundle: top-1 agreement, KL divergence.")
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Measure with layers left out, as by edge run, beside none."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Settings of the policy that --skip names, measured one after another."),
    ] = None,
    given: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --skip: tokens of each window that are its prompt; default: half."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --skip: draw quality against speed (.png or .svg).")
    ] = None,
    speculate: Annotated[
        str | None, typer.Option(metavar="DRAFTER", help="Of answers: what drafts them, as by edge run; default: off.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands before each text that a decoder answers.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Answer no more than the first N lines.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of an answer; default: 64, 160, 128 by task.")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Measure the form of BUNDLE that long prompts are read in (docs/wide.md).")
    ] = False,
    kv: Annotated[
        str | None, typer.Option(metavar="TYPE", help="What BUNDLE's KV cache is in: float32 (default) or int8.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads to compute with; default: one per core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure perplexity on a text: windows that do not overlap, every token of a window but its first predicted.

    With --agree, or with a bundle and --torch, both are measured and compared: how often they find the same token most
    likely, and the KL divergence of the bundle from the other, in nats a token.

    With --qa (lines of question and answer), --summarize (text, summary) or --translate (source, target) the bundle
    answers greedily instead, under any --skip and --speculate, and is scored: exact match and F1, ROUGE-L, BLEU.
    """
    files = {name: file for name, file in (("qa", qa), ("summarize", summarize), ("translate", translate)) if file}
    if len(files) + (text is not None) != 1:
        raise InputError("Give one thing to measure on: --text, --qa, --summarize or --translate FILE.")
    if files:
        from edge.cli.eval_tasks import TASKS, run_task

        if bundle is None or torch is not None or agree is not None or wide or given is not None:
            raise InputError("Answers are a bundle's own; give one, without --torch, --agree, --wide and --given.")
        if window is not None or tokens is not None:
            option = "--window" if tokens is None else "--tokens"
            raise InputError(f"{option} is about a text that is predicted; leave it out, or give --text.")
        (name, file), drafter = next(iter(files.items())), speculate or "off"
        run_task(
            bundle, TASKS[name], file, skip, sweep, drafter, kv, instruction, limit, max_tokens, threads, plot, as_json
        )
        return
    assert text is not None
    window, tokens = WINDOW if window is None else window, TOKENS if tokens is None else tokens
    answering = {"speculate": speculate, "instruction": instruction, "limit": limit, "max-tokens": max_tokens}
    for option, asked in answering.items():
        if asked is not None:
            raise InputError(f"--{option} is about answers; measure them with --qa, --summarize or --translate.")
    if bundle is None and torch is None:
        raise InputError("There is nothing to measure; give a bundle, or a checkpoint with --torch SOURCE.")
    if bundle is None and wide:
        raise InputError("--wide measures a form of a bundle; give the bundle.")
    if kv is not None and (bundle is None or skip is not None or wide):
        raise InputError("--kv is about a bundle as a whole; give one, without --skip and --wide.")
    if skip is not None:
        from edge.cli.eval_skip import run_skip

        if bundle is None or torch is not None or agree is not None or wide:
            raise InputError("--skip measures a bundle beside itself; give one, without --torch, --agree and --wide.")
        run_skip(bundle, text, _read(text), skip, sweep, given, window, tokens, threads, plot, as_json)
        return
    for option, value in (("--sweep", sweep), ("--given", given), ("--plot", plot)):
        if value is not None:
            raise InputError(f"{option} is about skipped layers; name a policy with --skip.")
    if agree is not None and torch is not None:
        raise InputError("--agree and --torch both name something to compare with; give one of them.")
    if agree is not None and bundle is None:
        raise InputError("--agree compares two bundles; give the other one too.")
    content = _read(text)
    with stages() as (progress, say):
        progress(0, 0, "opening")
        named = ((bundle, wide, kv), (agree, False, None))
        subjects = [_open_bundle(path, window, threads, form, dtype) for path, form, dtype in named if path is not None]
        if torch is not None:
            subjects.append(_open_torch(torch, window, threads, progress, say))
        result = _measure(subjects, content, text, window, tokens, progress)
    if as_json:
        print(json.dumps({"text": str(text), "window": window, **result}, indent=1, ensure_ascii=False))
    else:
        _show(result)


def _read(path: Path) -> str:
    text = read_text(path, "The text")
    if not text.strip():
        raise InputError(f"The text {path} is empty; give one with words in it.")
    return text


@dataclass(frozen=True)
class _Subject:
    """Something that can be measured."""

    name: str
    source: LogitsSource
    encode: Callable[[str], list[int]]
    tokens: Tokens


def _open_bundle(path: Path, window: int, threads: int | None, wide: bool, kv: str | None) -> _Subject:
    from edge.bundle import open_bundle
    from edge.runtime.evaluate import EngineLogits, check_decoder, check_window
    from edge.runtime.loading import open_engine
    from edge.runtime.speculate.base import AUTO
    from edge.runtime.text import Text

    bundle = open_bundle(path)
    check_decoder(bundle)
    check_window(window, bundle.manifest.context)
    bundle.check_files_once()
    engine = open_engine(bundle, context=window, threads=threads, kv=kv or AUTO)
    if wide and engine.wide is None:
        raise InputError(f"{path} has no wide form to measure; edge export --wide-weights int8 makes one.")
    source = EngineLogits(engine, window, wide=wide)
    what = "wide" if wide else kv and f"KV cache in {kv}"
    return _Subject(f"{path} ({what})" if what else str(path), source, Text(bundle).encode, bundle.manifest.tokens)


def _open_torch(
    source: str,
    window: int,
    threads: int | None,
    progress: Callable[[int, int, str], None],
    say: Callable[[str], None],
) -> _Subject:
    import torch  # noqa: F401, first: a missing one is told from a broken checkpoint
    from tokenizers import Tokenizer

    from edge.export.checkpoint import open_checkpoint
    from edge.export.torch_reference import TorchLogits, load_torch
    from edge.runtime.evaluate import check_window

    checkpoint = open_checkpoint(source, progress=progress, say=say)
    check_window(window, checkpoint.config.get("max_position_embeddings", window))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    model = TorchLogits(load_torch(checkpoint, threads, progress))
    return _Subject(f"{source} (Torch, float32)", model, encode, checkpoint.tokenizer.tokens)


def _measure(
    subjects: list[_Subject],
    content: str,
    path: Path,
    window: int,
    limit: int,
    progress: Callable[[int, int, str], None],
) -> dict[str, Any]:
    from edge.runtime.evaluate import compare, perplexity, windows

    first = subjects[0]
    ids = first.encode(content)
    if any(other.encode(content) != ids for other in subjects[1:]):
        raise InputError(
            f"{first.name} and {subjects[1].name} cut {path} into different tokens, so their predictions cannot be "
            "compared; choose two models with the same tokenizer."
        )
    texts = windows(ids, first.tokens, window=window, limit=limit)

    def advance(done: int, total: int) -> None:
        progress(done, total, "measuring windows")

    if len(subjects) == 1:
        alone = perplexity(first.source, texts, advance)
        return {"model": first.name, "tokens": alone.tokens, "perplexity": alone.perplexity}
    found = compare(subjects[1].source, first.source, texts, advance)
    return {
        "model": first.name,
        "reference": subjects[1].name,
        "tokens": found.tokens,
        "perplexity": found.candidate,
        "perplexity_reference": found.reference,
        "top1_agreement": found.top1,
        "kl_mean": found.kl_mean,
        "kl_p95": found.kl_p95,
    }


def _show(result: dict[str, Any]) -> None:
    print(f"{result['model']}: perplexity {result['perplexity']:.3f} over {result['tokens']:,} predicted tokens")
    if "reference" in result:
        print(f"{result['reference']}: perplexity {result['perplexity_reference']:.3f}")
        print(
            f"same most likely token {result['top1_agreement']:.2%}, KL divergence mean {result['kl_mean']:.4f}, "
            f"95th percentile {result['kl_p95']:.4f} nats"
        )
