"""`edge profile --skip`: each policy next to the whole decoder, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from skip_models import segmented_t5

from edge.bundle import Bundle
from edge.cli.main import main
from edge.runtime.skip import loss


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return segmented_t5(tmp_path_factory.mktemp("t5"))


def profiled(bundle: Bundle, skips: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["profile", str(bundle.root), "--skip", skips, "--seconds", "1", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_each_policy_has_its_layers_speed_and_loss(by_layer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    found = profiled(by_layer, "unified:0.34, skipdecode:2-6,unified:0,unified:0.34", capsys)
    assert [each["skip"] for each in found] == ["off", "unified:0.34", "skipdecode:2-6", "unified:0"]
    layers = [each["layers"] for each in found]
    assert layers[0] == layers[3] == 6 and layers[1] == 4
    assert 3.5 < layers[2] < 4.5, "from six to two, in the course of an answer"
    for each in found:
        assert each["tokens_per_s"] == pytest.approx(1e3 / each["ms"]) and each["speed"] > 0
        assert each["ruins"] is (each["times_perplexity"] > loss.RUINED)
    assert found[0]["same"] == found[3]["same"] == found[3]["tokens"] > found[1]["same"]


def test_the_loss_is_the_one_that_a_run_is_refused_by(
    by_half: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "RUINED", 1.0)
    (_, each) = profiled(by_half, "ffn:0.34", capsys)
    assert each["ruins"] and 4 < each["layers"] < 6
    monkeypatch.setattr(loss, "measure", lambda *_: pytest.fail("it was measured already"))
    assert main(["run", str(by_half.root), "hello", "--skip", "ffn:0.34"]) == 2
    assert f"keeps {each['same']} of {each['tokens']} tokens" in capsys.readouterr().err


def test_decoders_behind_an_encoder_are_measured_too(t5: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    found = profiled(t5, "unified:0.25,unified:0.5", capsys)
    assert [each["layers"] for each in found] == [4, 3, 2]


def test_the_table_says_what_a_run_would_do(
    by_layer: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "RUINED", 1.0)
    assert main(["profile", str(by_layer.root), "--skip", "unified:0.34,unified:0", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    (ruined,) = (line for line in out.splitlines() if line.strip().startswith("unified:0.34"))
    (whole,) = (line for line in out.splitlines() if line.strip().startswith("unified:0 "))
    assert ruined.split()[-1] == "refuses" and whole.split()[-1] == "answers" and "--skip-anyway" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--skip", "off"], "off is what policies are measured next to"),
        (["--skip", "unified:0.34,off"], "off is what policies are measured next to"),
        (["--skip", "unified:0.34,,"], "names an empty policy"),
        (["--skip", ""], "names an empty policy"),
        (["--skip", "nothing"], "There is no skip policy 'nothing'"),
        (["--skip", "unified:0.1,unified:2"], "no share of the layers"),
        (["--skip", "first"], "has no routers"),
        (["--skip", "unified:0.1", "--ops"], "omit --ops and --context"),
        (["--skip", "unified:0.1", "--context", "64"], "omit --ops and --context"),
        (["--skip", "unified:2", "--html", "page.html"], "no share of the layers"),
        (["--skip", "unified:0.1", "--speculate"], "ask for one of them"),
        (["--skip", "unified:0.1", "--seconds", "0"], "1 second or more"),
        (["--skip", "unified:0.1", "--provider", "nothing"], "nothing"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(
    by_layer: Bundle,
    options: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edge.runtime.profile.skipped.open_engine", lambda *_, **__: pytest.fail("it measured"))
    assert main(["profile", str(by_layer.root), *options]) == 2
    out, error = capsys.readouterr()
    assert out == "" and sentence in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_stored_profile_has_no_policies_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{}", encoding="utf-8")
    assert main(["profile", str(path), "--skip", "unified:0.1"]) == 2
    assert "a stored profile is only shown; leave it out" in capsys.readouterr().err


def test_a_page_has_the_policies_with_all_the_rest(
    by_layer: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, asked = tmp_path / "page.html", ["--skip", "unified:0.34", "--seconds", "2"]
    assert main(["profile", str(by_layer.root), *asked, "--html", str(page), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert [each["skip"] for each in stored["skipped"]] == ["off", "unified:0.34"] and stored["decode"]
    assert '"skip": "unified:0.34"' in page.read_text(encoding="utf-8")
    (tmp_path / "profile.json").write_text(json.dumps(stored), encoding="utf-8")
    assert main(["profile", str(tmp_path / "profile.json")]) == 0
    assert "unified:0.34" in capsys.readouterr().out
