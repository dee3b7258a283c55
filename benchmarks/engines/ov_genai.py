"""OpenVINO GenAI over its own copy of the same GGUF file; its times come from its own per-token clock.

It reads GGUF files itself, which takes seconds at every start. So it is given what it wrote after reading the file
once (its integers are the file's), and a folder for compiled models, as its documentation advises.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines import DECODER, Models, Timed, Unavailable

PACKAGE = "openvino-genai"
MODULES = ("openvino_genai", "openvino_tokenizers")
IMPORT = "import openvino_genai"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    DECODER: {"paged attention": {"backend": "PA"}, "SDPA": {"backend": "SDPA"}}
}
FIRST_TOKEN = """
import sys
import openvino_genai as og

folder, prompt, threads, backend = sys.argv[1:]
settings = {"INFERENCE_NUM_THREADS": int(threads), "ATTENTION_BACKEND": backend, "CACHE_DIR": f"{folder}/cache"}
pipeline = og.LLMPipeline(folder, "CPU", **settings)
pipeline.generate(prompt, max_new_tokens=1, do_sample=False, streamer=lambda text: print(text, end="", flush=True))
"""
# Reads the GGUF file and lets OpenVINO keep its own copy, which the next run reads instead.
FROM_GGUF = """
import sys
from pathlib import Path
import openvino_genai as og

gguf, prompt, threads, folder = sys.argv[1:]
settings = {"INFERENCE_NUM_THREADS": int(threads)}
model = Path(folder)
if not (model / "openvino_model.xml").exists():
    model /= Path(gguf).name  # a link, because the copy is written next to it
    model.symlink_to(gguf)
    settings["enable_save_ov_model"] = True
pipeline = og.LLMPipeline(str(model), "CPU", **settings)
pipeline.generate(prompt, max_new_tokens=1, do_sample=False, streamer=lambda text: print(text, end="", flush=True))
"""
_SAVE = "import sys, openvino_genai as og; og.LLMPipeline(sys.argv[1], 'CPU', enable_save_ov_model=True)"


def prepare(models: Models, variant: str, threads: int) -> Path:
    import convert

    out = models.work / "openvino"
    if not out.is_dir():
        python = convert.python_with(models.pythons, *MODULES)
        if python is None:
            raise Unavailable(f"{PACKAGE} is not installed")
        with convert.folder(out) as part:
            link = part / models.gguf.name  # it writes beside the file
            link.symlink_to(models.gguf)
            convert.run([python, "-c", _SAVE, str(link)])
            link.unlink()
    return out


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    return [python, "-c", FIRST_TOKEN, str(model), prompt, str(threads), VARIANTS[DECODER][variant]["backend"]]


def from_gguf(python: str, gguf: Path, cache: Path, prompt: str, threads: int) -> list[str]:
    return [python, "-c", FROM_GGUF, str(gguf), prompt, str(threads), str(cache)]


class _OpenVino:
    def __init__(self, model: Path, threads: int, capacity: int, backend: str) -> None:
        import openvino_genai as og

        config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "ATTENTION_BACKEND": backend}
        config["CACHE_DIR"] = str(model / "cache")
        if backend == "PA":
            scheduler = og.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.max_num_batched_tokens = capacity  # a prompt in one piece
            config["scheduler_config"] = scheduler
        self._og = og
        self._pipeline = og.LLMPipeline(str(model), "CPU", **config)

    def generate(self, ids: list[int], n: int) -> Timed:
        import numpy as np
        import openvino

        prompt = np.asarray([ids], np.int64)
        inputs = self._og.TokenizedInputs(openvino.Tensor(prompt), openvino.Tensor(np.ones_like(prompt)))
        config = self._og.GenerationConfig()
        config.max_new_tokens = n + 1
        config.ignore_eos = True
        config.do_sample = False
        result = self._pipeline.generate(inputs, config)
        tokens = list(result.tokens[0])
        if len(tokens) != n + 1:
            raise RuntimeError(f"it gave {len(tokens)} tokens where {n + 1} were asked for")
        metrics = result.perf_metrics
        decode = metrics.get_tpot().mean / 1e3 if n else 0.0
        return Timed(metrics.get_ttft().mean / 1e3, decode, tokens)


def load(model: Path, threads: int, capacity: int, task: str, **settings: Any) -> _OpenVino:
    return _OpenVino(model, threads, capacity, **settings)
