"""Answers that have the form of a JSON schema: what is refused, what finishes and validates, and what masks cost.

    python benchmarks/structured.py MODEL [--schemas FOLDER] [--count 400] [--tokens 256]
    python benchmarks/structured.py MODEL --walk [--schemas FOLDER]

MODEL is a bundle or a GGUF file. FOLDER has schemas (`*.json`, also in folders in it), as JSONSchemaBench's `data` has;
without one, schemas of its kinds are made up. With --walk nothing but the masks decide: tokens are drawn blindly from
those that are allowed, which finds what no model would say.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema.validators import validator_for
from report import table

import edge
from edge.errors import EdgeError, InputError
from edge.runtime.decode.answer import Result
from edge.runtime.decode.form import SCHEMA, Form
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.grammar import Constrained, constrained, for_grammars
from edge.runtime.decode.sampling import greedy
from edge.runtime.model import Model

SEED = 20250101
CLOSING = [
    '"',
    '",',
    '"}',
    "}",
    "]",
    "},",
    "],",
    '"]',
    "1",
    ".",
    ",",
]  # of tokens with which a blind walk comes to an end
CLOSED = 0.6  # how often it takes one of them
WALK = 250  # tokens of a walk
ASKED = 300  # characters of a schema that its prompt shows
MANY = 0.3  # of an answer's tokens, from which on structure dominates
FORMATS = ["date", "time", "date-time", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "duration"]
PATTERNS = ["^[a-z]{2,5}$", "^[A-Z][a-z]+$", r"^\d{3}-\d{4}$", "^(red|green|blue)$", r"^v\d+\.\d+$", "[0-9]", "^x-"]
WORDS = ["name", "kind", "count", "size", "owner", "tags", "start", "end", "items", "address", "note", "level"]


def made_up(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas of the kinds that JSONSchemaBench has, by name."""
    for number in range(count):
        draw = random.Random(f"{SEED} {number}")
        schema = _object(draw, 0, strict=number % 2 == 0)
        if number % 4 == 0:
            schema["$defs"] = {"part": _object(draw, 2)}
            schema["properties"]["part"] = {"$ref": "#/$defs/part"}
            schema["required"].append("part")
        yield f"made-{number}", schema


def _object(draw: random.Random, depth: int, *, strict: bool = False) -> dict[str, Any]:
    """A schema of an object. strict: all fields are required, as OpenAI's strict mode demands."""
    names = draw.sample(WORDS, draw.randint(1, 5))
    return {
        "type": "object",
        "properties": {name: _value(draw, depth + 1) for name in names},
        "required": draw.sample(names, len(names) if strict else draw.randint(0, len(names))),
        "additionalProperties": False if strict else draw.choice([False, False, {"type": "integer"}]),
    }


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    low, few = draw.randint(-20, 20), draw.randint(0, 3)
    kinds: list[Any] = [
        lambda: {"type": "string", "minLength": few, "maxLength": few + draw.randint(0, 20)},
        lambda: {"type": "string", "pattern": draw.choice(PATTERNS)},
        lambda: {"type": "string", "format": draw.choice(FORMATS)},
        lambda: {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 300)},
        lambda: {"type": "integer", "exclusiveMinimum": low, "multipleOf": draw.choice([2, 5, 7])},
        lambda: {"type": "number", "minimum": low / 4, "exclusiveMaximum": low / 4 + draw.choice([0.5, 1, 33.3])},
        lambda: {"type": ["string", "null"], "maxLength": 12},
        lambda: {"enum": draw.sample(["a", "bé", 'quo"te', 1, 2.5, None, True, {"x": [1]}], draw.randint(1, 4))},
        lambda: {"const": draw.choice(["fixed", 7, False, {"deep": ["er"]}, "newline\n\\"])},
        lambda: {"type": "boolean"},
    ]
    nested: list[Any] = [
        lambda: _object(draw, depth),
        lambda: {"type": "array", "items": _value(draw, depth + 1), "minItems": few, "maxItems": few + 2},
        lambda: {"type": "array", "prefixItems": [_value(draw, depth + 1), {"type": "boolean"}], "items": False},
        lambda: {"anyOf": [_value(draw, depth + 1), _value(draw, depth + 1)]},
        lambda: {"allOf": [{"type": "object", "required": ["id"]}, {"properties": {"id": {"type": "integer"}}}]},
    ]
    return draw.choice(kinds + nested if depth < 4 else kinds)()


