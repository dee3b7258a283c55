"""The drafts of the engines that have some: which setting is fastest, and a process with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from drafting import drafting_file
from engines import engine_file
from engines.decoding_engine import Models
from processes import Worker
from prompts import Prompts

if TYPE_CHECKING:
    from decoder_vs_peers import Contender

FILES = {"edge": "edge_runtime", "onnxruntime-genai": "genai", "llama.cpp": "llamacpp", "openvino-genai": "ov_genai"}
TRIALS = (128, 512)  # tokens of the prompts that settings are tried with
TOKENS, WARM = 64, 64


def worker(
    found: Contender, setting: str, models: Models, threads: int, log: TextIO, capacity: int, warm: list[int]
) -> Worker:
    """A process of the engine with this setting of its drafts, which has taken the prompt `warm`."""
    file, model = drafting_file(FILES[found.name]), found.model
    if found.name == "onnxruntime-genai":  # a head on the last row alone cannot verify
        model = engine_file(found.name).prepare(models, "defaults", threads)
    request = {"model": str(model), "threads": threads, "capacity": capacity, "settings": file.SETTINGS[setting]}
    made = Worker(found.python, file.__name__, log, request)
    made.ask("answer", ids=warm, n=TOKENS, ends=[])
    return made


def trial(found: Contender, models: Models, threads: int, log: TextIO, texts: Prompts) -> dict[str, float]:
    """Tokens per second of each setting over the same texts."""
    prompts, rates = [texts.take(length) for length in TRIALS], dict[str, float]()
    for setting in drafting_file(FILES[found.name]).SETTINGS:
        made = worker(found, setting, models, threads, log, max(*TRIALS, WARM) + TOKENS + 1, texts.take(WARM))
        answers = [made.ask("answer", ids=ids, n=TOKENS + 1, ends=[]) for ids in prompts]
        rates[setting] = sum(got["tokens"] for got in answers) / sum(got["decode_s"] for got in answers)
        made.close()
    return rates
