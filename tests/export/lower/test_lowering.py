"""The mathematics of models and a target's operators stand apart."""

from __future__ import annotations

import pytest
from places import ROOT

from edge.export.targets import KINDS
from edge.targets import TARGETS

FUSED = ("MatMulNBits", "GroupQueryAttention", "SkipSimplified", "MatMulIntegerToFloat", "FusedMatMul", "com.microsoft")


@pytest.mark.parametrize("word", FUSED)
def test_only_a_lowering_names_fused_operators_and_quantized_products(word: str) -> None:
    export = ROOT / "export"
    said = {file.relative_to(export) for file in export.rglob("*.py") if word in file.read_text("utf-8")}
    assert said
    # Of other programs' graphs these are read.
    folders = ("targets/cpu", "graph/imported")
    assert all(any(map(file.is_relative_to, folders)) or file.match("targets/*/lowering.py") for file in said)


def test_every_target_that_a_bundle_may_have_is_a_folder_that_is_found_by_its_name() -> None:
    assert set(KINDS) == set(TARGETS)
