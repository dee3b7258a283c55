"""A model of six layers in the weights of published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from texts import SENTENCES

import edge
from edge.bundle import Bundle


def export_only(source: Path, target: Path, **options: Any) -> Bundle:
    """An export without what takes time and is no part of the graphs, such as 12,000 tokens of calibration."""
    text = " ".join(SENTENCES)
    return edge.export(source, target, check=False, candidates=False, draft_text=0, calibration=text, **options)


@pytest.fixture(scope="package", params=["int8", "int4"])
def quantized(
    request: pytest.FixtureRequest, six_layers: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Bundle]:
    """The model's bundles in the weights of published figures: without units, in layers, in half-layers."""
    folder = tmp_path_factory.mktemp(request.param)
    made: list[tuple[str, int | str | None]] = [("whole", None), ("layers", 1), ("halves", "ffn")]
    return [export_only(six_layers, folder / f"{n}.edge", weights=request.param, segments=s) for n, s in made]
