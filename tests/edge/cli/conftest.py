"""The fixture that tests of commands share which make a bundle of a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edge.bundle import Bundle
from edge.cli.run import source


@pytest.fixture
def exports(pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Exports give a bundle that is there already; their targets."""
    made = list[Path]()

    def export(given: object, contents: object, target: Path) -> None:
        made.append(target)
        shutil.copytree(pristine_tiny_bundle.root, target, dirs_exist_ok=True)

    monkeypatch.setattr(source, "_export_apart", export)
    return made