def read(folder: Path, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas of a folder, drawn at random, by name."""
    files = sorted(folder.rglob("*.json"))
    random.Random(SEED).shuffle(files)
    for file in files[:count]:
        yield f"{file.parent.name}/{file.stem}", json.loads(file.read_text(encoding="utf-8"))


def keyword(said: str) -> str:
    """What of a schema a refusal is about."""
    patterns = (
        r'Unimplemented keys: \["(.*?)"',
        r"(Unknown format)",
        r"(oneOf)",
        r"(min/maxProperties)",
        r"(characters)",
    )
    found = [match[1] for pattern in patterns if (match := re.search(pattern, said))]
    return found[0] if found else said[:90]


def wrong(schema: Any, said: str) -> str | None:
    """Why a text does not satisfy a schema; None where it does."""
    try:
        value = json.loads(said)
    except (ValueError, RecursionError) as e:
        return f"no JSON: {e}"
    checks = validator_for(schema)
    error = next(checks(schema, format_checker=checks.FORMAT_CHECKER).iter_errors(value), None)
    return None if error is None else f"{error.validator}: {error.message[:200]}"


class Clock:
    """Times what the masks of all answers take."""

    def __init__(self) -> None:
        self.masks = list[float]()
        compute = Constrained._next

        def timed(form: Constrained) -> Any:
            known, began = form._known, time.perf_counter()
            found = compute(form)
            if not known:
                self.masks.append(time.perf_counter() - began)
            return found

        Constrained._next = timed  # type: ignore[method-assign]


class Blind:
    """Draws tokens of those that are left, closing ones more often."""

    def __init__(self, closing: Sequence[int], seed: str) -> None:
        self._closing, self._draw = np.array(closing), random.Random(seed)

    def __call__(self, logits: np.ndarray) -> int:
        left = self._closing[logits[self._closing] > -np.inf]
        if not len(left) or self._draw.random() > CLOSED:
            left = np.flatnonzero(logits > -np.inf)
        return int(self._draw.choice(left))


def walk(model: Model, form: Form, seed: str, compiled: list[float]) -> str | None:
    """A text of the form, drawn blindly; None where it came to no end."""
    closing = [ids[0] for text in CLOSING if len(ids := model.text.encode(text)) == 1] + [*model.text.eos]
    began = time.perf_counter()
    sampler = constrained(Blind(closing, seed), model.text, form)
    compiled.append(time.perf_counter() - began)
    logits, ids = np.zeros(model.bundle.manifest.dims.vocab_size, np.float32), list[int]()
    for _ in range(WALK):
        if (token := sampler(logits)) in model.text.eos:
            return model.text.decode(ids)
        ids.append(token)
    return None


def steps(model: Model, prompt: str, tokens: int, schema: Any, forced: bool) -> tuple[Result, int]:
    """The answer to a prompt, with forced tokens or without, and the number of its steps."""
    count, run, force = 0, model.engine.step, Constrained.force

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        return run(*given, **more)

    model.engine.step = counted  # type: ignore[method-assign]
    if not forced:
        Constrained.force = lambda self, most: []  # type: ignore[method-assign]
    try:
        found = model.generate(prompt, json_schema=schema, max_tokens=tokens, temperature=0)
    finally:
        del model.engine.step
        Constrained.force = force  # type: ignore[method-assign]
    return found, count


class Speeds:
    """Answers with forced tokens, next to the same without and to free text."""

    def __init__(self) -> None:
        self.ratios = list[tuple[float, float, float]]()  # share that was forced; over free text, over unforced
        self.tokens = self.forced = self.steps = self.plain_steps = self.drafted = self.accepted = 0

    def answer(self, model: Model, prompt: str, tokens: int, schema: Any) -> Result:
        """The answer of the form, after others for comparison."""
        turns = (False, True) if len(self.ratios) % 2 else (True, False)
        found = {forced: steps(model, prompt, tokens, schema, forced) for forced in turns}
        free = model.generate(prompt, max_tokens=min(48, tokens), temperature=0)
        (result, count), (plain, without) = found[True], found[False]
        if result.token_ids != plain.token_ids:
            sys.exit(f"structured: forced tokens changed an answer to {prompt!r}")
        self.tokens, self.forced = self.tokens + result.generated_tokens, self.forced + result.forced_tokens
        self.steps, self.plain_steps = self.steps + count, self.plain_steps + without
        if result.speculation is not None:
            self.drafted += result.speculation["drafted"]
            self.accepted += result.speculation["accepted"]
        ours, theirs, others = (each.decode_tokens_per_s for each in (result, plain, free))
        if ours and theirs and others:
            self.ratios.append((result.forced_tokens / result.generated_tokens, ours / others, ours / theirs))
        return result

    def show(self) -> None:
        """Print what came of it."""
        print(
            f"{self.tokens} tokens, {self.forced / self.tokens:.0%} of them forced, in {self.steps} steps ("
            f"{self.plain_steps} without); {self.accepted} of {self.drafted} drafted tokens accepted"
        )
        rows = [["tokens/s over those of", "answers", "free text", "quartiles", "without forced tokens", "quartiles"]]
        for what, least in (("all", 0.0), (f"at least {MANY:.0%} forced", MANY)):
            found = np.array([ratios for share, *ratios in self.ratios if share >= least])
            if len(found):
                low, middle, high = np.percentile(found, (25, 50, 75), axis=0)
                shown = [[f"{middle[i]:.2f}", f"{low[i]:.2f} to {high[i]:.2f}"] for i in (0, 1)]
                rows.append([what, str(len(found)), *shown[0], *shown[1]])
        print(table(rows))


def schemas(model: Model, given: argparse.Namespace) -> None:
    """Print what comes of answers to schemas."""
    clock, speeds, refused, compiled = Clock(), Speeds(), Counter[str](), list[float]()
    for_grammars(model.text)
    faults, finished, cut = list[str](), 0, 0
    named = made_up(given.count) if given.schemas is None else read(given.schemas, given.count)
    ends = time.perf_counter() + given.seconds
    for name, schema in named:
        if time.perf_counter() > ends:
            break
        form = Form(SCHEMA, json.dumps(schema))
        try:
            GenerateOptions(json_schema=schema)
            if given.walk:
                said = walk(model, form, name, compiled)
            else:
                began = time.perf_counter()
                constrained(greedy, model.text, form)
                compiled.append(time.perf_counter() - began)
                prompt = f"Write JSON, as an example of this schema: {form.text[:ASKED]}"
                result = speeds.answer(model, prompt, given.tokens, schema)
                said = result.text if result.finish_reason == "stop" else None
        except InputError as e:
            refused[keyword(str(e))] += 1
            continue
        if said is None:
            cut += 1
            continue
        finished += 1
        if (why := wrong(schema, said)) is not None:
            faults.append(f"{name}: {why}\n    {said[:300]!r}")
    _told(refused, cut, finished, faults)
    print("\n".join(faults))
    rows = [["ms", "p50", "p90", "p99", "max"]]
    for what, times in (("mask", clock.masks), ("compilation", compiled)):
        rows.append([what, *(f"{1e3 * np.percentile(times, p):.3f}" for p in (50, 90, 99, 100))])
    print(table(rows))
    if speeds.ratios:
        speeds.show()


def _told(refused: Counter[str], cut: int, finished: int, faults: Sequence[str]) -> None:
    total = sum(refused.values()) + cut + finished
    print(
        f"{total} schemas: {sum(refused.values()) / total:.1%} refused, {cut} cut off at their maximum length, "
        f"{finished} finished, {finished - len(faults)} of these valid"
    )
    print(table([["refused for", "schemas"], *([what, str(n)] for what, n in refused.most_common(25))]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--schemas", type=Path, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=400, help="schemas at most")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further one is begun")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--walk", action="store_true", help="draw tokens blindly instead of asking the model")
    parser.add_argument("--speculate", default="auto")
    given = parser.parse_args(argv)
    model = edge.load(given.model, speculate=given.speculate, kind=Model)
    schemas(model, given)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeError as e:
        sys.exit(f"structured: {e}")
