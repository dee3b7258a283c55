"""What a smaller model costs: perplexity against bytes and tokens/s, next to llama.cpp's files of the same weights.

    python benchmarks/front.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --text wikitext2-test.txt

Bundles and files are made on the first run, which takes minutes for each bundle, and kept in --work. Every form is
compared, through its own engine, with the weights of the GGUF file in float32. docs/lab/quantization.md has figures.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import convert
import machine
import numpy as np
import report
from comparison import Comparison, add_common, names_of, parsed, say, write
from engines import DECODER, Unavailable
from numpy.typing import NDArray
from processes import Worker

OURS, PEER = "edge", "llama.cpp"
VARIANTS = {OURS: "one token a step", PEER: "flash attention"}
# Of `edge export`, besides one bundle for each of --bits.
OTHERS = {"int4 symmetric": ("--weights", "int4", "--symmetric"), "keep": ("--weights", "keep")}
TYPES = ("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q8_0")
WINDOW, TOKENS = 512, 10_240
CHUNK = 64  # rows of llama.cpp's logits at a time
CONTEXT, DECODED = 128, 64  # tokens of the timed prompts and answers


@dataclass
class Form:
    """One point of the front: a bundle or a GGUF file, whose name begins with its engine's."""

    name: str
    path: Path
    megabytes: float  # of all its files
    perplexity: float = 0.0
    divergence: float = 0.0  # nats a token, from the float32 model
    same: float = 0.0  # share of tokens whose likeliest one is the float32 model's
    rates: list[float] = field(default_factory=list)  # tokens/s, by round

    @property
    def engine(self) -> str:
        return self.name.split()[0]


class LlamaLogits:
    """The logits of a GGUF file by llama.cpp, as `edge.runtime.check.perplexity` reads them."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self._c = llama_cpp
        self._llama = llama_cpp.Llama(
            str(path), n_ctx=WINDOW, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
        )
        self.vocab_size: int = self._llama.n_vocab()
        self.close = self._llama.close

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        c, context = self._c, self._llama.ctx
        c.llama_memory_clear(c.llama_get_memory(context), True)
        batch = c.llama_batch_init(CHUNK, 0, 1)
        try:
            for start in range(0, len(tokens), CHUNK):
                piece = tokens[start : start + CHUNK]
                batch.n_tokens = len(piece)
                for i, token in enumerate(piece):
                    batch.token[i], batch.pos[i], batch.logits[i] = int(token), start + i, 1
                    batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                if status := c.llama_decode(context, batch):
                    raise RuntimeError(f"llama_decode returned {status}")
                yield np.ctypeslib.as_array(c.llama_get_logits(context), shape=(len(piece), self.vocab_size))
        finally:
            c.llama_batch_free(batch)


def main() -> int:
    """Make, measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    for path in (args.gguf, args.text):
        if not path.is_file():
            print(f"front: there is no {path}", file=sys.stderr)
            return 2
    work = args.work / convert.key(args.gguf)
    for folder in (args.out, work):
        folder.mkdir(parents=True, exist_ok=True)
    forms, skipped = make(args, work)
    os.environ["OMP_WAIT_POLICY"] = "passive"  # PyTorch's and llama.cpp's threads would wait for each other, spinning
    base, ids = measure_quality(forms, args)
    del os.environ["OMP_WAIT_POLICY"]
    with (args.out / "front.log").open("w") as log:
        compared = Comparison(DECODER, args.threads, log, (sys.executable,), capacity=CONTEXT + DECODED + 16)
        measure_speed(compared, forms, ids, args.rounds)
    say("\n" + table(forms, base) + "\n")
    for name, why in skipped.items():
        say(f"SKIPPED {name}: {why}")
    for warning in compared.warnings:
        say(f"WARNING: {warning}")
    result: dict[str, Any] = {"gguf": args.gguf.name, "float32": base, "skipped": skipped}
    result |= {"warnings": compared.warnings, "forms": [asdict(form) | {"path": form.path.name} for form in forms]}
    write(args.out / "front.json", args.threads, result)
    plot(forms, base, f"{args.gguf.stem}, {args.threads} threads, {machine.cpu_name()}", args.out / "front.png")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--gguf", type=Path, required=True, help="the model, whose weights all forms are made of")
    add("--text", type=Path, required=True, help="the text that is predicted")
    add("--bits", type=_numbers, default=[4.6, 4.8, 5.2, 6.0], metavar="N,...", help="of int4 bundles")
    add("--effort", default="normal", help="of `edge export` for int4 bundles; default: normal")
    types = partial(names_of, TYPES)
    add("--types", type=types, default=list(TYPES), metavar="NAME,...", help="of llama.cpp's files")
    add("--rounds", type=int, default=7)
    add("--tokens", type=int, default=TOKENS, help=f"to predict at most; default: {TOKENS:,}")
    add_common(parser)
    return parsed(parser, arguments)


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def make(args: argparse.Namespace, work: Path) -> tuple[list[Form], dict[str, str]]:
    """The forms, made where they are not there yet or the exporter has changed, and why others are missing."""
    forms, skipped = list[Form](), dict[str, str]()
    exports = {f"int4 {bits:g}": ("--weights", "int4", "--bits", f"{bits:g}") for bits in args.bits} | OTHERS
    for name, options in exports.items():
        given = (*options, "--effort", args.effort, "--draft-text", "0")
        try:
            path = convert.bundle(args.gguf, work, f"{name.replace(' ', '-')}-{args.effort}", *given)
        except Unavailable as error:
            skipped[name] = str(error)
            continue
        size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        forms.append(Form(f"{OURS} {name}", path, size / 1e6))
    for kind in args.types:
        path = work / f"{kind}.gguf"
        try:
            if not path.exists():
                say(f"making {kind}")
                requantize(args.gguf, path, kind, args.threads)
        except (ImportError, Unavailable) as error:
            skipped[f"{PEER} {kind}"] = str(error)
            continue
        forms.append(Form(f"{PEER} {kind}", path, path.stat().st_size / 1e6))
    return forms, skipped


