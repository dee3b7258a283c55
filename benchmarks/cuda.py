"""First token and tokens per second on one GPU, next to transformers, in one run.

    python benchmarks/cuda.py                             # bodies of random weights: 135M, 1B and 8B, float16 and int4
    python benchmarks/cuda.py --shapes 135M --batches 1   # the smallest, alone

Speed does not depend on what weights say, so that nothing is downloaded. The share of the memory's bandwidth is of what
a copy of 4 GB reaches in the same run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from report import Goal, Metric, figures_table, is_ours, ratio

from edge.bundle import WEIGHTS, Bundle, BundleWriter, TensorFile
from edge.export.facts.family import heads_of
from edge.export.facts.tensors import FloatTensor, LazyWeights, QTensor, Weight
from edge.export.graph.caches import decoder_kv
from edge.export.graph.step import configuration
from edge.export.targets.cuda import TYPES, CUDAModel, written
from edge.export.targets.cuda.weights import BLOCK
from edge.export.targets.kind import write_json
from edge.manifest import FORMAT_VERSION, Dims, KVLayout, Manifest, Source, TensorGroup, Tokens
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.slots import Slots
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import TOKENS
from edge.runtime.providers import find_support, open_provider
from edge.runtime.providers.provider import Provider
from edge.targets import CUDA, TARGET_VERSION, DeviceTarget

PROMPTS = (128, 2048)
DECODED = 128  # tokens behind a prompt of 128
WARM = 16  # steps before they count: they are recorded and compiled
ROUNDS = 5
CONTEXT = 4096
COPIED = 4 * 10**9  # bytes
SHAPES: dict[str, dict[str, Any]] = {
    "135M": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    },
}  # fmt: skip
GOALS = {"transformers": 3.0, "transformers, compiled": 1.2}  # tokens per second at batch 1, as a ratio
SHARE = 0.6  # of the bandwidth, at 8B in int4

Figures = dict[str, dict[str, list[float]]]  # values by label and engine


class Contender(Protocol):
    """One engine over one body. bytes: of the weights that a step reads."""

    name: str
    bytes: int

    def first(self, prompt: int) -> float:
        """Seconds from a prompt to its first token."""

    def decode(self, batch: int) -> float:
        """Seconds a step of this many sequences, behind prompts of 128 tokens; every token is read."""


class RandomCheckpoint:
    """What graphs read of a checkpoint, made up."""

    kind = "random"

    def __init__(self, name: str, shape: Mapping[str, Any]) -> None:
        self.name = name
        self.config = {
            "model_type": "llama", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attention_bias": False,
            "mlp_bias": False, **shape,
        }  # fmt: skip
        self.shapes = dict(self._shapes())

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        config = self.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        narrow = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
        yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
        if not config["tie_word_embeddings"]:
            yield "lm_head.weight", (config["vocab_size"], hidden)
        yield "model.norm.weight", (hidden,)
        for i in range(config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            for norm in ("input_layernorm", "post_attention_layernorm"):
                yield f"{layer}.{norm}.weight", (hidden,)
            for part, rows in (("q", hidden), ("k", narrow), ("v", narrow), ("o", hidden)):
                yield f"{layer}.self_attn.{part}_proj.weight", (rows, hidden)
            for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
                yield f"{layer}.mlp.{part}_proj.weight", (rows, columns)

    def names(self) -> list[str]:
        return list(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def read(self, name: str) -> NDArray[np.float32]:
        return np.ones(self.shapes[name], np.float32)  # norms alone: matrices are `weights_of`


def weights_of(checkpoint: RandomCheckpoint, kind: str) -> Mapping[str, Weight]:
    """Random matrices, as float16 or as integers of 4 bits."""
    random = np.random.default_rng(0)

    def make(name: str) -> Weight:
        rows, columns = checkpoint.shape(name)
        if kind == "float16":
            row = random.standard_normal(columns, np.float32) * columns**-0.5
            return FloatTensor(np.tile(row.astype(np.float16), (rows, 1)))
        q = random.integers(0, 16, (rows, columns), np.uint8)
        scales = np.full((rows, columns // BLOCK), columns**-0.5 / 5, np.float32)
        return QTensor(4, BLOCK, q, scales, None, "random")

    return LazyWeights([name for name, shape in checkpoint.shapes.items() if len(shape) == 2], make)


def unread(checkpoint: RandomCheckpoint, kind: str) -> int:
    """Bytes of an embedding of which a step reads a row: one that is not the head, too."""
    if checkpoint.config["tie_word_embeddings"]:
        return 0
    bits = 16 if kind == "float16" else 4 + 16 / BLOCK
    return int(checkpoint.config["vocab_size"] * checkpoint.config["hidden_size"] * bits / 8)


def body(checkpoint: RandomCheckpoint, kind: str, folder: Path) -> Bundle:
    """A bundle with graphs for CUDA alone."""
    config: Any = configuration(checkpoint.config)
    with BundleWriter(folder / f"{checkpoint.name}-{kind}.edge") as writer:
        place = writer.staging / "targets" / CUDA
        place.mkdir(parents=True)
        file = TensorFile(place / WEIGHTS)
        model: Any = CUDAModel(checkpoint, CONTEXT, weights_of(checkpoint, kind), file, TYPES["float16"])  # type: ignore[arg-type]
        (graph,) = model.build()
        file.close()
        path = f"targets/{CUDA}/decoder.onnx"
        writer.write_file(path, written(graph))
        write_json(writer, DeviceTarget(TARGET_VERSION, CUDA, "float16", kind, path))
        heads = heads_of(config)
        dims = Dims(
            config.num_hidden_layers, config.hidden_size, config.intermediate_size, heads.query, heads.key_value,
            heads.dim, config.vocab_size,
        )  # fmt: skip
        kv: KVLayout = decoder_kv(model.decoder)
        manifest = Manifest(
            FORMAT_VERSION, "benchmark", checkpoint.name, "llama", "decoder", kind, dims, CONTEXT, [], kv,
            [TensorGroup("all", 1, 1, 16.0, 0, kind)], Tokens(None, [], None, False), None,
            Source(checkpoint.name, "random"),
        )  # fmt: skip
        return writer.commit(manifest)


class Edge:
    """This runtime."""

    def __init__(self, kind: str, bundle: Bundle, provider: Provider, unread: int = 0) -> None:
        self.name = f"edge {kind}"
        self.engine = Engine(bundle, Variant(target=CUDA), provider)
        self.bytes = bundle.path(self.engine.target.decoder).with_name(WEIGHTS).stat().st_size - unread
        self._tokens = np.random.default_rng(0).integers(0, bundle.manifest.dims.vocab_size, CONTEXT)
        self._slots: dict[int, Slots] = {}

    def first(self, prompt: int) -> float:
        cache = self.engine.new_cache(prompt + DECODED)
        started = time.perf_counter()
        for start in range(0, prompt, self.engine.chunk):
            self.engine.step(cache, self._tokens[start : min(start + self.engine.chunk, prompt)], want=TOKENS)
        return time.perf_counter() - started

    def decode(self, batch: int) -> float:
        return self._one() if batch == 1 else self._several(batch)

    def _one(self) -> float:
        cache = self.engine.new_cache(PROMPTS[0] + WARM + DECODED)
        self.engine.step(cache, self._tokens[: PROMPTS[0]], want=TOKENS)
        token = self._tokens[:1]
        for i in range(WARM + DECODED):
            if i == WARM:
                started = time.perf_counter()
            token = self.engine.step(cache, token, want=TOKENS).copy()
        return (time.perf_counter() - started) / DECODED

    def _several(self, batch: int) -> float:
        engine, capacity = self.engine, PROMPTS[0] + WARM + DECODED
        if batch not in self._slots:
            self._slots[batch] = engine.new_slots(capacity, batch)
        slots = self._slots[batch]
        slots.caches.clear()
        for _ in range(batch):
            cache = engine.new_cache(capacity)
            slots.join(cache)
            engine.step(cache, self._tokens[: PROMPTS[0]], want=TOKENS)
        tokens = np.repeat(self._tokens[:1], batch)
        for i in range(WARM + DECODED):
            if i == WARM:
                started = time.perf_counter()
            tokens = engine.step_all(slots, tokens, want=TOKENS).copy()
        return (time.perf_counter() - started) / DECODED


class Transformers:
    """transformers in float16: eager with a cache that grows, or compiled with a static one."""

    def __init__(self, checkpoint: RandomCheckpoint, device: str, *, compiled: bool) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        self.name = "transformers, compiled" if compiled else "transformers"
        self._torch, self._device, self._compiled = torch, device, compiled
        config = AutoConfig.for_model(**checkpoint.config)
        torch.set_default_dtype(torch.float16)
        try:
            with torch.device(device):
                self._model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
        finally:
            torch.set_default_dtype(torch.float32)
        self._config = self._model.config
        total = sum(each.numel() * each.element_size() for each in self._model.parameters())
        self.bytes = total - unread(checkpoint, "float16")
        self._step = torch.compile(self._model, mode="reduce-overhead") if compiled else self._model

    def _cache(self, batch: int, rows: int) -> Any:
        from transformers import DynamicCache, StaticCache

        return StaticCache(config=self._config, max_cache_len=rows) if self._compiled else DynamicCache()

    def _read(self, model: Any, tokens: Any, cache: Any, start: int) -> Any:
        torch = self._torch
        place = torch.arange(start, start + tokens.shape[1], device=self._device)
        with torch.no_grad():
            made = model(
                input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, position_ids=place[None]
            )
        found = made.logits[:, -1].argmax(-1, keepdim=True).clone()
        found.cpu()  # every token is read
        return found

    def _prompt(self, size: int, batch: int) -> Any:
        return self._torch.randint(0, self._config.vocab_size, (batch, size), device=self._device)

    def first(self, prompt: int) -> float:
        tokens, cache = self._prompt(prompt, 1), self._cache(1, prompt + DECODED)
        started = time.perf_counter()
        self._read(self._model, tokens, cache, 0)
        return time.perf_counter() - started

    def decode(self, batch: int) -> float:
        cache = self._cache(batch, PROMPTS[0] + WARM + DECODED)
        token = self._read(self._model, self._prompt(PROMPTS[0], batch), cache, 0)
        for i in range(WARM + DECODED):
            if i == WARM:
                started = time.perf_counter()
            token = self._read(self._step, token, cache, PROMPTS[0] + i)
        return (time.perf_counter() - started) / DECODED


def measure(contenders: Sequence[Contender], batches: Sequence[int], prompts: Sequence[int], rounds: int) -> Figures:
    """Rounds over all engines, so that a drift of the machine meets all alike. The first one warms up."""
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for number in range(rounds + 1):
        for each in contenders:
            values = {f"first token @ {prompt}": 1e3 * each.first(prompt) for prompt in prompts}
            values |= {f"decode, batch {batch}": batch / each.decode(batch) for batch in batches}
            for label, value in values.items() if number else ():
                figures[label][each.name].append(value)
            print(f"round {number} of {rounds}: {each.name}", file=sys.stderr)
    return figures


def bandwidth(device: str) -> float:
    """Bytes a second that a copy within the device's memory reads and writes."""
    import torch

    size = COPIED if device != "cpu" else COPIED // 40
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        if device != "cpu":
            torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()
        best = max(best, 2 * size / (time.perf_counter() - started))
    return best


