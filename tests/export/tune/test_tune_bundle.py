"""One command from a checkpoint to a tuned bundle and its figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import edge
from edge.bundle import open_bundle
from edge.cli.main import main
from edge.export.checkpoint import open_checkpoint
from edge.export.tune import ANSWERS, split
from edge.export.tune.data import Example
from edge.export.tune.settings import Settings
from edge.export.tune.trainer import Trainer
from edge.runtime.model import Model

RECIPE = """\
model = "{model}"
policy = "first"
ratio = 0.34
candidates = 3
prompts = "prompts.jsonl"
answer = 64
steps = 4
batch = 2
length = 64
rank = 4
precision = "fp32"
weights = "int8"
"""


@pytest.fixture
def recipe(six_layers: Path, tmp_path: Path) -> Path:
    prompts = [{"text": f"The moon {i}"} for i in range(6)] + [{"prompt": f"A train {i}"} for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(model=six_layers))
    return path


def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[list[Example]]:
    """The sequences of each training from now on."""
    seen: list[list[Example]] = []
    made = Trainer.__init__

    def noted(self: Trainer, network: Any, policy: Any, examples: Sequence[Example], *others: Any) -> None:
        seen.append(list(examples))
        made(self, network, policy, examples, *others)

    monkeypatch.setattr(Trainer, "__init__", noted)
    return seen


def test_one_command_answers_tunes_exports_and_measures(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = trained_on(monkeypatch)
    out = tmp_path / "tiny-first.edge"
    assert main(["tune", "--recipe", str(recipe), "-o", str(out)]) == 0
    said = capfd.readouterr().out
    for name in ("untuned, off", "off", "first:skip=1", "first:skip=2", "first:skip=3"):
        assert f" {name} " in said, name
    manifest = open_bundle(out).manifest
    assert manifest.name == "tiny-first" and manifest.routers is not None and manifest.weights == "int8"
    figures = json.loads((tmp_path / "tiny-first" / "figures.json").read_text())
    assert [each["skip"] for each in figures["policies"]] == ["first", *(f"first:skip={n}" for n in (1, 2, 3))]
    assert [each["layers_run"] for each in figures["policies"][1:]] == [5, 4, 3]
    assert figures["untuned"] > 1 and figures["tuned"] != figures["untuned"]
    assert figures["policies"][0]["perplexity_unskipped"] == figures["tuned"]
    (examples,) = seen
    kept = Settings("first", ratio=0.34, length=64)
    checkpoint = open_checkpoint(str(tmp_path / "tiny-first"))
    _, every = split(checkpoint, [tmp_path / "tiny-first" / ANSWERS], kept)
    assert len(examples) == len(every) - len(every) // 4  # what was held back
    assert not (tmp_path / "tiny-first.edge.tuning").exists()
    model = edge.load(out, skip="first:skip=2")
    assert isinstance(model, Model) and model.generate("A train").text


def test_what_was_stopped_behind_the_training_goes_on_without_it(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import edge.export.tune.bundle as module

    seen, out = trained_on(monkeypatch), tmp_path / "tiny-first.edge"
    command = ["tune", "--recipe", str(recipe), "-o", str(out)]

    def stopped(*args: object) -> None:
        for again in ([], ["--restart"]):  # nobody else takes part meanwhile
            assert main([*command, *again]) == 2
            assert "Another run is at work in" in capfd.readouterr().err.replace("\n", " ")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_measured", stopped)
        assert main(command) == 130
    assert not out.exists() and not (tmp_path / "tiny-first").exists() and len(seen) == 1
    assert main([*command, "--rate", "0.01"]) == 2
    assert "tuned with other settings (rate)" in capfd.readouterr().err
    assert main(command) == 0
    assert out.exists() and len(seen) == 1
    assert main(command) == 2
    assert "exists; choose another name" in capfd.readouterr().err


def test_a_text_and_own_answers_are_trained_on_together(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, text, out = trained_on(monkeypatch), tmp_path / "text.txt", tmp_path / "tuned"
    text.write_text("The moon changes its shape because we see its lit half. " * 20)
    command = ["tune", "--recipe", str(recipe), "--prompts", str(tmp_path / "prompts.jsonl"), "--data", str(text)]
    assert main([*command, "-o", str(out)]) == 0
    kept, checkpoint = Settings("first", ratio=0.34, length=64), open_checkpoint(str(out))
    (examples,) = seen
    parts = [split(checkpoint, [source], kept)[1] for source in (text, out / ANSWERS)]
    assert len(examples) == len(parts[0]) + len(parts[1]) and all(parts)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-o", "{folder}/tuned", "--weights", "int8"], "--weights is about a bundle"),
        (["-o", "{folder}/tuned.edge", "--weights", "int5"], "no kind of weights 'int5'"),
        (["-o", "{folder}/tuned.edge", "--data", "{folder}/few.txt"], "none can be held back"),
    ],
)
def test_what_cannot_become_a_bundle_gets_a_sentence(
    recipe: Path, tmp_path: Path, options: list[str], sentence: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "few.txt").write_text("The moon changes its shape because we see its lit half. " * 2)
    monkeypatch.setattr(Trainer, "run", lambda self, *args: pytest.fail("said after the training"))
    given = [each.format(folder=tmp_path) for each in options]
    assert main(["tune", "--recipe", str(recipe), *given]) == 2
    assert sentence in capfd.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "tuned").exists() and not (tmp_path / "tuned.edge").exists()


def test_feed_forward_blocks_get_a_bundle_of_half_layers(recipe: Path, tmp_path: Path) -> None:
    content = recipe.read_text().replace('"first"', '"ffn"').replace("candidates = 3\n", "")
    recipe.write_text(content)
    out = tmp_path / "tiny-ffn.edge"
    assert main(["tune", "--recipe", str(recipe), "-o", str(out)]) == 0
    assert {segment.part for segment in open_bundle(out).manifest.segments} >= {"attention", "feed_forward"}
    figures = json.loads((tmp_path / "tiny-ffn" / "figures.json").read_text())
    assert [each["skip"] for each in figures["policies"]] == ["ffn:0.34"]
    assert figures["policies"][0]["layers_run"] == 5
