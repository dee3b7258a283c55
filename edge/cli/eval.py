"""`edge eval`: perplexity on a text, how far two models agree on it, and how good answers are."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import Parser, add_json, add_provider, add_threads
from edge.cli.export import stages
from edge.errors import InputError
from edge.text_file import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.manifest import Tokens
    from edge.runtime.check.perplexity import LogitsSource

NAME = "eval"
HELP = "Measure perplexity, how far two bundles agree, or how good answers are."
TASKS = ("qa", "summarize", "translate")
OF_ANSWERS = ("speculate", "instruction", "limit", "max_tokens")  # options
WINDOW, TOKENS = 512, 10240  # where no other numbers are given


def add_arguments(parser: Parser) -> None:
    bundle = "the bundle to measure, a folder NAME.edge"
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, nargs="?", help=bundle)

    add = parser.add_argument_group("what it is measured on").add_argument
    add("--text", metavar="FILE", type=Path, help="the text to predict, in UTF-8")
    add("--qa", metavar="FILE.jsonl", type=Path, help="answer each question, and compare with its answer")
    add("--summarize", metavar="FILE.jsonl", type=Path, help="summarize each text, and compare with its summary")
    add("--translate", metavar="FILE.jsonl", type=Path, help="translate each source, and compare with its target")

    add = parser.add_argument_group("text").add_argument
    add("--window", metavar="N", type=int, help="tokens that are predicted from each other (default: 512)")
    start = "use no more tokens from the start of the text (default: 10240)"
    add("--tokens", metavar="N", type=int, help=start)
    checkpoint = "measure this checkpoint in float32 with Torch, or compare with it"
    add("--torch", metavar="SOURCE", help=checkpoint)
    other = "compare with this bundle: top-1 agreement, KL divergence"
    add("--agree", metavar="OTHER", type=Path, help=other)
    prompt = "with --skip: tokens of each window that are its prompt (default: half)"
    add("--given", metavar="N", type=int, help=prompt)
    form = "measure the int8 prefill graph of BUNDLE (docs/guide/long-prompts.md)"
    add("--prefill-graph", action="store_true", help=form)

    add = parser.add_argument_group("answers").add_argument
    add("--speculate", metavar="DRAFTER", help="what drafts them, as of edge run (default: off)")
    before = "what stands before each text that a decoder answers"
    add("--instruction", metavar="TEXT", help=before)
    add("--limit", metavar="N", type=int, help="answer no more than the first N lines")
    add("--max-tokens", metavar="N", type=int, help="maximum tokens of an answer (default: 64, 160, 128 by task)")

    group = parser.add_argument_group("how")
    add = group.add_argument
    add("--skip", metavar="POLICY", help="measure with layers left out, as by edge run, next to none")
    settings = "settings of the policy that --skip names, measured one after another"
    add("--sweep", metavar="A,B,...", help=settings)
    add("--plot", metavar="FILE", type=Path, help="with --skip: draw quality against speed (.png or .svg)")
    add("--kv", metavar="TYPE", help="what BUNDLE's KV cache is kept in: float32 (default) or int8")
    add_threads(group)
    add_provider(group)
    add_json(group)


def command(args: argparse.Namespace) -> None:
    """Measure perplexity on a text: windows that do not overlap, every token of a window but its first predicted.

    With --agree, or with a bundle and --torch, both are measured and compared: how often they find the same token most
    likely, and the KL divergence of the bundle from the other, in nats a token.

    With --qa (lines of question and answer), --summarize (text, summary) or --translate (source, target) the bundle
    answers greedily instead, under any --skip and --speculate, and is scored: exact match and F1, ROUGE-L, BLEU.
    """
    if sum(getattr(args, name) is not None for name in ("text", *TASKS)) != 1:
        raise InputError("Give one thing to measure on: --text, --qa, --summarize or --translate FILE.")
    several = args.torch is not None or args.agree is not None or args.prefill_graph
    if args.text is None:
        from edge.cli.eval_tasks import run_task

        if args.bundle is None or several or args.given is not None:
            raise InputError("Answers need a bundle alone, without --torch, --agree, --prefill-graph and --given.")
        if args.window is not None or args.tokens is not None:
            option = "--window" if args.tokens is None else "--tokens"
            raise InputError(f"{option} is about a text that is predicted; leave it out, or give --text.")
        run_task(args, next(name for name in TASKS if getattr(args, name) is not None))
        return
    _check(args, several)
    args.window = WINDOW if args.window is None else args.window
    args.tokens = TOKENS if args.tokens is None else args.tokens
    content = _read(args.text)
    if args.skip is not None:
        from edge.cli.eval_skip import run_skip

        run_skip(args, content)
        return
    window, threads, runs = args.window, args.threads, args.provider
    with stages() as (progress, say):
        progress(0, 0, "opening")
        named = ((args.bundle, args.prefill_graph, args.kv), (args.agree, False, None))
        subjects = [_open_bundle(path, window, threads, runs, *how) for path, *how in named if path is not None]
        if args.torch is not None:
            subjects.append(_open_torch(args.torch, window, threads, progress, say))
        result = _measure(subjects, content, args.text, window, args.tokens, progress)
    if args.json:
        print(json.dumps({"text": str(args.text), "window": window, **result}, indent=1, ensure_ascii=False))
    else:
        _show(result)


def _check(args: argparse.Namespace, several: bool) -> None:
    """Raise InputError where options about a text do not go together. several: whether something besides a bundle's
    plain form is measured."""
    for name in OF_ANSWERS:
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is about answers; measure them with --qa, --summarize or --translate.")
    if args.bundle is None and args.torch is None:
        raise InputError("There is nothing to measure; give a bundle, or a checkpoint with --torch SOURCE.")
    if args.bundle is None and args.prefill_graph:
        raise InputError("--prefill-graph measures a graph of a bundle; give the bundle.")
    if args.kv is not None and (args.bundle is None or args.skip is not None or args.prefill_graph):
        raise InputError("--kv is about a bundle as a whole; give one, without --skip and --prefill-graph.")
    if args.skip is not None and (args.bundle is None or several):
        raise InputError("--skip compares a bundle with itself: leave out --torch, --agree and --prefill-graph.")
    for name in ("sweep", "given", "plot"):
        if args.skip is None and getattr(args, name) is not None:
            raise InputError(f"--{name} is about skipped layers; name a policy with --skip.")
    if args.agree is not None and args.torch is not None:
        raise InputError("--agree and --torch both name something to compare with; give one of them.")
    if args.agree is not None and args.bundle is None:
        raise InputError("--agree compares two bundles; give the other one too.")


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


def _open_bundle(
    path: Path, window: int, threads: int | None, provider: str, prefill: bool, kv: str | None
) -> _Subject:
    from edge.bundle import open_bundle
    from edge.runtime.check.perplexity import EngineLogits, check_decoder, check_window
    from edge.runtime.load import open_engine
    from edge.runtime.speculate.base import AUTO
    from edge.runtime.text.tokenizer import Text

    bundle = open_bundle(path)
    check_decoder(bundle)
    check_window(window, bundle.manifest.context)
    bundle.check_files_once()
    engine = open_engine(bundle, context=window, threads=threads, kv=kv or AUTO, provider=provider)
    if prefill and engine.prefill is None:
        raise InputError(f"{path} has no int8 prefill graph to measure; edge export --prefill-weights int8 makes one.")
    source = EngineLogits(engine, window, prefill=prefill)
    what = "prefill" if prefill else kv and f"KV cache in {kv}"
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
    from edge.runtime.check.perplexity import check_window

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
    from edge.runtime.check.perplexity import compare, perplexity, windows

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