def row_bytes(shape: Mapping[str, Any]) -> int:
    """Of the keys and values of a token, in float16."""
    dim = shape["hidden_size"] // shape["num_attention_heads"]
    return int(4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * dim)


def shares(figures: Figures, contenders: Sequence[Contender], batch: int, row: int, speed: float) -> Mapping[str, Any]:
    """Percent of the bandwidth that steps use: weights once, and the keys and values of all sequences."""
    rows = batch * (PROMPTS[0] + WARM + DECODED / 2)
    steps = figures[f"decode, batch {batch}"]
    return {
        each.name: [100 * (each.bytes + rows * row) * rate / batch / speed for rate in steps[each.name]]
        for each in contenders
    }


def show(name: str, figures: Figures, contenders: Sequence[Contender], row: int, speed: float) -> None:
    """Print a body's figures, and which goals are met."""
    metrics = []
    for label, values in figures.items():
        first = label.startswith("first")
        metrics.append(Metric(label, "ms" if first else "tokens/s", not first, values, 1 if first else 0))
        if not first:
            batch = int(label.split()[-1])
            used = shares(figures, contenders, batch, row, speed)
            metrics.append(Metric(f"of bandwidth, batch {batch}", "%", True, used))
    names = [each.name for each in contenders]
    print(f"\n{name}, medians\n{figures_table(metrics, names)}")
    alone = figures.get("decode, batch 1", {})
    for ours in filter(is_ours, alone):
        for peer, goal in GOALS.items():
            if peer in alone:
                print(Goal(f"{ours} / {peer}, batch 1", ratio(alone, peer, ours).value, goal, True))
        if name == "8B" and ours == "edge int4":
            used = median(shares(figures, contenders, 1, row, speed)[ours])
            print(Goal(f"{ours}: share of bandwidth", used / 100, SHARE, True))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--weights", nargs="+", choices=("float16", "int4"), default=["float16", "int4"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes minutes")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    support = find_support(CUDA)
    if support.missing is not None:
        sys.exit(f"Nothing can be measured here: {support.missing}")
    provider = open_provider(CUDA)
    print(f"{support.devices[0].name}, {support.package}")
    speed = bandwidth("cuda")
    print(f"a copy moves {speed / 1e12:.2f} TB/s")
    for name in args.shapes:
        checkpoint = RandomCheckpoint(name, SHAPES[name])
        with tempfile.TemporaryDirectory() as folder:
            contenders: list[Contender] = [
                Edge(kind, body(checkpoint, kind, Path(folder)), provider, unread(checkpoint, kind))
                for kind in args.weights
            ]
            for compiled in (False, *([] if args.no_compile else [True])):
                contenders.append(Transformers(checkpoint, "cuda", compiled=compiled))
            figures = measure(contenders, args.batches, PROMPTS, args.rounds)
        show(name, figures, contenders, row_bytes(SHAPES[name]), speed)
        del contenders


if __name__ == "__main__":
    main()
