"""What an export may be asked for is said in one place."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest

import edge
from edge.cli.arguments import Parser, taken
from edge.cli.export import add_arguments
from edge.export.request.export_request import ExportRequest
from edge.runtime.options import has_option, option_of


def test_the_command_asks_for_all_that_a_request_has_but_what_effort_and_edge_run_decide() -> None:
    named = {field.name for field in fields(ExportRequest) if not has_option(field) or option_of(field).flag}
    assert {field.name for field in fields(ExportRequest)} - named == {"candidates", "in_place"}


def test_what_the_command_is_given_becomes_a_request(tmp_path: Path) -> None:
    parser = Parser("edge export", "")
    add_arguments(parser)
    text = tmp_path / "text.txt"
    text.write_text("One.")
    command = "model --no-check --size 100MB --segments 2 --soc a,b --target npu-qualcomm --target-context 64,128"
    given = parser.parse_args([*command.split(), "--calibration", str(text), "--memory", "8GB"])
    asked = {"check": False, "size": 10**8, "segments": 2, "soc": ["a", "b"], "target_context": [64, 128]}
    asked |= {"target": "npu-qualcomm", "calibration": text, "memory": "8GB"}
    assert taken(given, ExportRequest) == asked
    assert ExportRequest("model", **taken(given, ExportRequest)).limit == 8 * 10**9


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
