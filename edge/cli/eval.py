"""`edge eval`: perplexity on a text, how far two models agree on it, and how good answers are."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import Parser, add_field, add_json
from edge.cli.export import stages
from edge.cli.tables import print_json
from edge.errors import InputError
from edge.text_file import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.catalog import Progress, Say
    from edge.manifest import Tokens
    from edge.runtime.check.perplexity import LogitsSource

NAME = "eval"
HELP = "Measure perplexity, how far two bundles agree, or how good answers are."
TASKS = ("qa", "summarize", "translate")
OF_ANSWERS = ("speculate", "instruction", "limit", "max_tokens")  # options
OF_SKIPPING = ("sweep", "given", "plot")
WINDOW, TOKENS = 512, 10240  # defaults


def add_arguments(parser: Parser) -> None:
    from edge.runtime.load_options import LoadOptions
    from edge.runtime.providers import AUTO

    about = "the bundle to measure, a folder NAME.edge, or a .gguf file"
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, nargs="?", help=about)

    add = parser.options("what it is measured on")
    add("--text FILE", "the text to predict, in UTF-8", Path)
    add("--qa FILE.jsonl", "answer each question, and compare with its answer", Path)
    add("--summarize FILE.jsonl", "summarize each text, and compare with its summary", Path)
    add("--translate FILE.jsonl", "translate each source, and compare with its target", Path)

    add = parser.options("text")
    add("--window N", "tokens that are predicted from each other (default: 512)", int)
    add("--tokens N", "maximum tokens from the start of the text (default: 10240)", int)
    add("--torch SOURCE", "measure this checkpoint in float32 with Torch, or compare with it")
    add("--agree OTHER", "compare with this bundle: top-1 agreement, KL divergence", Path)
    add("--given N", "with --skip: tokens of each window that are its prompt (default: half)", int)
    add("--prefill-graph", "measure the int8 prefill graph of BUNDLE (docs/guide/long-prompts.md)")

    add = parser.options("answers")
    add_field(add, LoadOptions, "speculate", "what drafts them, as in edge run (default: off)")
    add("--instruction TEXT", "text before each prompt of a decoder")
    add("--limit N", "answer the first N lines only", int)
    add("--max-tokens N", "maximum tokens of an answer (default: 64, 160, 128 by task)", int)

    add = parser.options("how")
    add_field(add, LoadOptions, "skip", "measure with layers skipped, as in edge run, and without")
    add("--sweep A,B,...", "settings of the policy that --skip names, measured one after another")
    add("--plot FILE", "with --skip: draw quality against speed (.png or .svg)", Path)
    add_field(add, LoadOptions, "kv", "type of BUNDLE's KV cache: float32 (default) or int8")
    add_field(add, LoadOptions, "threads")
    add_field(add, LoadOptions, "provider", default=AUTO)
    add_field(add, LoadOptions, "strict")
    add_json(add)


def command(args: argparse.Namespace) -> None:
    """Measure perplexity on a text: windows that do not overlap, every token of a window but its first predicted.

    With --agree, or with a bundle and --torch, both are measured and compared: how often their most likely token is the
    same, and the KL divergence of the bundle from the other, in nats per token. A .gguf file is compared with its own
    values in float32.

    With --qa (lines of question and answer), --summarize (text, summary) or --translate (source, target) the bundle
    answers greedily instead, under any --skip and --speculate, and is scored: exact match and F1, ROUGE-L, BLEU.
    """
    if args.bundle is not None and args.bundle.suffix == ".gguf" and args.bundle.is_file():
        _open_file(args)
    tasks = [name for name in TASKS if getattr(args, name) is not None]
    if len(tasks) + (args.text is not None) != 1:
        raise InputError("Give one thing to measure on: --text, --qa, --summarize or --translate FILE.")
    if tasks:
        from edge.cli.eval_tasks import run_task

        if args.bundle is None or _compared(args) or args.given is not None:
            raise InputError("Answers need a bundle alone, without --torch, --agree, --prefill-graph and --given.")
        for name in ("tokens", "window"):
            if getattr(args, name) is not None:
                raise InputError(f"--{name} is about a text that is predicted; omit it, or give --text.")
        run_task(args, tasks[0])
        return
    _check(args)
    args.window = WINDOW if args.window is None else args.window
    args.tokens = TOKENS if args.tokens is None else args.tokens
    content = read_text(args.text, "The text")
    if not content.strip():
        raise InputError(f"The text {args.text} is empty; give one with words in it.")
    if args.skip is not None:
        from edge.cli.eval_skip import run_skip

        run_skip(args, content)
        return
    with stages() as (progress, say):
        progress(0, 0, "opening")
        named = ((args.bundle, args.prefill_graph, args.kv), (args.agree, False, None))
        subjects = [_open_bundle(args, *each) for each in named if each[0] is not None]
        if args.torch is not None:
            subjects.append(_open_torch(args, progress, say))
        result = _measure(subjects, content, args, progress)
    if args.json:
        print_json({"text": str(args.text), "window": args.window, **result})
        return
    print(f"{result['model']}: perplexity {result['perplexity']:.3f} over {result['tokens']:,} predicted tokens")
    if "reference" in result:
        print(f"{result['reference']}: perplexity {result['perplexity_reference']:.3f}")
        print(
            f"same most likely token {result['top1_agreement']:.2%}, KL divergence mean {result['kl_mean']:.4f}, "
            f"95th percentile {result['kl_p95']:.4f} nats"
        )


def _open_file(args: argparse.Namespace) -> None:
    """Measure the bundle that `edge run` keeps of a GGUF file, on a text next to the file in float32 where PyTorch is
    installed."""
    from edge.cli.run.source import open_source

    file = args.bundle
    if args.text is not None and not (_compared(args) or args.skip is not None):
        if find_spec("torch") is None:
            print(
                "Without PyTorch the file's values in float32 are not measured; see the extra export.", file=sys.stderr
            )
        else:
            args.torch = str(file)
    args.bundle = open_source(file).root


def _compared(args: argparse.Namespace) -> bool:
    """True if something other than a bundle's decode graph is measured."""
    return args.torch is not None or args.agree is not None or args.prefill_graph


