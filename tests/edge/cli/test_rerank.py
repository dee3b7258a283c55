"""`edge rerank`, and what other commands say of a model that ranks."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tiny_rerankers import DOCUMENTS, QUERY, tiny_reranker

import edge
from edge.bundle import Bundle
from edge.cli.main import main


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("models")
    return edge.export(tiny_reranker(root / "tiny-cross"), root / "tiny.edge")


def test_documents_become_lines_of_json_the_best_first(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = edge.load(bundle.root, kind=edge.Reranker).rank(QUERY, DOCUMENTS)
    assert main(["rerank", str(bundle.root), QUERY, *DOCUMENTS]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["index"], each["relevance_score"]) for each in found] == [(e.index, e.score) for e in wanted]
    assert all(each["document"] == DOCUMENTS[each["index"]] for each in found)
    assert "5 documents" in err and "documents/s" in err
    monkeypatch.setattr("edge.cli.rerank.AT_A_TIME", 2)
    (tmp_path / "documents.txt").write_text("\n".join(DOCUMENTS))
    assert main(["rerank", str(bundle.root), QUERY, "-f", str(tmp_path / "documents.txt"), "--top", "2"]) == 0
    assert capsys.readouterr().out == "".join(out.splitlines(keepends=True)[:2])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(DOCUMENTS).encode())))
    assert main(["rerank", str(bundle.root), QUERY]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["a", "-f", "x.txt"], "leave one out"),
        (["-f", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["a", "--top", "0"], "number of documents"),
        (["clock " * 80], "takes 66 at most"),
        (["a", "--memory", "1MB"], "smallest budget"),
    ],
)
def test_bad_input_is_a_sentence(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert main(["rerank", str(bundle.root), "a", *more]) == 2
    out, err = capsys.readouterr()
    assert sentence in err and out == "" and len(err.splitlines()) == 1


def test_no_document_is_refused(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_bytes(b"")
    assert main(["rerank", str(bundle.root), "a", "-f", str(tmp_path / "t")]) == 2
    assert "no document to rank" in capsys.readouterr().err


def test_a_cut_document_is_said(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerank", str(bundle.root), "a", "b", "clock " * 80, "--truncate"]) == 0
    assert "1 of 2 documents was with the query longer than 66 tokens, and was cut." in capsys.readouterr().err


def test_each_command_names_the_one_that_does_it(
    bundle: Bundle, pristine_tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["run", "{}", "hello"], ["plan", "{}"], ["profile", "{}"]):
        assert main([each.format(bundle.root) for each in command]) == 2
        assert "tiny-cross ranks documents, and answers nothing; use edge rerank" in capsys.readouterr().err
    assert main(["embed", str(bundle.root), "a"]) == 2
    assert "makes no vectors; edge rerank ranks documents with it" in capsys.readouterr().err
    assert main(["rerank", str(pristine_tiny_bundle.root), "a", "b"]) == 2
    assert "ranks no documents; edge run answers with it" in capsys.readouterr().err


def test_inspect_and_verify_know_the_kind(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle.root)]) == 0
    said = capsys.readouterr().out
    assert "documents by how well they answer a query" in said and "KV cache" not in said
    assert main(["verify", str(bundle.root)]) == 0
    said = capsys.readouterr().out
    assert "the scores are as recorded at export" in said and "Scores   4 pairs" in said
