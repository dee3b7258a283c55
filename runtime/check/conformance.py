"""A conformance corpus: what this runtime answers with a decoder's bundle, for another host of it to repeat.

A folder with two files, one JSON object per line. `answers.jsonl`: `prompt`, `raw`, `kv` and `options` as they were
given, and what came of them: `prompt_ids`, `ids`, `text` and `finish`. `chats.jsonl`, where the bundle has a chat
format: `system` and `turns`, each with `say`, `ids` and `text`. Of a speech model there is `speech.jsonl` instead
(`edge.runtime.check.conformance_speech`). The same processor gives the same tokens; another one
may choose otherwise in a near-tie, and `golden.json` says what that is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edge.bundle import Bundle, replace_text
from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8
from edge.runtime.check import conformance_speech
from edge.runtime.decode.answer import GenerateOptions, Result
from edge.runtime.load import load
from edge.runtime.model import Model
from edge.runtime.providers import AUTO

PROMPTS = (
    "Why is the sky blue?",
    "Write a short poem about rain.\n\nTwo lines are enough.",
    "Translate to French: The train leaves at 7:45, and my café closes at ½ past six 🙂.",
    "  def add(a, b):\n\treturn a +",
    "日本の首都はどこですか。 Ответь по-русски.",
)
LONG = "The river rose in the night, and by morning the lower field was under water. " * 24  # more than 256 tokens
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.2, "top_k": 40, "seed": 12345678901},
    {"temperature": 1.0, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1, "seed": 7},
)
TOKENS = 24
TURNS = ("My name is Ada.", "What is my name?", "And what is 3 + 4?")
SYSTEM = "Answer in one short sentence."


def emit(
    bundle: Bundle,
    folder: Path,
    *,
    threads: int | None = None,
    provider: str = AUTO,
    progress: Callable[[int], object] = lambda answers: None,
) -> int:
    """Write the corpus of a bundle to `folder`; the number of answers. progress: gets the answers just made.

    Raises:
        InputError: the bundle is of another kind, or the folder cannot be written.
    """
    if bundle.manifest.speech is not None:
        return _emit_speech(bundle, folder, threads, provider, progress)
    if bundle.manifest.encoder is not None:
        raise InputError(
            f"{bundle.manifest.name} is an encoder-decoder; a corpus is written of decoders and speech models."
        )
    kinds = [FLOAT32, INT8] if any(graph.role == KV8 for graph in bundle.manifest.graphs) else [FLOAT32]
    answers: list[dict[str, Any]] = []
    chats: list[dict[str, Any]] = []
    for kv in kinds:
        model = load(bundle.root, speculate="off", kv=kv, threads=threads, provider=provider, kind=Model)
        for answer in _answers(model, kv):
            answers.append(answer)
            progress(1)
        if kv == FLOAT32 and bundle.manifest.chat_format is not None:
            for system in (None, SYSTEM):
                chats.append(_chat(model, system))
                progress(len(TURNS))
        del model
    try:
        replace_text(folder / "answers.jsonl", _lines(answers))
        replace_text(folder / "chats.jsonl", _lines(chats))
    except OSError as e:
        raise InputError(f"{folder} cannot be written: {e.strerror or e}.") from None
    return len(answers) + len(TURNS) * len(chats)


def count(bundle: Bundle) -> int:
    """The answers that `emit` makes at most."""
    if bundle.manifest.speech is not None:
        return conformance_speech.count(bundle)
    return 2 * (len(PROMPTS) * len(OPTIONS) + 2) + 2 * len(TURNS)


def _emit_speech(
    bundle: Bundle, folder: Path, threads: int | None, provider: str, progress: Callable[[int], object]
) -> int:
    heard = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in conformance_speech.hear(bundle, folder, threads=threads, provider=provider):
            heard.append(each)
            progress(1)
        replace_text(folder / "speech.jsonl", _lines(heard))
    except OSError as e:
        raise InputError(f"{folder} cannot be written: {e.strerror or e}.") from None
    return len(heard)


def _answers(model: Model, kv: str) -> Iterator[dict[str, Any]]:
    formatted = model.bundle.manifest.chat_format is not None
    prompts = [(prompt, given) for prompt in PROMPTS for given in OPTIONS]
    prompts += [(LONG, OPTIONS[0]), (LONG, OPTIONS[2])]
    for number, (prompt, given) in enumerate(prompts):
        raw = not formatted or number % 2 == 0
        ids = model.prompt_ids(prompt, raw=raw)
        if len(ids) >= model.engine.context:
            continue
        result = model.generate(prompt, GenerateOptions(max_tokens=TOKENS, **given), raw=raw)
        options = {"max_tokens": TOKENS, **given}
        yield {"prompt": prompt, "raw": raw, "kv": kv, "options": options, "prompt_ids": ids} | _said(result)


def _chat(model: Model, system: str | None) -> dict[str, Any]:
    chat = model.chat(system=system)
    turns = [{"say": say} | _said(chat.generate(say, max_tokens=TOKENS)) for say in TURNS]
    return {"system": system, "turns": turns}


def _said(result: Result) -> dict[str, Any]:
    return {"ids": result.token_ids, "text": result.text, "finish": result.finish_reason}


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
