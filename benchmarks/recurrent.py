"""Models whose layers keep states or have experts, of published shapes with random weights: a token after a short and a
long text, and a prompt, next to an attention model of as many weights, or of as many as a token reads.

    python benchmarks/recurrent.py --model qwen3.5-0.8b --work DIR --llama-bench PATH --torch

The weights are written once, as a GGUF file in Q8_0 with llama.cpp's names, with which all but PyTorch compute as it
is. DIR keeps it and its bundle.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import cpu_name

ROOT = Path(__file__).resolve().parents[1]
TEXTS = (128, 4000)  # tokens before those that are timed
PROMPT, STEPS, CHUNK = 512, 24, 500
CONTEXT = 4608
EVERY = 4  # of layers of Qwen3.5 that attend
COMMON = {"hidden_size": 1024, "tie_word_embeddings": True, "max_position_embeddings": 32768}
QWEN = {
    "model_type": "qwen3_5_text", **COMMON, "vocab_size": 248320, "intermediate_size": 3584, "num_hidden_layers": 24,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "layer_types": ["linear_attention" if (i + 1) % EVERY else "full_attention" for i in range(24)],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}  # fmt: skip
LFM = {
    "model_type": "lfm2", **COMMON, "vocab_size": 65536, "intermediate_size": 4608, "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "conv_L_cache": 3, "norm_eps": 1e-5,
    "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip

GRANITE = {
    "model_type": "granitemoe", **COMMON, "vocab_size": 49152, "intermediate_size": 512, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 8,
    "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "logits_scaling": 6.0, "residual_multiplier": 0.22,
}  # fmt: skip


def attention_model(layers: int, vocabulary: int) -> dict[str, Any]:
    """Of Qwen3 0.6B's layers: as many as make the weights of the recurrent model."""
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    sizes = {"vocab_size": vocabulary, "intermediate_size": 3072, "num_hidden_layers": layers}
    return {"model_type": "qwen3", **COMMON, **sizes, **heads}


MODELS = {
    "qwen3.5-0.8b": (QWEN, attention_model(33, 248320)),
    "lfm2-350m": (LFM, attention_model(18, 65536)),
    # Not recurrent: of 32 experts a token reads 8, some 400 million weights.
    "granite3-1b-a400m": (GRANITE, attention_model(24, 49152)),
}


def main() -> int:
    """Measure and print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--work", type=Path, required=True, help="the folder that keeps files and bundles")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program")
    parser.add_argument("--torch", action="store_true", help="transformers, too, in float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--make", action="store_true", help="make files and bundles, and measure nothing")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    files = [
        made(config, args.work / f"{args.model}{part}")
        for config, part in zip(MODELS[args.model], ("", "-attention"), strict=True)
    ]
    if args.make:
        return 0
    print(f"{args.model} of random weights in Q8_0; {cpu_name()}, {args.threads} threads")
    show("edge", of_edge(files[0], args.threads))
    show("edge, attention model of as many weights", of_edge(files[1], args.threads))
    if args.llama_bench:
        show("llama.cpp", of_llama(args.llama_bench, files[0], args.threads))
    if args.torch:
        show("transformers, float32", of_torch(MODELS[args.model][0], args.threads))
    return 0


def show(name: str, figures: dict[str, float]) -> None:
    """A line of tokens per second."""
    print(f"{name:42}", *(f"{what} {speed:8.2f}" for what, speed in figures.items()), flush=True)


def made(config: dict[str, Any], path: Path) -> Path:
    """The GGUF file of a model, and its bundle next to it, made where they are not there."""
    file = path.with_suffix(f"{path.suffix}.gguf")
    if not file.exists():
        from gguf import GGMLQuantizationType as Type

        sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
        import gguf_files

        gguf_files.VOCABULARY = config["vocab_size"]
        kept = ("norm", "conv1d", "shortconv.conv", "ssm_a", "ssm_dt", "ffn_gate_inp")  # as the converter has it
        types = dict.fromkeys(kept, Type.F32) | {"": Type.Q8_0}
        gguf_files.write_gguf(file.with_suffix(".part"), random_model(config), types=types)
        file.with_suffix(".part").replace(file)
    if not bundle_of(file).exists():
        import edge

        edge.export(file, bundle_of(file), weights="gguf", effort="quick", check=False, max_context=CONTEXT)
    return file


def bundle_of(file: Path) -> Path:
    """Where the bundle of a GGUF file is."""
    return file.with_suffix(".edge")


def random_model(config: dict[str, Any]) -> Any:
    """A transformers model in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": None}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config, **ends)).eval()


def timed(read: Callable[[int], None], step: Callable[[], None]) -> dict[str, float]:
    """Tokens per second. read: begins a text and reads so many tokens. step: one token after them."""
    read(PROMPT)
    start = time.perf_counter()
    read(PROMPT)
    figures = {f"prompt of {PROMPT}": PROMPT / (time.perf_counter() - start)}
    for length in TEXTS:
        read(length)
        step()
        took = []
        for _ in range(STEPS):
            start = time.perf_counter()
            step()
            took.append(time.perf_counter() - start)
        figures[f"after {length}"] = 1 / float(np.median(took))
    return figures


def of_edge(file: Path, threads: int) -> dict[str, float]:
    """This runtime's figures."""
    from edge.bundle import open_bundle
    from edge.runtime.load import open_engine

    engine = open_engine(open_bundle(bundle_of(file)), threads=threads)
    tokens = np.random.default_rng(0).integers(3, 1000, CONTEXT)
    cache = engine.new_cache()

    def read(count: int) -> None:
        cache.reset()
        for start in range(0, count, CHUNK):
            piece = tokens[start : min(start + CHUNK, count)]
            engine.step(cache, piece, rows=np.array([len(piece) - 1]), want="tokens")

    return timed(read, lambda: engine.step(cache, tokens[:1], rows=np.array([0]), want="tokens"))


def of_llama(program: Path, file: Path, threads: int) -> dict[str, float]:
    """llama.cpp's figures."""
    command = [program, "-m", file, "-t", threads, "-r", "1", "-o", "json", "-fa", "1"]
    figures = {}
    for what, more in (
        (f"prompt of {PROMPT}", ["-p", PROMPT, "-n", 0]),
        *((f"after {length}", ["-p", 0, "-n", STEPS, "-d", length]) for length in TEXTS),
    ):
        done = subprocess.run([str(part) for part in (*command, *more)], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr[-300:], file=sys.stderr)
            return figures
        figures[what] = float(json.loads(done.stdout)[0]["avg_ts"])
    return figures


def of_torch(config: dict[str, Any], threads: int) -> dict[str, float]:
    """transformers' figures."""
    import torch
    from transformers import DynamicCache

    torch.set_num_threads(threads)
    model, tokens = random_model(config), torch.arange(CONTEXT)[None] % 1000 + 3
    state: dict[str, Any] = {}

    @torch.no_grad()
    def run(piece: Any) -> None:
        model(piece, past_key_values=state["cache"], use_cache=True, logits_to_keep=1)

    def read(count: int) -> None:
        state["cache"] = DynamicCache(config=model.config)
        for start in range(0, count, CHUNK):
            run(tokens[:, start : min(start + CHUNK, count)])

    return timed(read, lambda: run(tokens[:, :1]))


if __name__ == "__main__":
    sys.exit(main())
