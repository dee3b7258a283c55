"""The profile document: what is written is read back, and whatever cannot be right is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from changes import changed
from places import DOCS
from profile_example import example_profile

from edge.errors import InputError
from edge.runtime.costs.record import parse, read_profile


def example(path: str, value: Any) -> str:
    """The example's JSON with one field replaced, or removed by `...`."""
    return json.dumps(changed(example_profile().to_json(), path, value))


@pytest.mark.parametrize("kind", ["decoder", "text", "speech"])
def test_a_profile_survives_its_json(kind: str) -> None:
    profile = example_profile(kind=kind)
    assert parse(profile.to_json(), "a.json") == profile


def test_a_host_may_leave_out_what_it_cannot_measure() -> None:
    raw = json.loads(example_profile().to_json())
    kept = "format", "format_version", "producer", "created", "seconds", "device", "bundle", "context"
    bare = parse(json.dumps({name: raw[name] for name in kept}), "a.json")
    assert bare.device == example_profile().device and bare.curve == [] and bare.load is None


def test_unknown_fields_of_the_same_version_are_ignored() -> None:
    assert parse(example("device.colour", "red"), "a.json") == example_profile()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (example("format_version", 2), "a.json has format version 2, and this edge reads 1; profile the bundle again."),
        (example("format", "other"), "a.json is not a profile; edge profile BUNDLE --json writes one."),
        (example("format_version", True), "a.json is not a profile"),
        ("[]", "a.json must hold a JSON object, not a list; profile the bundle again."),
        ("{", "a.json is not valid JSON"),
        (example("device.cpu", ...), "a.json lacks the field 'device.cpu'; profile the bundle again."),
        (example("ttft.1.time.p50_ms", "fast"), "field 'ttft[1].time.p50_ms' must be a number, not 'fast'; profile"),
        (example("decode.0.time.p50_ms", 0), "decode[0].time.p50_ms is 0, and must be above 0; profile"),
        (example("curve.3.ms", float("nan")), "a.json is not valid JSON (NaN is no number of JSON); profile"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "a.json")
    assert sentence in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file or directory."):
        read_profile(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_profile(tmp_path / "bytes.json")


def test_the_page_about_the_format_names_every_field_and_its_example_is_accepted() -> None:
    page = (DOCS / "reference" / "profile-format.md").read_text(encoding="utf-8")
    example = parse(page.partition("```json\n")[2].partition("```")[0], "the example")
    assert example.device.name == "Pixel 9" and example.decode[0].time.p50_ms == 14.2

    def names(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(names, value))
        if not isinstance(value, dict):
            return set()
        return {name for name in value if not name.startswith("_")}.union(*map(names, value.values()))

    raw = json.loads(example_profile(kind="speech").to_json())
    kinds = raw["memory"].pop("predicted"), [sample.pop("kinds") for sample in raw["memory"]["samples"]]
    assert kinds
    missing = sorted(name for name in names(raw) if name not in page)
    assert missing == []
