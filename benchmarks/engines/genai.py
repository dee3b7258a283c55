"""onnxruntime-genai over a model from its own builder, 4 bits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from engines import DECODER, Models, Timed, Unavailable

PACKAGE = "onnxruntime-genai"
MODULES = ("onnxruntime_genai",)
IMPORT = "import onnxruntime_genai"
# Options of the model builder. Its defaults: blocks of 32, 8-bit activations (accuracy level 4), shared embeddings.
BUILDER = {
    "defaults": [],
    "block 32, head on the last row, fused MLP": ["prune_lm_head=true", "fuse_mlp_gate_up=true"],
    "block 64, head on the last row, fused MLP": ["block_size=64", "prune_lm_head=true", "fuse_mlp_gate_up=true"],
    "block 128, head on the last row, fused MLP": ["block_size=128", "prune_lm_head=true", "fuse_mlp_gate_up=true"],
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {DECODER: {name: {} for name in BUILDER}}
_NEEDS = ("onnxruntime_genai", "torch", "transformers", "onnx", "onnx_ir")
FROM_GGUF_NEEDS = (*_NEEDS[1:], "gguf", "safetensors", "edge")
FIRST_TOKEN = """
import json, sys
import onnxruntime_genai as og

model = og.Model(sys.argv[1])
tokenizer = og.Tokenizer(model)
stream = tokenizer.create_stream()
messages = json.dumps([{"role": "user", "content": sys.argv[2]}])
ids = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
params = og.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=len(ids) + 1)
generator = og.Generator(model, params)
generator.append_tokens(ids)
generator.generate_next_token()
print(stream.decode(generator.get_next_tokens()[0]), flush=True)
"""
# The model builder reads no quantized GGUF file, so that a folder of transformers' is made of it first.
FROM_GGUF = (
    """
import json, subprocess, sys
from pathlib import Path

gguf, prompt, threads, cache, convert = sys.argv[1:]
model, source = Path(cache) / "model", Path(cache) / "transformers"

def made_by(*command):
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)

if not model.is_dir():
    made_by(convert, "decoder", gguf, str(source))
    builder = ["-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu", "-c", str(Path(cache) / "builder")]
    made_by(*builder, "-i", str(source), "-o", str(model))
    config = json.loads((model / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = int(threads)
    (model / "genai_config.json").write_text(json.dumps(config))
sys.argv = ["", str(model), prompt]
"""
    + FIRST_TOKEN
)


def prepare(models: Models, variant: str, threads: int) -> Path:
    import convert

    options = BUILDER[variant]
    source = convert.transformers_folder(models)
    out = models.work / ("genai-" + ("-".join(o.replace("=", "_") for o in options) or "defaults"))
    if not out.is_dir():
        python = convert.python_with(models.pythons, *_NEEDS)
        if python is None:
            raise Unavailable(f"its model builder needs {', '.join(_NEEDS)} in one environment")
        with convert.folder(out) as part:
            command = [python, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(part)]
            command += ["-p", "int4", "-e", "cpu", "-c", str(models.work / "builder")]
            convert.run([*command, *(["--extra_options", *options] if options else [])])
    _set_threads(out / "genai_config.json", threads)
    return out


def _set_threads(path: Path, threads: int) -> None:
    """As its users do it: in the model's configuration."""
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    path.write_text(json.dumps(config, indent=4))


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    return [python, "-c", FIRST_TOKEN, str(model), prompt]


def from_gguf(python: str, gguf: Path, cache: Path, prompt: str, threads: int) -> list[str]:
    import convert

    return [python, "-c", FROM_GGUF, str(gguf), prompt, str(threads), str(cache), str(convert.__file__)]


class _Genai:
    def __init__(self, model: Path) -> None:
        import onnxruntime_genai as og

        self._og = og
        self._model = og.Model(str(model))
        self._tokenizer = og.Tokenizer(self._model)

    def generate(self, ids: list[int], n: int) -> Timed:
        import numpy as np

        params = self._og.GeneratorParams(self._model)
        length = len(ids) + n + 1
        # The minimum keeps the end token from being chosen, so that every step is taken.
        params.set_search_options(do_sample=False, max_length=length, min_length=length)
        generator = self._og.Generator(self._model, params)
        start = time.perf_counter()
        generator.append_tokens(np.asarray(ids, np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(n):
            generator.generate_next_token()
        end = time.perf_counter()
        tokens = [int(t) for t in generator.get_sequence(0)[len(ids) :]]
        return Timed(first - start, (end - first) / max(n, 1), tokens)


def load(model: Path, threads: int, capacity: int, task: str) -> _Genai:
    # Its KV buffers are as long as each generator asks for, so `capacity` is given there.
    return _Genai(model)
