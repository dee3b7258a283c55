"""A conformance corpus: what this runtime answers with a bundle, for another host of it to repeat.

A folder of files with one JSON object per line. Of a decoder four: `answers.jsonl`: `prompt`, `raw`, `kv`, `options`
as they were given, and what came of them: `prompt_ids`, `ids`, `text` and `finish`; `chats.jsonl`, where the bundle has
a chat format: `system` and `turns`, each with `say`, `ids` and `text`; `drafts.jsonl`
(`edge.runtime.check.conformance_drafts`); and `skips.jsonl`: of every policy that the bundle's segments allow, lines
like those of the first two, with the policy and its setting as `skip`. Of a model from text to text `outputs.jsonl`:
`source` and `options` as they were given, `prompt_ids`, `ids`, `text` and `finish`, and where beams were searched the
`score` of each of the n best, whose first is the output. Of a speech model `speech.jsonl`
(`edge.runtime.check.conformance_speech`). The same processor gives the same tokens; another one may
choose otherwise in a near-tie, and `golden.json` says what that is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edge.bundle import Bundle
from edge.errors import InputError
from edge.home import replace_text
from edge.manifest import FLOAT32, INT8, KV8, SKIP
from edge.runtime.check import conformance_drafts, conformance_speech
from edge.runtime.decode.answer import Result
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import UNSHAPED
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.load import load
from edge.runtime.model import Model
from edge.runtime.providers import AUTO
from edge.runtime.providers.provider import Provider
from edge.runtime.text2text import Text2Text

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
LASTING = ({"max_tokens": 96}, {"max_tokens": 96, "circles": "allow"})  # of a tiny model, such answers go in circles
ASKED = [*((prompt, given) for prompt in PROMPTS for given in OPTIONS), (LONG, OPTIONS[0]), (LONG, OPTIONS[2])]
ASKED += [(prompt, given) for prompt in PROMPTS[:3] for given in LASTING]
SKIPPING = [*((prompt, given) for given in (OPTIONS[0], OPTIONS[2]) for prompt in PROMPTS[:3]), (LONG, OPTIONS[0])]
TOKENS = 24
TYPED = 2  # prompts with a control token
TURNS = ("My name is Ada.", "What is my name?", "And what is 3 + 4?")
SYSTEM = "Answer in one short sentence."
SOURCES = (
    "A man rides a bicycle.",
    "Zwei Hunde spielen.",
    "Two dogs are playing in the snow, and a child watches them.",
    "A girl at the shore of a beach with a mountain in the distance \u2013 it is 7:45, and the café closes.",
    "  People walk, people talk; people walk, people talk.\n",
)
OUTPUTS: tuple[dict[str, Any], ...] = (
    {"beams": 1},
    {"beams": 1, "no_repeat_ngram": 2},
    {"beams": 1, "min_tokens": 12, "repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.95, "seed": 99},
    {"beams": 2, "n_best": 2},
    {"beams": 4, "n_best": 3, "length_penalty": 2.0},
    {"beams": 4, "length_penalty": 0.5, "early_stopping": "never", "no_repeat_ngram": 3},
    {"beams": 3, "early_stopping": True, "min_tokens": 6, "repetition_penalty": 1.2},
    {"beams": 4, "groups": 2, "diversity": 0.7, "n_best": 4},
    {"beams": 6, "groups": 3, "diversity": 1.5, "n_best": 2, "early_stopping": "never", "no_repeat_ngram": 2},
    {"beams": 3, "groups": 3, "diversity": 0.4, "n_best": 3, "early_stopping": True, "length_penalty": 0.3},
    {"beams": 1, "max_tokens": 96},
    {"beams": 3, "n_best": 2, "max_tokens": 96},
)


def emit(
    bundle: Bundle,
    folder: Path,
    *,
    threads: int | None = None,
    provider: str | Provider = AUTO,
    progress: Callable[[int], object] = lambda answers: None,
) -> int:
    """Write the corpus of a bundle to `folder`; the number of answers. progress: gets the answers just made.

    Raises:
        InputError: the folder cannot be written.
    """
    if bundle.manifest.speech is not None:
        return _emit_speech(bundle, folder, threads, provider, progress)
    if bundle.manifest.text is not None:
        translator = load(bundle.root, speculate="off", threads=threads, provider=provider, kind=Text2Text)
        outputs: list[dict[str, Any]] = []
        for output in _outputs(translator):
            outputs.append(output)
            progress(1)
        _write(folder, {"outputs.jsonl": outputs})
        return len(outputs)
    kinds = [FLOAT32, INT8] if any(graph.role == KV8 for graph in bundle.manifest.graphs) else [FLOAT32]
    answers: list[dict[str, Any]] = []
    chats: list[dict[str, Any]] = []
    drafts: list[dict[str, Any]] = []
    skips: list[dict[str, Any]] = []
    for kv in kinds:
        model = load(bundle.root, speculate="off", kv=kv, threads=threads, provider=provider, kind=Model)
        for answer in _answers(model, [*ASKED, *_typed(model)]):
            answers.append({"kv": kv} | answer)
            progress(1)
        if kv == FLOAT32:
            drafts = list(conformance_drafts.lines(model))
        if kv == FLOAT32 and bundle.manifest.chat_format is not None:
            for system in (None, SYSTEM):
                chats.append(_chat(model, system))
                progress(len(TURNS))
        del model
    for skip in _policies(bundle):
        # Over keys and values that every host has.
        more: dict[str, Any] = {"kv": FLOAT32, "threads": threads, "provider": provider}
        model = load(bundle.root, speculate="off", skip=skip, kind=Model, **more)
        for answer in _answers(model, SKIPPING):
            skips.append({"skip": skip} | answer)
            progress(1)
        if bundle.manifest.chat_format is not None:
            skips.append({"skip": skip} | _chat(model, SYSTEM))
            progress(len(TURNS))
    _write(folder, {"answers.jsonl": answers, "chats.jsonl": chats, "drafts.jsonl": drafts, "skips.jsonl": skips})
    return sum(len(line.get("turns", [line])) for line in (*answers, *chats, *skips))


def count(bundle: Bundle) -> int:
    """The answers that `emit` makes at most."""
    if bundle.manifest.text is not None:
        return len(SOURCES) * len(OUTPUTS)
    if bundle.manifest.speech is not None:
        return conformance_speech.count(bundle)
    skipping = len(_policies(bundle)) * (len(SKIPPING) + len(TURNS))
    return 2 * (len(ASKED) + TYPED) + 2 * len(TURNS) + skipping


def _emit_speech(
    bundle: Bundle,
    folder: Path,
    threads: int | None,
    provider: str | Provider,
    progress: Callable[[int], object],
) -> int:
    heard = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in conformance_speech.hear(bundle, folder, threads=threads, provider=provider):
            heard.append(each)
            progress(1)
    except OSError as e:
        raise InputError(f"{folder} cannot be written: {e.strerror or e}.") from None
    _write(folder, {"speech.jsonl": heard})
    return len(heard)


def _policies(bundle: Bundle) -> list[str]:
    """The policies that the segments of a decoder allow, each with settings that leave something out."""
    manifest = bundle.manifest
    parts, layers = {segment.part for segment in manifest.segments}, manifest.dims.num_layers
    if all(graph.role != SKIP for graph in manifest.graphs):
        return []
    found = ["unified:0.34", f"skipdecode:2-{layers}", f"skipdecode:{max(2, layers // 2)}-{layers - 1}"]
    if manifest.routers is not None:
        found += ["first", "first:threshold=0.9", "first:skip=1"]
    if "feed_forward" in parts:
        found += ["ffn:0.34"]
    return found


def _typed(model: Model) -> list[tuple[str, dict[str, Any]]]:
    """A prompt with the end token in it, as it is and as the user's words, in which it is text."""
    token = model.text.token(next(iter(model.bundle.manifest.tokens.eos), None))
    return [] if token is None else [(f"Is {token} a word?\n{token}", OPTIONS[0])] * TYPED


