"""The benchmarks of answers in a given form: they run whole on a tiny model, and see what does not satisfy a schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.bundle import Bundle

pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

import aligned
import structured
import tool_calls


@pytest.mark.parametrize("more", [[], ["--walk"]], ids=["model", "walk"])
def test_schemas_are_refused_or_answered_and_all_are_counted(
    pristine_tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    schemas = {"fine": {"enum": ["tide", "train"]}, "not": {"not": {"type": "null"}}, "long": {"const": "tide " * 99}}
    for name, schema in schemas.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(schema))
    command = [str(pristine_tiny_bundle.root), "--schemas", str(tmp_path), "--tokens", "40", *more]
    assert structured.main(command) == 0
    said = capsys.readouterr().out
    assert "3 schemas: 33.3% refused, 1 cut off at their maximum length, 1 finished, 1 of these valid" in said
    assert ("of them forced" in said) == (not more)


def test_schemas_that_are_made_up_are_schemas(pristine_tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert structured.main([str(pristine_tiny_bundle.root), "--walk", "--count", "8"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("8 schemas: 0.0% refused")
    finished, valid = (int(said.split(word)[0].split()[-1]) for word in (" finished", " of these valid"))
    assert finished == valid > 0


def test_what_does_not_satisfy_a_schema_is_found() -> None:
    schema = {"type": "string", "format": "date"}
    assert structured.wrong(schema, '"2024-02-29"') is None
    assert "format" in (structured.wrong(schema, '"2023-02-29"') or "")
    assert "no JSON" in (structured.wrong(schema, '"2024') or "")


def test_a_call_counts_that_is_the_demanded_one_and_satisfies_its_schema() -> None:
    def answer(arguments: str, finish: str = "tool_calls") -> dict[str, object]:
        call = {"function": {"name": "weather", "arguments": arguments}}
        return {"choices": [{"finish_reason": finish, "message": {"tool_calls": [call]}}]}

    right = '{"city": "Oslo", "unit": "C"}'
    assert tool_calls.fault(answer(right), None) is tool_calls.fault(answer(right), "weather") is None
    assert tool_calls.fault(answer(right), "add") and tool_calls.fault(answer(right, "length"), None)
    assert tool_calls.fault(answer('{"city": "Oslo", "unit": "K"}'), None)


def test_aligned_sampling_is_compared_with_the_exact_distribution(
    pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(aligned, "CASES", [("words", "The moon", "moon|tide|a[bc]d")])
    monkeypatch.setattr(aligned, "TRIALS", 20)
    assert aligned.main([str(pristine_tiny_bundle.root)]) == 0
    header, _, row, told = (
        [each.strip() for each in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()
    )
    assert (row[0], told[0]) == ("words", "words, told")
    for found in (dict(zip(header, each, strict=True)) for each in (row, told)):
        distances = [float(found[name]) for name in ("masks", "aligned:2", "aligned:4", "aligned:8", "aligned:16")]
        assert distances[0] > distances[-1] and all(float(found[name]) > 0 for name in ("masks, s", "aligned, s"))
