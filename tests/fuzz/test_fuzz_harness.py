"""The harness of `fuzz` finds every way to fail, goes on after it, and makes the same case from the same seed."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

if not Path("/proc/self/status").exists():
    pytest.skip("limits a process's memory as Linux does", allow_module_level=True)

import planted_faults
from planted_faults import WAYS

from edge.registry import Entry
from fuzz import run as harness
from fuzz.__main__ import main
from fuzz.damage import damaged_bytes, damaged_json
from fuzz.inputs import variables
from fuzz.kinds import KINDS
from fuzz.oracle import Fault, Refused, command, fault_of
from fuzz.run import Order, Tally, again, run
from fuzz.worker import ACCEPTED, FAULT, REFUSED, generator, make

PLANTED = Entry("planted", "tests.fixtures.planted_faults", planted_faults.HELP, planted_faults.TRAITS)
FAULTS = {
    "value": "ValueError: nobody foresaw this",
    "lines": "several lines",
    "long": "5,000 characters",
    "memory": "MemoryError",
    "resident": "MiB of memory",
    "crash": "ended with SIGSEGV",
    "exit": "ended with status 0",
    "sleep": "Timeout",
    "child": "became another",
}


def order(folder: Path, **about: int) -> Order:
    return Order(PLANTED, 7, folder, folder / "kept", **about)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tally, Path]:
    """What became of a case of every way, one after the other."""
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "RESIDENT", 100 << 20)
        return run(order(folder, count=len(WAYS))), folder


def test_every_case_is_tried_and_counted(found: tuple[Tally, Path]) -> None:
    assert found[0].ends == {ACCEPTED: 1, REFUSED: 2, FAULT: len(FAULTS)}
    assert set(WAYS) == {"accepted", "refused", "command", *FAULTS}


@pytest.mark.parametrize("way", FAULTS)
def test_a_planted_fault_is_found_and_its_input_kept(way: str, found: tuple[Tally, Path]) -> None:
    tally, folder = found
    case = WAYS.index(way)
    (told,) = (fault for fault in tally.faults if f"--kind planted --seed 7 --case {case}\n" in fault)
    assert FAULTS[way] in told
    assert (folder / "kept" / f"planted-7-{case}" / "way").read_text() == way


def test_a_kept_input_is_tried_again(found: tuple[Tally, Path]) -> None:
    _, folder = found
    for way in ("value", "crash"):
        tally = again(PLANTED, folder / "kept" / f"planted-7-{WAYS.index(way)}", folder)
        assert tally.ends[FAULT] == 1 and FAULTS[way] in tally.faults[0]


def test_a_case_is_the_same_whatever_was_tried_before_it(found: tuple[Tally, Path], tmp_path: Path) -> None:
    _, folder = found
    case = WAYS.index("value")
    alone = run(Order(PLANTED, 7, tmp_path, tmp_path / "kept", first=case, count=1))
    assert alone.ends[FAULT] == 1
    name = Path(f"kept/planted-7-{case}/drawn")
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("kind", ["templates", "prompts", "options"])
def test_cases_follow_from_seed_and_number_alone(kind: str, tmp_path: Path) -> None:
    def case(seed: int, number: int) -> bytes:
        make(KINDS.find(kind).load(), seed, number, tmp_path, tmp_path / "case")
        (file,) = (tmp_path / "case").iterdir()
        return file.read_bytes()

    first = [case(1, number) for number in range(30)]
    assert [case(1, number) for number in reversed(range(30))] == first[::-1]
    assert len(set(first)) > 15 and [case(2, number) for number in range(30)] != first


def test_damage_follows_from_its_generator_and_changes_most_inputs() -> None:
    whole = json.dumps({"a": [1, 2.5, "text", {"b": None}], "c": "x"})
    for damaged in (lambda choose: damaged_json(whole, choose), lambda choose: damaged_bytes(whole.encode(), choose)):
        made = [damaged(generator(0, "k", n)) for n in range(200)]
        assert made == [damaged(generator(0, "k", n)) for n in range(200)]
        assert sum(each != whole.encode() for each in made) > 180


@pytest.mark.parametrize(
    "message", ["", " ", "two\nlines", "a\rb", "x" * 1001, "std::bad_alloc", "failed to allocate 9"]
)
def test_what_is_no_sentence_is_a_fault(message: str) -> None:
    assert fault_of(message) is not None


def test_a_sentence_is_none() -> None:
    assert fault_of("There is no bundle at x.edge; edge export makes one.") is None


def test_a_command_that_did_not_foresee_its_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="There is no command"):
        command(["no-such-command"])
    monkeypatch.setattr("edge.cli.main._dispatch", lambda arguments: 1 // 0)
    with pytest.raises(Fault, match="status 1.*did not foresee"):
        command(["inspect"])


def test_every_kind_says_what_it_is_and_what_it_begins_with() -> None:
    from fuzz.inputs import MAKERS

    for entry in KINDS.values():
        assert entry.help and set(entry.traits["inputs"]) <= set(MAKERS)
    assert {"manifests", "graphs", "packed", "gguf", "safetensors", "ctranslate2", "tokenizers", "audio", "prompts",
            "options", "kernels"} <= set(KINDS)  # fmt: skip


def test_a_worker_ends_with_whoever_watches_it(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading, time; from pathlib import Path; from fuzz.run import Order, run\n"
        "from edge.registry import Entry\n"
        f"entry = Entry('planted', {PLANTED.module!r}, '', {{'inputs': (), 'seconds': 60}})\n"
        "place = Path(sys.argv[1])\n"
        f"order = Order(entry, 7, place, place / 'kept', first={WAYS.index('sleep')}, count=1)\n"
        "threading.Thread(target=run, args=(order,), daemon=True).start()\n"
        "while not list(place.glob('try-*/case-*/way')): time.sleep(0.05)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], env=variables(), check=True, timeout=60)
    until = time.monotonic() + 60
    while alive(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(str(tmp_path))


def alive(argument: str) -> list[str]:
    """The processes that were given a folder below `argument`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            found += [file.parent.name for word in words if word.startswith(f"{argument}/try-".encode())]
    return found


def test_a_run_prints_its_seed_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "templates", "--seed", "5", "--cases", "3"]) in (0, 1)
    said = capsys.readouterr().out
    assert "Seed 5;" in said
    assert re.search(r"^templates +3 ", said, re.MULTILINE)


def test_a_kind_that_is_not_there_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "no-such-kind"]) == 2
    assert "There is no kind of input 'no-such-kind'" in capsys.readouterr().err
