"""What an export may be asked for is said in one place."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest

import edge
from edge.cli.export import OPTIONS
from edge.export.request.export_request import ExportRequest


def test_the_command_asks_for_all_that_a_request_has_but_what_effort_decides() -> None:
    spelled_otherwise = {"source", "out", "size", "calibration", "segments", "soc", "check"}
    assert {field.name for field in fields(ExportRequest)} == {*OPTIONS, *spelled_otherwise, "candidates"}


def test_a_request_goes_to_another_process_as_it_is() -> None:
    request = ExportRequest(
        Path("model"), effort="quick", memory="8GB", target="npu-qualcomm", target_context=[64, 128]
    )
    assert pickle.loads(pickle.dumps(request)) == request and request.limit == 8 * 10**9


@pytest.mark.parametrize(
    ("effort", "asked", "collected"),
    [
        ("normal", None, False),
        ("best", None, True),
        ("normal", True, True),
        ("best", False, False),
        ("quick", True, False),
    ],
)
def test_candidates_are_collected_with_the_effort_that_bears_it(
    effort: str, asked: bool | None, collected: bool
) -> None:
    assert ExportRequest("model", effort=effort, candidates=asked).collects_candidates is collected


def test_a_request_cannot_become_a_wrong_one() -> None:
    with pytest.raises(edge.InputError, match="choose one of them"):
        replace(ExportRequest("model", bits=5.0), perplexity=1.05)
    with pytest.raises(TypeError, match="wieghts"):
        edge.export("model", wieghts="int4")
