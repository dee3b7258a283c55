"""A Llama of random weights, as wide as one likes, in 4 bits: what the steps of larger models cost, without the model.

    python benchmarks/wider.py --gguf smollm2-135m-instruct.gguf -o wide.gguf
    edge export wide.gguf --weights keep --draft-text 0 --no-check -o wide.edge
    edge profile wide.edge
    python benchmarks/choosing.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl --curve wide.edge

Matrices are in Q4_0, the vocabulary's in Q8_0, which `keep` takes as they are; tokens are those of the GGUF file. The
default has the shape of Llama 3.2 1B. What it says is noise: `choosing.py --curve` replays another model's answers at
what this one's steps cost.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gguf

CONTEXT = 8192
SCALE = 0.02  # standard deviation of weights


def main() -> int:
    """Write the file. Returns the exit status."""
    args = parse(sys.argv[1:])
    import gguf

    from edge.export.facts.gguf_header import GGUFHeader

    tokens = {key: value for key, value in GGUFHeader(args.gguf).metadata.items() if key.startswith("tokenizer.")}
    part = args.out.with_name(f"{args.out.name}.part")
    writer = gguf.GGUFWriter(part, "llama", use_temp_file=True)
    describe(writer, args)
    for key, value in tokens.items():
        add(writer, key, value)
    random, count = np.random.default_rng(0), 0
    for name, shape, kind in tensors(args, len(tokens["tokenizer.ggml.tokens"])):
        values = np.ones(shape, np.float32) if kind == "F32" else random.standard_normal(shape, np.float32) * SCALE
        stored = getattr(gguf.GGMLQuantizationType, kind)
        writer.add_tensor(name, values if kind == "F32" else gguf.quants.quantize(values, stored), raw_dtype=stored)
        count += values.size
        print(f"\r{count / 1e6:,.0f}M weights", end="", flush=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(args.out)
    print(f" in {args.out}")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gguf", type=Path, required=True, help="whose tokens it has")
    parser.add_argument("--out", "-o", type=Path, required=True)
    for name, value, what in (
        ("width", 2048, "of the residual stream, a multiple of 32"),
        ("feed-forward", 8192, "width of feed-forward blocks, a multiple of 32"),
        ("layers", 16, "how many"),
        ("heads", 32, "of queries"),
        ("kv-heads", 8, "of keys and values"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{what}; default: {value}")
    return parser.parse_args(arguments)


def describe(writer: gguf.GGUFWriter, args: argparse.Namespace) -> None:
    """The model's sizes."""
    writer.add_name("wider")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(args.width)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(args.feed_forward)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_rope_dimension_count(args.width // args.heads)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One entry of another file's metadata."""
    kinds = {list: writer.add_array, str: writer.add_string, bool: writer.add_bool, float: writer.add_float32}
    kinds.get(type(value), writer.add_uint32)(key, value)


def tensors(args: argparse.Namespace, vocab: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and stored type of each; the head is the embedding."""
    width, wide, keys = args.width, args.feed_forward, args.width // args.heads * args.kv_heads
    yield "token_embd.weight", (vocab, width), "Q8_0"
    for layer in range(args.layers):
        norms = {"attn_norm": (width,), "ffn_norm": (width,)}
        matrices = {
            "attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, width),
            "ffn_gate": (wide, width), "ffn_up": (wide, width), "ffn_down": (width, wide),
        }  # fmt: skip
        for name, shape in (norms | matrices).items():
            yield f"blk.{layer}.{name}.weight", shape, "F32" if name in norms else "Q4_0"
    yield "output_norm.weight", (width,), "F32"


if __name__ == "__main__":
    sys.exit(main())
