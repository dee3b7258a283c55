"""The manifest: what is written is read back, and whatever cannot be right is refused with its place."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from changes import changed

from edge.errors import BundleError
from edge.manifest import (
    FORMAT_VERSION,
    ChatFormat,
    ChatSlot,
    Graph,
    KVLayer,
    Manifest,
    PrefillGraph,
    Segment,
    State,
    parse,
    sealed,
)


def resealed(manifest: Manifest, path: str, value: Any) -> str:
    """The manifest's JSON with one field replaced, or removed by `...`."""
    return sealed(changed(manifest.to_json(), path, value))


def test_a_manifest_survives_its_json(manifest: Manifest) -> None:
    assert parse(manifest.to_json(), "edge.json") == manifest


def test_a_chat_format_survives_its_json(manifest: Manifest) -> None:
    slot = ChatSlot("<|user|>\n", trim_end=True)
    chat = ChatFormat(slot, None, None, ChatSlot("<|assistant|>\n", blank=True), slot, "<|assistant|>\n", ["</think>"])
    manifest = dataclasses.replace(manifest, chat_format=chat)
    assert parse(manifest.to_json(), "edge.json") == manifest


def test_a_changed_letter_is_seen_wherever_it_stands(manifest: Manifest) -> None:
    manifest = dataclasses.replace(manifest, chat_template="{{ messages }} \N{LEFT DOUBLE QUOTATION MARK}")
    text = manifest.to_json()
    for place, letter in enumerate(text):
        damaged = text[:place] + chr(ord(letter) ^ 1) + text[place + 1 :]
        with contextlib.suppress(BundleError):
            assert parse(damaged, "edge.json") == manifest, damaged[place - 20 : place + 20]


def test_a_manifest_without_a_checksum_is_taken(manifest: Manifest) -> None:
    fields = json.loads(manifest.to_json())
    assert len(fields.pop("crc32")) == 8
    assert parse(json.dumps(fields), "edge.json") == manifest


def test_unknown_fields_of_the_same_version_are_ignored(manifest: Manifest) -> None:
    assert parse(resealed(manifest, "dims.experts", 8), "edge.json") == manifest


def test_fields_with_defaults_may_be_absent(manifest: Manifest) -> None:
    text = json.loads(manifest.to_json())
    for name in ("chat_format", "quality", "segments", "routers", "files"):
        del text[name]
    assert parse(sealed(text), "edge.json") == dataclasses.replace(manifest, quality={})


def test_whole_numbers_are_accepted_for_floats(manifest: Manifest) -> None:
    assert parse(resealed(manifest, "groups.0.bits", 4), "edge.json") == manifest


def test_a_newer_version_asks_for_an_upgrade(manifest: Manifest) -> None:
    with pytest.raises(BundleError, match=f"format version {FORMAT_VERSION + 1}.*upgrade edge"):
        parse(resealed(manifest, "format_version", FORMAT_VERSION + 1), "edge.json")


def test_a_newer_version_is_refused_before_its_fields_are_read() -> None:
    with pytest.raises(BundleError, match="upgrade edge"):
        parse('{"format_version": 99, "dims": "of another shape"}', "edge.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format_version", ..., "has no format_version"),
        ("format_version", "1", "has no format_version"),
        ("format_version", True, "has no format_version"),
        ("format_version", 1, "format version 1, and this edge reads 2; export the model again"),
        ("name", ..., "lacks the field 'name'"),
        ("dims.head_dim", ..., r"lacks the field 'dims.head_dim'"),
        ("dims.head_dim", "16", r"'dims.head_dim' must be a whole number, not '16'"),
        ("dims.head_dim", 16.5, r"'dims.head_dim' must be a whole number"),
        ("dims.head_dim", True, r"'dims.head_dim' must be a whole number"),
        ("dims.head_dim", 0, r"dims.head_dim is 0"),
        ("dims", [], "'dims' must be an object"),
        ("graphs", {}, "'graphs' must be a list"),
        ("graphs.0", "decoder", r"'graphs\[0\]' must be an object"),
        ("graphs.0.role", None, r"'graphs\[0\].role' must be a string"),
        ("quality", [], "'quality' must be an object"),
        ("quality.top1_agreement", "high", "'quality.top1_agreement' must be a number"),
        ("tokens.eos", [1, "2"], r"'tokens.eos\[1\]' must be a whole number"),
        ("tokens.add_bos", 1, "'tokens.add_bos' must be true or false"),
        ("context", -4, "context is -4"),
        ("kind", "oracle", "kind is 'oracle'"),
        ("kv.dtype", "float12", "kv.dtype is 'float12'"),
        ("kv.layers", [], "kv.layers has 0 entries for 2 layers"),
        ("kv.layers.1.heads", 0, r"kv.layers\[1\] has 0 heads"),
        ("groups", [], "groups is empty"),
        ("groups.0.parameters", 0, "'attention' has 0 parameters"),
    ],
)
def test_a_field_that_cannot_be_right_is_named(manifest: Manifest, path: str, value: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message) as caught:
        parse(resealed(manifest, path, value), "some/edge.json")
    assert str(caught.value).startswith("some/edge.json")