def _answers(model: Model, asked: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    formatted = model.bundle.manifest.chat_format is not None
    for number, (prompt, given) in enumerate(asked):
        raw = not formatted or number % 2 == 0
        ids = model.prompt_ids(prompt, raw=raw, think=False)
        if len(ids) >= model.engine.context:
            continue
        options = {"max_tokens": TOKENS, **given}
        result = model.generate(prompt, GenerateOptions(think=False, **UNSHAPED | options), raw=raw)
        yield {"prompt": prompt, "raw": raw, "options": options, "prompt_ids": ids} | _said(result)


def _chat(model: Model, system: str | None) -> dict[str, Any]:
    chat = model.chat(system=system)
    turns = [{"say": say} | _said(chat.generate(say, max_tokens=TOKENS, temperature=0, think=False)) for say in TURNS]
    return {"system": system, "turns": turns}


def _outputs(model: Text2Text) -> Iterator[dict[str, Any]]:
    """Of a multilingual model into one language and into another by turns."""
    pairs = _pairs(model)
    for number, (source, given) in enumerate((source, given) for source in SOURCES for given in OUTPUTS):
        options = {"max_tokens": TOKENS} | given | pairs[number % len(pairs)]
        try:
            ids = model.prompt_ids(source, Text2TextOptions(**options))
        except InputError:  # longer than the encoder takes
            continue
        output = {"source": source, "options": options, "prompt_ids": ids}
        output |= _said(model.generate(source, **options))
        if options.get("beams", 1) > 1:
            output["score"] = [each.score for each in model.candidates(source, **options)]
        yield output


def _pairs(model: Text2Text) -> list[dict[str, str]]:
    """Options that name languages."""
    codes, form = model.languages, model.bundle.manifest.text
    if not codes:
        return [{}]
    assert form is not None
    pairs = [(codes[-1], codes[0]), (codes[0], codes[-1])]
    return [{"target_language": into} | ({"source_language": of} if form.source_at else {}) for of, into in pairs]


def _said(result: Result) -> dict[str, Any]:
    return {"ids": result.token_ids, "text": result.text, "finish": result.finish_reason}


def _write(folder: Path, files: dict[str, list[dict[str, Any]]]) -> None:
    try:
        for name, rows in files.items():
            replace_text(folder / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    except OSError as e:
        raise InputError(f"{folder} cannot be written: {e.strerror or e}.") from None
