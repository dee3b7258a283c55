"""The drafter and the family that CONTRIBUTING.md shows work as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_configs import BASE, VOCABULARY
from graph_harness import Graph, TinyCheckpoint, build, float_matrices, relative_error, tiny_model, torch_logits
from places import ROOT
from transformers import AutoConfig

import edge
from edge.bundle import Bundle
from edge.export.graph import families
from edge.registry import Registry
from edge.runtime import speculate
from edge.runtime.speculate.drafter import DRAFTERS

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE = re.findall(r"`(?:\w+/)+(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
(CASE,) = re.findall(r"```python\n(case\(.*\))\n```", PAGE)


def added(file: str, package: ModuleType, registry: Registry, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Give a registry the file of this name that the page shows, as if it stood in the package's folder."""
    (code,) = (code for name, code in CODE if name == file)
    (folder / file).write_text(code, encoding="utf-8")
    patch.setattr(package, "__path__", [*package.__path__, str(folder)])
    registry.__dict__.pop("_entries", None)


@pytest.fixture
def bigram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    added("bigram.py", speculate, DRAFTERS, tmp_path, monkeypatch)
    yield
    DRAFTERS.__dict__.pop("_entries", None)


@pytest.fixture
def seed_oss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    added("seed_oss.py", families, families.FAMILIES, tmp_path, monkeypatch)
    yield
    families.FAMILIES.__dict__.pop("_entries", None)


def test_the_page_shows_two_files_that_are_not_there_yet() -> None:
    assert [name for name, _ in CODE] == ["bigram.py", "seed_oss.py"]
    assert not {name.removesuffix(".py") for name, _ in CODE} & {*DRAFTERS, *families.FAMILIES}


@pytest.mark.usefixtures("bigram")
def test_the_drafter_drafts_and_changes_no_text(pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of processors on which a guess hardly pays.
    monkeypatch.setattr("edge.runtime.speculate.speculation.OWN_SLOPES", {})
    options = edge.GenerateOptions(max_tokens=100, circles="allow")  # a tiny model's answer soon goes round in one
    path, prompt = pristine_tiny_bundle.root, "la la la la"
    plain = edge.load(path, kind=edge.Model, speculate="off", exact=True).generate(prompt, options)
    drafted = edge.load(path, kind=edge.Model, speculate="bigram").generate(prompt, options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.speculation is not None and drafted.speculation["drafter"] == "bigram"
    assert drafted.speculation["accepted"] > 0
    assert "bigram" in DRAFTERS and DRAFTERS["bigram"].help == "what followed the last token before"


@pytest.mark.usefixtures("seed_oss")
@pytest.mark.parametrize("output", [False, True])
def test_the_family_computes_what_transformers_computes(output: bool, tmp_path: Path) -> None:
    config: dict[str, Any] = {}

    def case(name: str, model_type: str, **options: Any) -> None:
        config.update(BASE, model_type=model_type, **options)

    eval(CASE, {"case": case})
    config["attention_out_bias"] = output
    model = tiny_model(AutoConfig.for_model(**config))
    checkpoint = TinyCheckpoint(model, config)
    _, family = families.find_family("seed_oss")
    assert family.layers is not None and family.norms is not None
    shapes = family.layers(SimpleNamespace(**checkpoint.config)).shapes(
        SimpleNamespace(**checkpoint.config), family.norms
    )
    assert shapes == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert ("model.layers.0.self_attn.o_proj.bias" in shapes) == output
    built, root = build(tmp_path / "tiny.edge", checkpoint, float_matrices(checkpoint), 32)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    assert relative_error(Graph(root, built, capacity=14).logits(ids, [12]), torch_logits(model, ids)) <= 1e-4