def with_states(manifest: Manifest, **changes: Any) -> Manifest:
    """A manifest whose first layer keeps two states and no rows; changes: of the first of them."""
    first = dataclasses.replace(State(0, "scan", [4, 16]), **changes)
    kv = dataclasses.replace(manifest.kv, layers=[KVLayer(0, 0), *manifest.kv.layers[1:]])
    return dataclasses.replace(manifest, kv=kv, states=[first, State(0, "conv", [3, 64])])


def test_states_are_written_where_there_are_some(manifest: Manifest) -> None:
    assert "states" not in json.loads(manifest.to_json())
    stateful = with_states(manifest)
    assert parse(stateful.to_json(), "edge.json") == stateful
    assert [(state.input, state.nbytes) for state in stateful.states] == [("past.0.scan", 256), ("past.0.conv", 768)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 1}, r"kv.layers\[0\] has 0 heads"),
        ({"layer": 2}, r"states\[0\].layer is 2"),
        ({"layer": -1}, r"states\[0\].layer is -1"),
        ({"name": "conv"}, "states has 2 entries, 1 of them with different names"),
        ({"name": "key"}, r"states\[0\].name is 'key'"),
        ({"name": "../scan"}, r"states\[0\].name is '../scan'"),
        ({"name": ""}, r"states\[0\].name is ''"),
        ({"name": "s" * 61}, r"states\[0\].name is 's+'"),
        ({"shape": []}, r"states\[0\].shape is \[\]"),
        ({"shape": [4, 0]}, r"states\[0\].shape is \[4, 0\]"),
        ({"shape": [1] * 7}, r"states\[0\].shape is "),
        ({"shape": [1 << 20, 1 << 20]}, r"states\[0\].shape is "),
        ({"shape": [10**30]}, r"states\[0\].shape\[0\]. must be a whole number"),
        ({"dtype": "int8"}, r"states\[0\].dtype is 'int8', and this edge keeps float32"),
    ],
)
def test_a_state_that_cannot_be_right_is_named(manifest: Manifest, changes: dict[str, Any], message: str) -> None:
    stateful = with_states(manifest, **changes)
    if changes == {"layer": 1}:  # then nothing says what the first layer keeps
        stateful = dataclasses.replace(stateful, states=stateful.states[:1])
    with pytest.raises(BundleError, match=message):
        parse(stateful.to_json(), "edge.json")


def test_states_go_with_nothing_that_repeats_or_leaves_out_tokens(manifest: Manifest) -> None:
    others: dict[str, dict[str, Any]] = {
        "short_rope": {"short_rope": 100},
        "segments": {"segments": [Segment("start", [0]), Segment("end", [1])]},
        "prefill": {
            "prefill": PrefillGraph("int8", 1, manifest.groups),
            "graphs": [*manifest.graphs, Graph("prefill", "graphs/prefill.onnx")],
        },
    }
    for name, changes in others.items():
        with pytest.raises(BundleError, match=f"states and {name} are both there"):
            parse(dataclasses.replace(with_states(manifest), **changes).to_json(), "edge.json")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', "null", "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match="not valid JSON|must hold a JSON object"):
        parse(text, "edge.json")


def test_a_graph_is_found_by_its_role(manifest: Manifest) -> None:
    assert manifest.graph("decoder") == Graph("decoder", "graphs/decoder.onnx")
    with pytest.raises(BundleError, match="no graph with the role 'encoder'; it has: decoder"):
        manifest.graph("encoder")


def test_bits_per_weight_counts_every_group(manifest: Manifest) -> None:
    assert manifest.bits_per_weight == pytest.approx(8 * (625 + 400) / 1100)


def test_kv_bytes_count_keys_and_values_of_every_layer(manifest: Manifest) -> None:
    assert manifest.kv.bytes_per_token == 2 * 2 * (2 * 16) * 4
