"""`edge eval --skip`: quality under a policy is that of an answer's tokens, beside the same model unskipped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from skip_models import skipping_logits, torch_model
from texts import SENTENCES

from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.extras import install
from edge.runtime.check.perplexity import windows
from edge.runtime.check.skip_policies import PolicyLogits, measure
from edge.runtime.load import open_engine
from edge.runtime.text.tokenizer import Text

TEXT = " ".join(SENTENCES * 3)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_answers_tokens_are_scored_as_torch_scores_them(by_layer: Bundle, six_layers: Path) -> None:
    """skipdecode over a window: the prompt in all layers, then each token in those that the schedule has left."""
    window, given = 40, 16
    texts = windows(Text(by_layer).encode(TEXT), by_layer.manifest.tokens, window=window)[:1]
    (found,) = measure(by_layer, ["skipdecode:3-6"], texts, window=window, given=given)
    engine = open_engine(by_layer, skip="skipdecode:3-6", context=window)
    assert engine.routes is not None
    cache, ran = engine.new_cache(window), np.ones((6, window), bool)
    cache.prompt = given
    for cache.length in range(given, window):
        route = engine.routes.policy.route(cache, 1)
        ran[:, cache.length] = [i in route for i in range(6)]
    model, ids = torch_model(six_layers), texts[0]
    for skipped, expected in ((ran, found.perplexity), (np.ones_like(ran), found.perplexity_unskipped)):
        logits = skipping_logits(model, ids, skipped)[given - 1 : -1].astype(np.float64)
        chances = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        loss = -chances[np.arange(window - given), ids[given:]].mean()
        assert expected == pytest.approx(np.exp(loss), rel=1e-3)
    assert found.tokens == window - given
    assert found.layers_run == pytest.approx(ran[:, given:].sum(0).mean())
    assert found.speedup == found.tokens_per_s / found.tokens_per_s_unskipped > 0


def test_a_policy_that_leaves_nothing_out_costs_nothing(by_half: Bundle) -> None:
    texts = windows(Text(by_half).encode(TEXT), by_half.manifest.tokens, window=40)[:2]
    (found,) = measure(by_half, ["ffn:0"], texts, window=40, given=20)
    assert found.perplexity == pytest.approx(found.perplexity_unskipped, rel=1e-5)
    assert (found.top1_agreement, found.layers_run) == (1, 6)


def test_policies_see_each_window_as_a_prompt_and_an_answer(by_layer: Bundle) -> None:
    engine = open_engine(by_layer, skip="skipdecode:3-6", context=80)
    assert engine.routes is not None
    source = PolicyLogits(engine, 80, 30)
    ids = np.arange(20, 100)
    pieces = [piece.copy() for piece in source.logits(ids)]
    assert [len(piece) for piece in pieces] == [64, 16]
    assert source.answered == 50


def test_the_command_sweeps_over_settings(
    by_layer: Bundle, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["eval", str(by_layer.root), "--text", str(text), "--window", "40", "--tokens", "80"]
    assert main([*common, "--skip", "unified", "--sweep", "0,0.34", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [each["skip"] for each in result["policies"]] == ["unified:0", "unified:0.34"]
    assert [each["layers_run"] for each in result["policies"]] == [6, 4]
    assert result["given"] == 20 and result["policies"][1]["perplexity"] != result["policies"][0]["perplexity"]
    assert main([*common, "--skip", "unified:0.2"]) == 0
    shown = capsys.readouterr().out
    assert "unified:0.2" in shown and "off" in shown


def test_a_sweep_can_be_drawn(by_layer: Bundle, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "unified.svg"
    command = ["eval", str(by_layer.root), "--text", str(text), "--window", "40", "--tokens", "40"]
    assert main([*command, "--skip", "unified", "--sweep", "0.17,0.34", "--plot", str(plot)]) == 0
    drawn = plot.read_text(encoding="utf-8")
    # matplotlib draws letters as paths and leaves each text behind in a comment.
    assert all(f"<!-- {shown} -->" in drawn for shown in ("unified", "0.17", "0.34", "more perplexity, %"))


def test_a_plot_that_cannot_be_drawn_is_said_before_anything_is_measured(
    by_layer: Bundle, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*args: object, **options: object) -> None:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr("edge.cli.eval_skip.measure", measured)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["eval", str(by_layer.root), "--text", str(text), "--skip", "unified:0.2", "--plot", "x.svg"]) == 2
    assert f"A plot needs matplotlib; install it with: {install('eval')}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sweep", "1"], "--sweep is about skipped layers"),
        (["--given", "5"], "--given is about skipped layers"),
        (["--skip", "off"], "off is what policies are measured beside"),
        (["--skip", "unified:0.1", "--prefill-graph"], "without --torch, --agree and --prefill-graph"),
        (["--skip", "unified:0.1", "--sweep", "0.1"], "has one already"),
        (["--skip", "unified", "--sweep", "0.1,,"], "empty setting"),
        (["--skip", "unified:0.1", "--given", "511"], "leaves nothing of windows"),
        (["--skip", "unified:0.1", "--plot", "x.txt"], "no plot that can be drawn"),
        (["--skip", "first"], "has no routers"),
    ],
)
def test_what_cannot_be_measured_gets_a_sentence(
    by_layer: Bundle, text: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["eval", str(by_layer.root), "--text", str(text), *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error


def test_a_window_without_an_answer_is_refused(by_layer: Bundle) -> None:
    with pytest.raises(InputError, match="leaves nothing of windows of 30"):
        measure(by_layer, ["unified:0.2"], [np.arange(20, 45)], window=30, given=28)