def _check(args: argparse.Namespace) -> None:
    """Raise InputError where options about a text contradict each other."""
    bundle, skip, graph = args.bundle is not None, args.skip is not None, args.prefill_graph
    for name in OF_ANSWERS:
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is about answers; measure them with --qa, --summarize or --translate.")
    if not bundle and args.torch is None:
        raise InputError("There is nothing to measure; give a bundle, or a checkpoint with --torch SOURCE.")
    if not bundle and graph:
        raise InputError("--prefill-graph measures a graph of a bundle; give the bundle.")
    if args.kv is not None and (not bundle or skip or graph):
        raise InputError("--kv is about a bundle as a whole; give one, without --skip and --prefill-graph.")
    if skip and (not bundle or _compared(args)):
        raise InputError("--skip compares a bundle with itself, without --torch, --agree and --prefill-graph.")
    for name in OF_SKIPPING:
        if not skip and getattr(args, name) is not None:
            raise InputError(f"--{name} is about skipped layers; name a policy with --skip.")
    if args.agree is not None and args.torch is not None:
        raise InputError("--agree and --torch both name something to compare with; give one of them.")
    if args.agree is not None and not bundle:
        raise InputError("--agree compares two bundles; give the other one too.")


@dataclass(frozen=True)
class _Subject:
    """Something that can be measured."""

    name: str
    source: LogitsSource
    encode: Callable[[str], list[int]]
    tokens: Tokens


def _open_bundle(args: argparse.Namespace, path: Path, prefill: bool, kv: str | None) -> _Subject:
    from edge.cli.answering import open_answering
    from edge.runtime.check.perplexity import EngineLogits, check_decoder, check_window
    from edge.runtime.costs.measured import open_for
    from edge.runtime.engine.engine import Engine
    from edge.runtime.engine.variant import Variant
    from edge.runtime.keywords import LoadKeywords
    from edge.runtime.load import open_engine
    from edge.runtime.text.tokenizer import Text

    bundle = open_answering(path)
    check_decoder(bundle)
    check_window(args.window, bundle.manifest.context)
    bundle.check_files_once()
    provider = open_for(bundle, args.provider, args.threads, args.strict)
    if prefill:  # whether or not a run would use it
        if bundle.manifest.prefill is None or not bundle.manifest.prefill.known:
            raise InputError(
                f"{path} has no int8 prefill graph to measure; edge export --prefill-weights int8 makes one."
            )
        engine = Engine(bundle, Variant(prefill=True, context=args.window), provider)
    else:
        asked: LoadKeywords = {"context": args.window, "provider": provider}
        engine = open_engine(bundle, **(asked if kv is None else asked | {"kv": kv}))
    source = EngineLogits(engine, args.window, prefill=prefill)
    what = "prefill" if prefill else kv and f"KV cache in {kv}"
    return _Subject(f"{path} ({what})" if what else str(path), source, Text(bundle).encode, bundle.manifest.tokens)


def _open_torch(args: argparse.Namespace, progress: Progress, say: Say) -> _Subject:
    import torch  # noqa: F401, first: a missing one is told from a broken checkpoint
    from tokenizers import Tokenizer

    from edge.export.checkpoint import open_checkpoint
    from edge.export.reference.in_torch import TorchLogits, load_torch
    from edge.runtime.check.perplexity import check_window

    checkpoint = open_checkpoint(args.torch, progress=progress, say=say, floats=True)
    if checkpoint.config.get("is_encoder_decoder"):
        raise InputError(
            f"{args.torch} is an encoder-decoder, and the perplexity of a text is of decoders alone; export it, and "
            "measure the bundle with --translate or --summarize."
        )
    check_window(args.window, checkpoint.config.get("max_position_embeddings", args.window))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    model = TorchLogits(load_torch(checkpoint, args.threads, progress))
    return _Subject(f"{args.torch} (Torch, float32)", model, encode, checkpoint.tokenizer.tokens)


def _measure(subjects: list[_Subject], content: str, args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    from edge.runtime.check.perplexity import compare, perplexity, windows

    first = subjects[0]
    ids = first.encode(content)
    if any(other.encode(content) != ids for other in subjects[1:]):
        raise InputError(
            f"{first.name} and {subjects[1].name} cut {args.text} into different tokens, so their predictions cannot "
            "be compared; choose two models with the same tokenizer."
        )
    texts = windows(ids, first.tokens, window=args.window, limit=args.tokens)

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
