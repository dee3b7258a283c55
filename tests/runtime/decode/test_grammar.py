"""Answers in a given form: whatever the model would say, they have it; drafts and neighbours change nothing."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.runtime.decode.form import LONGEST
from edge.runtime.model import Model

pytest.importorskip("llguidance")

DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "yes": {"type": "boolean"},
        "word": {"enum": ["moon", "tide"]},
    },
    "required": ["n", "yes", "word"],
    "additionalProperties": False,
}


# Of itself in itself, without end; and of 500 lists in each other.
ENDLESS = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}
DEEP = reduce(lambda inner, _: {"type": "array", "items": inner}, range(500), {"type": "null"})


@pytest.fixture(scope="module")
def model(pristine_tiny_bundle: Bundle) -> Model:
    return edge.load(pristine_tiny_bundle.root, kind=Model)


def fits(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == ["n", "yes", "word"]
        and isinstance(found["n"], int)
        and 0 <= found["n"] <= 99
        and isinstance(found["yes"], bool)
        and found["word"] in ("moon", "tide")
    )


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_an_answer_satisfies_its_schema(model: Model, temperature: float) -> None:
    for seed in range(5):
        found = model.generate("The moon", json_schema=SCHEMA, max_tokens=100, temperature=temperature, seed=seed)
        assert found.finish_reason == "stop" and fits(found.text)


def test_a_schema_is_a_mapping_a_text_or_a_class(model: Model) -> None:
    class Person:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return SCHEMA

    said = {
        model.generate("The moon", json_schema=each, max_tokens=100).text
        for each in (SCHEMA, json.dumps(SCHEMA), Person)
    }
    assert len(said) == 1


def test_an_answer_matches_an_expression_or_is_of_a_grammar(model: Model) -> None:
    found = model.generate("The moon", regex=DATE, max_tokens=60)
    assert re.fullmatch(DATE, found.text) and found.finish_reason == "stop"
    found = model.generate("The moon", grammar='start: ("ab" | "cd")+ "!"', max_tokens=60, temperature=1, seed=3)
    assert re.fullmatch("(ab|cd)+!", found.text) or found.finish_reason == "length"
    assert model.generate("The moon", grammar='start: "yes" | "no"', max_tokens=9).text in ("yes", "no")


def test_drafts_and_neighbours_change_nothing(pristine_tiny_bundle: Bundle, model: Model) -> None:
    prompts = ["The moon", "The tide rises", "A train"]
    options = [
        edge.GenerateOptions(max_tokens=80, json_schema=SCHEMA),
        edge.GenerateOptions(max_tokens=20, regex=DATE),
        edge.GenerateOptions(max_tokens=20),
    ]
    plain = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")
    alone = [plain.generate(p, o).token_ids for p, o in zip(prompts, options, strict=True)]
    for name in ("lookup", "recycle"):
        drafted = edge.load(pristine_tiny_bundle.root, kind=Model, speculate=name)
        assert [drafted.generate(p, o).token_ids for p, o in zip(prompts, options, strict=True)] == alone
    assert [each.token_ids for each in plain.generate_all(prompts, options)] == alone
    assert [model.generate(p, o).token_ids for p, o in zip(prompts, options, strict=True)] == alone


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"json_schema": "{"}, "The JSON schema is none"),
        ({"json_schema": 3}, "The JSON schema is none"),
        ({"json_schema": {"type": "wish"}}, "cannot be obeyed"),
        ({"json_schema": {"type": "object", "unevaluatedProperties": False}}, "unevaluatedProperties"),
        ({"json_schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "cannot be obeyed"),
        ({"json_schema": {"description": "x" * LONGEST}}, "characters"),
        ({"regex": "(["}, "cannot be obeyed"),
        ({"regex": ""}, "must be a text"),
        ({"grammar": "what is this"}, "cannot be obeyed"),
        ({"grammar": 'start: "a"', "regex": "a"}, "one form"),
        ({"json_schema": False}, "cannot be obeyed"),
        ({"json_schema": {"$ref": "#"}}, "nothing satisfies it"),
        ({"json_schema": ENDLESS}, "Too many items"),
        ({"json_schema": DEEP}, "recursion limit"),
        ({"json_schema": {"items": [{"exclusiveMinimum": 0, "maximum": 0.5}]}}, "a minimum that is a little more"),
        ({"json_schema": {"minimum": -4.5, "exclusiveMaximum": -4.0}}, "a maximum that is a little less"),
        ({"json_schema": {"multipleOf": 99999989}}, "multiples of 99999989"),
        ({"json_schema": {"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]}}, "multiples of 997, 9.91"),
        ({"grammar": r'start: %json {"m\u0075ltipleOf": 1e99999}'}, "multiples of 1e99999"),
        ({"regex": "()"}, "empty answer"),
        ({"regex": r"[^\s\S]"}, "nothing satisfies it"),
        ({"grammar": 'start: "a" start'}, "Too many items"),
    ],
)
def test_a_form_that_cannot_be_obeyed_is_refused_before_anything_is_said(
    model: Model, form: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        next(model.stream("The moon", **form))


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize(
    ("bounds", "most"),
    [({"exclusiveMinimum": 0, "maximum": 1}, 1.0), ({"minimum": 3.5, "exclusiveMaximum": 4}, 3.9999)],
)
def test_a_number_stays_within_its_bounds(model: Model, bounds: Any, most: float, temperature: float) -> None:
    for seed in range(8):
        found = model.generate(
            "1", json_schema={"type": "number", **bounds}, max_tokens=12, temperature=temperature, seed=seed
        )
        if found.finish_reason == "stop":
            assert bounds.get("minimum", 1e-12) <= float(found.text) <= most


def test_an_object_of_many_fields_is_obeyed(model: Model) -> None:
    many = {"type": "object", "properties": {f"field {i}": {"const": i} for i in range(2000)}}
    found = model.generate("The moon", json_schema=many | {"additionalProperties": False}, max_tokens=30)
    assert re.match(r'\{("field \d+": \d+, )*', found.text)


def test_any_json_is_allowed_where_the_schema_is_true(model: Model) -> None:
    assert model.generate("The moon", json_schema=True, max_tokens=5).generated_tokens  # type: ignore[arg-type]


def test_a_schema_that_refers_to_itself_is_obeyed(model: Model) -> None:
    tree = {
        "$defs": {
            "node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
        },
        "$ref": "#/$defs/node",
    }
    found = model.generate("The moon", json_schema=tree, max_tokens=60)
    assert found.finish_reason == "length" or isinstance(json.loads(found.text), dict)


def test_the_command_reads_a_schema_from_a_file(
    pristine_tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    run = ["run", str(pristine_tiny_bundle.root), "The moon", "--max-tokens", "100"]
    assert main([*run, "--json-schema", str(tmp_path / "schema.json")]) == 0
    assert fits(capsys.readouterr().out)
    assert main([*run, "--json-schema", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err
    assert main([*run, "--regex", DATE, "--grammar", str(tmp_path / "schema.json")]) == 2
    assert "one form" in capsys.readouterr().err
    assert main([*run, "--regex", DATE]) == 0
    assert re.fullmatch(DATE, capsys.readouterr().out.strip())
