"""`edge inspect FILE.gguf`: what the file says of itself, and how it would be stored, before anything is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

import edge
from edge.cli.main import main
from edge.export.request import gguf_summary
from edge.runtime.kernels.library import find_kernels

TYPES = {"ffn_down": Type.Q6_K, "ffn": Type.Q4_0, "attn_output": Type.F16, "attn": Type.Q8_0}
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata: dict[str, Any] = {
        "general.name": "Tiny [b]Llama",
        "general.quantized_by": "somebody",
        "general.license.name": "Tiny terms",
        "general.license.link": "https://example.org/terms",
        "general.sampling.temp": 0.75,
        "general.sampling.mirostat_tau": 5.0,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
        "tokenizer.chat_template.rag": "{{ documents }}",
    }
    model = tiny_model("llama", head_dim=64, tie_word_embeddings=False, **SIZES)
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model, types=TYPES, metadata=metadata)


def inspected(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["inspect", str(file), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_file_is_told_in_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file)]) == 0
    out = capsys.readouterr().out
    for part in ("Tiny [b]Llama · llama", "mit, Tiny terms, https://example.org/terms", "by somebody"):
        assert part in out
    assert "a template; others, which edge does not use: rag, tool_use" in out
    assert "temperature 0.75; not read: mirostat_tau 5.0" in out
    assert "A token reads" in out and "does not run" not in out


def test_the_same_in_json_under_its_own_names(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(file, capsys)
    assert found["chat_template"] is True and found["named_templates"] == ["rag", "tool_use"]
    assert found["settings"] == {"do_sample": True, "temperature": 0.75}
    assert found["unread_settings"] == {"mirostat_tau": 5.0}


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_summary, "find_kernels", lambda: None)


@pytest.mark.usefixtures("without_kernels")
def test_each_type_says_how_a_bundle_stores_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(file, capsys)
    stored = {share["type"]: share["stored"] for share in found["types"]}
    assert stored == {
        "Q4_0": "as it is, 4 bits",
        "Q8_0": "as it is, 8 bits",
        "Q6_K": "8 bits, in blocks of 64",
        "F16": "floats",
        "F32": "floats",
    }
    assert sum(share["bytes"] for share in found["types"]) == found["bytes"] < file.stat().st_size


def test_our_kernels_read_what_the_file_has(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if find_kernels() is None:
        pytest.skip("edge-lm-kernels do not run here")
    for share in inspected(file, capsys)["types"]:
        floats = share["type"] == "F32"
        assert (share["stored"] == "floats") is floats
        assert floats or share["bundle_bytes"] == pytest.approx(share["bytes"], rel=1e-3)  # but for vectors


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.F32])
def test_a_file_of_floats_alone_is_stored_in_8_bits(
    kind: Type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "floats.gguf", tiny_model("llama", **SIZES), types={".weight": kind})
    (share,) = inspected(path, capsys)["types"]
    assert share["stored"] == "8 bits, in blocks of 64"
    bundle = edge.export(path, tmp_path / "floats.edge", effort="quick", in_place=True)
    assert share["bundle_bytes"] == pytest.approx(sum(group.bytes for group in bundle.manifest.groups), rel=0.02)


@pytest.mark.usefixtures("without_kernels")
def test_the_bytes_are_those_of_the_bundle_that_is_made(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(file, capsys)
    bundle = edge.export(file, tmp_path / "tiny.edge", effort="quick")
    stored = sum(share["bundle_bytes"] for share in found["types"])
    assert sum(group.bytes for group in bundle.manifest.groups) == pytest.approx(stored, rel=0.02)


def test_an_embedding_is_not_read_for_each_token_where_the_head_is_another_matrix(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(file, capsys)
    tied = inspected(write_gguf(tmp_path / "tied.gguf", tiny_model("llama", tie_word_embeddings=True)), capsys)
    assert tied["token_bytes"] == tied["bytes"] and found["token_bytes"] < found["bytes"]


def test_of_experts_a_token_reads_those_that_it_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = dict[int, int]()
    for chosen in (1, 4):
        model = tiny_model("olmoe", num_experts=4, num_experts_per_tok=chosen, num_key_value_heads=3)
        path = write_gguf(tmp_path / f"{chosen}.gguf", model, types={"exps": Type.Q4_1})
        found = inspected(path, capsys)
        (experts,) = (share for share in found["types"] if share["type"] == "Q4_1")
        read[chosen] = found["token_bytes"]
        if find_kernels() is not None:
            assert experts["stored"] == "as it is, 4 bits" and experts["bundle_bytes"] == experts["bytes"]
    assert read[4] - read[1] == experts["bytes"] * 3 // 4


def test_a_model_that_does_not_run_is_told_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "odd.gguf", tiny_model("llama"), leave_out="blk.0.ffn_up.weight")
    assert main(["inspect", str(file)]) == 0
    assert "edge does not run it: " in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model"])
def test_what_is_no_gguf_file_gets_a_sentence(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert main(["inspect", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_options_of_bundles_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--provider", "cpu"]) == 2
    assert "--provider is about the graphs of a bundle" in capsys.readouterr().err
