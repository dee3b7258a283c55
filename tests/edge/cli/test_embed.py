"""`edge embed`, and what other commands say of a model that makes vectors."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_embedders import TEXTS, tiny_embedder

import edge
from edge.bundle import Bundle
from edge.cli.main import main


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("models")
    return edge.export(tiny_embedder(root / "tiny-bert", length=32), root / "tiny.edge")


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_texts_become_lines_of_json(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", str(bundle.root), *TEXTS]) == 0
    out, err = capsys.readouterr()
    found = lines(out)
    assert [each["index"] for each in found] == [0, 1, 2, 3] and found[0]["tokens"] == 5
    made = np.array([each["embedding"] for each in found], np.float32)
    np.testing.assert_array_equal(made, edge.load(bundle.root, kind=edge.Embedder).embed(TEXTS))
    assert "4 texts" in err and "texts/s" in err


def test_a_file_of_lines_becomes_an_array(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.cli.embed.AT_A_TIME", 3)
    texts = [*TEXTS, "", "the clock", *TEXTS]
    (tmp_path / "texts.txt").write_bytes("\r\n".join(texts).encode())
    given = ["embed", str(bundle.root), "-f", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "v.npy")]
    assert main(given) == 0
    made = np.load(tmp_path / "v.npy")
    assert made.dtype == np.float32 and made.shape == (10, 64)
    np.testing.assert_array_equal(made, edge.load(bundle.root, kind=edge.Embedder).embed(texts))
    assert capsys.readouterr().out == ""
    assert main([*given[:-1], str(tmp_path / "v.jsonl"), "--dimensions", "8"]) == 0
    assert [len(each["embedding"]) for each in lines((tmp_path / "v.jsonl").read_text())] == [8] * 10


def test_lines_of_standard_input(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the clock\na ball\n")))
    assert main(["embed", str(bundle.root)]) == 0
    assert len(lines(capsys.readouterr().out)) == 2


def test_a_long_text_is_refused_with_both_numbers_or_cut_and_said(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["embed", str(bundle.root), "a", "clock " * 40, "-o", str(tmp_path / "v.npy")]
    assert main(given) == 2
    assert "Text 2 has 42 tokens, and tiny-bert takes 32 at most" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([*given, "--truncate"]) == 0
    assert "1 of 2 texts was longer than 32 tokens, and was cut." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["a", "-f", "x.txt"], "leave one out"),
        (["a", "-o", "vectors.csv"], "ends with .npy or .jsonl"),
        (["-f", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["a", "--prompt", "query"], "has no prompt 'query'"),
        (["a", "--dimensions", "0"], "dimensions"),
        (["a", "--memory", "1MB"], "smallest budget"),
    ],
)
def test_bad_input_is_a_sentence(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert main(["embed", str(bundle.root), *more]) == 2
    out, err = capsys.readouterr()
    assert sentence in err and out == "" and len(err.splitlines()) == 1


def test_a_file_that_is_no_text_is_refused(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_bytes(b"fine\n\xff\xfe\n")
    assert main(["embed", str(bundle.root), "-f", str(tmp_path / "t")]) == 2
    assert "Line 2 of" in capsys.readouterr().err
    (tmp_path / "t").write_bytes(b"")
    assert main(["embed", str(bundle.root), "-f", str(tmp_path / "t")]) == 2


def test_a_model_that_answers_makes_no_vectors(
    pristine_tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(pristine_tiny_bundle.root), "a"]) == 2
    assert "makes no vectors; edge run answers with it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        ["run", "{}", "hello"],
        ["plan", "{}"],
        ["profile", "{}"],
        ["profile", "{}", "--speculate"],
        ["eval", "{}", "--text", "{text}"],
        ["push", "{}"],
    ],
)
def test_commands_that_need_an_answer_say_what_does_it(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    (tmp_path / "text").write_text("some text")
    assert main([each.format(bundle.root, text=tmp_path / "text") for each in given]) == 2
    assert "tiny-bert makes vectors of texts, and answers nothing; use edge embed" in capsys.readouterr().err


def test_inspect_and_verify_know_the_kind(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle.root)]) == 0
    said = capsys.readouterr().out
    assert "64 numbers, the mean of a text's tokens, at length 1" in said and "KV cache" not in said
    assert main(["inspect", str(bundle.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["embedding"]["width"] == 64
    assert main(["verify", str(bundle.root)]) == 0
    assert "Good: the files are intact, and the vectors are as recorded" in capsys.readouterr().out
    assert main(["verify", str(bundle.root), "--emit", str(tmp_path / "corpus")]) == 2
    assert "--emit is for models that answer" in capsys.readouterr().err


def test_verify_sees_another_models_vectors(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edge.bundle import sha256_of
    from edge.manifest import sealed

    root = tmp_path / "other.edge"
    shutil.copytree(bundle.root, root)
    golden = json.loads((root / "golden.json").read_text())
    golden["cases"][1]["vector"].reverse()
    (root / "golden.json").write_text(json.dumps(golden))
    manifest = json.loads((root / "edge.json").read_text())
    for file in manifest["files"]:
        if file["path"] == "golden.json":
            file |= {"size": (root / "golden.json").stat().st_size, "sha256": sha256_of(root / "golden.json")}
    (root / "edge.json").write_text(sealed(manifest))
    assert main(["verify", str(root)]) == 2
    out, err = capsys.readouterr()
    assert "Not good" in out and "text 2: its vector is" in err