def requantize(source: Path, out: Path, kind: str, threads: int) -> None:
    """A GGUF file of another type, by llama.cpp.

    Raises:
        ImportError: llama-cpp-python is not installed.
        Unavailable: llama.cpp refuses.
    """
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)  # it has a line for each tensor
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    settings.nthread, settings.allow_requantize = threads, True
    part = out.with_suffix(".part")
    status = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(part), ctypes.byref(settings))
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))  # `silent` ends with this function
    if status:
        raise Unavailable(f"llama_model_quantize returned {status}")
    part.rename(out)


def measure_quality(forms: Sequence[Form], args: argparse.Namespace) -> tuple[float, list[int]]:
    """Write perplexity and divergence into the forms; returns the float32 model's perplexity, and the text's tokens."""
    from tokenizers import Tokenizer

    from edge.bundle import open_bundle
    from edge.export.checkpoint import open_checkpoint
    from edge.export.reference.in_torch import TorchLogits, load_torch
    from edge.runtime.check.perplexity import EngineLogits, compare, perplexity, windows
    from edge.runtime.load import open_engine

    checkpoint = open_checkpoint(args.gguf)
    tokenizer = checkpoint.tokenizer
    text = args.text.read_text(encoding="utf-8")
    ids = Tokenizer.from_str(tokenizer.json).encode(text, add_special_tokens=False).ids
    texts = windows(ids, tokenizer.tokens, window=WINDOW, limit=args.tokens)
    reference = TorchLogits(load_torch(checkpoint, args.threads))
    base = perplexity(reference, texts).perplexity
    say(f"float32: perplexity {base:.2f}")
    for form in forms:
        if form.engine == PEER:
            with closing(LlamaLogits(form.path, args.threads)) as peer:
                found = compare(reference, peer, texts)
        else:
            engine = open_engine(open_bundle(form.path), context=WINDOW, threads=args.threads)
            found = compare(reference, EngineLogits(engine, WINDOW), texts)
        form.perplexity, form.divergence, form.same = found.candidate, found.kl_mean, found.top1
        say(f"{form.name}: perplexity {form.perplexity:.2f}, divergence {form.divergence:.4f}")
    return base, ids


def measure_speed(compared: Comparison, forms: Sequence[Form], ids: list[int], rounds: int) -> None:
    """Write tokens/s into the forms, each round on another piece of the text `ids`."""

    def answer(worker: Worker, number: int) -> dict[str, float]:
        timed = worker.generate(ids[number * CONTEXT : (number + 1) * CONTEXT], DECODED)
        return {"decode": 1 / timed.decode_s}

    for form in forms:
        compared.enter(form.name, lambda _, path=form.path: path, variants=[VARIANTS[form.engine]])  # type: ignore[misc]
    compared.rounds(rounds, lambda worker: answer(worker, rounds), [answer])
    for form in forms:
        form.rates = compared.figures["decode"][form.name]


def table(forms: Sequence[Form], base: float) -> str:
    """The front in Markdown, smallest first; speeds relative to the first form's, round by round."""
    rates = {form.name: form.rates for form in forms}
    rows = [["", "MB", "perplexity", "more than float", "divergence", "same token", "tokens/s", "relative"]]
    for form in sorted(forms, key=lambda form: form.megabytes):
        quality = [f"{form.perplexity:.2f}", f"{form.perplexity / base - 1:.1%}", f"{form.divergence:.4f}"]
        relative = report.ratio(rates, forms[0].name, form.name).value
        speed = [f"{median(form.rates):.1f}", f"{relative:.2f}"]
        rows.append([form.name, f"{form.megabytes:.1f}", *quality, f"{form.same:.1%}", *speed])
    return report.table(rows)


def plot(forms: Sequence[Form], base: float, title: str, path: Path) -> None:
    """Perplexity against megabytes and tokens/s; low and left, low and right is better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    for engine, colour in zip((OURS, PEER), report.COLOURS, strict=False):
        chosen = [form for form in forms if form.engine == engine]
        lost = [100 * (form.perplexity / base - 1) for form in chosen]
        for axis, at in zip(axes, ([f.megabytes for f in chosen], [median(f.rates) for f in chosen]), strict=True):
            axis.scatter(at, lost, color=colour, label=engine)
            for form, x, y in zip(chosen, at, lost, strict=True):
                name = form.name.removeprefix(engine).strip()
                axis.annotate(name, (x, y), fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes[0].set_ylabel("perplexity above float32, %")
    axes[0].set_yscale("symlog", linthresh=1)
    axes[0].set_xlabel("MB, all files")
    axes[1].set_xlabel(f"tokens/s at {CONTEXT} tokens, one token a step")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
