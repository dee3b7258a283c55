"""The cost curve: its straight lines, and device.json, which is used where it fits and else ignored with a word."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
from profile_example import CONTEXTS, SIZES, example_profile, int8_ms, step_ms

from edge.bundle import Bundle
from edge.manifest import INT8
from edge.runtime.costs import machine
from edge.runtime.costs.curve import CostCurve, load, path_for, store
from edge.runtime.costs.record import CurvePoint
from edge.runtime.load import open_engine
from edge.runtime.profile.profile import bundle_info


def point(size: int, context: int, ms: float) -> CurvePoint:
    return CurvePoint(size, context, ms, ms, ms, 1)


CURVE = CostCurve([point(1, 0, 1.0), point(4, 0, 4.0), point(1, 100, 2.0), point(4, 100, 8.0)])


@pytest.mark.parametrize(
    ("size", "context", "ms"),
    [
        (1, 0, 1.0),
        (4, 100, 8.0),
        (2, 0, 2.0),  # between sizes
        (1, 50, 1.5),  # between contexts
        (2, 50, 3.0),  # both
        (8, 0, 8.0),  # as steeply on
        (1, 200, 3.0),
        (8, 200, 24.0),
    ],
)
def test_points_are_joined_by_straight_lines(size: int, context: int, ms: float) -> None:
    assert CURVE.ms(size, context) == pytest.approx(ms)


def test_a_larger_step_never_becomes_cheaper_beyond_what_was_measured() -> None:
    noisy = CostCurve([point(1, 16, 2.0), point(32, 16, 10.0), point(64, 16, 9.0), point(1, 500, 1.9)])
    assert noisy.ms(1000, 16) == 9.0 and noisy.ms(1, 10_000) == 1.9
    assert noisy.ms(64, 500) == pytest.approx(1.9 * 64)  # nothing but one token was measured there


def test_below_the_first_context_the_first_one_holds() -> None:
    assert CostCurve([point(1, 16, 2.0), point(1, 32, 1.0)]).ms(1, 0) == 2.0


def test_the_example_device_is_predicted_between_its_points() -> None:
    curve = CostCurve(example_profile().curve)
    assert curve.contexts == list(CONTEXTS) and curve.sizes == list(SIZES)
    assert curve.ms(5, 300) == pytest.approx(step_ms(5, 300), rel=1e-6)
    assert curve.ms(48, 1000) == pytest.approx(step_ms(48, 1000), rel=1e-6)


@pytest.fixture
def kept(paper_bundle: Bundle) -> Path:
    """A device.json of the paper bundle on this machine with two threads."""
    example = example_profile()
    profile = dataclasses.replace(example, device=machine.describe("cpu", 2), bundle=bundle_info(paper_bundle))
    return store(profile)


def spoiled(path: Path, place: str, value: Any) -> None:
    """Change one field of the file."""
    raw = json.loads(path.read_text())
    *parents, last = place.split(".")
    target = raw
    for name in parents:
        target = target[int(name) if name.isdecimal() else name]
    target[last] = value
    path.write_text(json.dumps(raw))


def ask(bundle: Bundle, threads: int = 2) -> tuple[CostCurve | None, str]:
    said: list[str] = []
    return load(bundle, provider="cpu", threads=threads, say=said.append), " ".join(said)


def test_what_was_kept_is_loaded(kept: Path, paper_bundle: Bundle, own_cache: Path) -> None:
    curve, said = ask(paper_bundle)
    assert own_cache in kept.parents and kept.name == "device.json" and said == ""
    assert curve is not None and curve.ms(8, 512) == pytest.approx(step_ms(8, 512))


def test_the_curve_over_int8_is_kept_beside_it(kept: Path, paper_bundle: Bundle) -> None:
    curve = load(paper_bundle, provider="cpu", threads=2, kv=INT8)
    assert curve is not None and curve.ms(4, 512) == pytest.approx(int8_ms(4, 512))
    raw = json.loads(kept.read_text())
    raw["curve_int8"] = [point for point in raw["curve_int8"] if point["size"] > 1]
    kept.write_text(json.dumps(raw))
    assert ask(paper_bundle)[0] is None  # as where the other lacks them
    del raw["curve_int8"]  # an older version's
    kept.write_text(json.dumps(raw))
    assert load(paper_bundle, provider="cpu", threads=2, kv=INT8) is None and ask(paper_bundle)[0] is not None


def test_other_threads_and_other_bundles_have_files_of_their_own(kept: Path, paper_bundle: Bundle) -> None:
    assert ask(paper_bundle, threads=1) == (None, "")
    (paper_bundle.root / "edge.json").write_text(paper_bundle.manifest.to_json() + " ")
    assert ask(paper_bundle) == (None, "")


NO_SINGLE = {"size": 2, "context": 8, "ms": 1.0, "low_ms": 0.9, "high_ms": 1.1, "count": 3}


@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        ("device.cpu", "Abacus", "is of processor Abacus, not "),
        ("device.threads", 7, "is of threads 7, not 2, and is ignored; edge profile measures it again."),
        ("device.runtime", "onnxruntime 0.1", "is of runtime onnxruntime 0.1, not onnxruntime "),
        ("bundle.sha256", "00", "is of bundle 00, not "),
        ("format_version", 2, "is ignored (device.json has format version 2, and this edge reads 1"),
        ("curve", [NO_SINGLE], "ignored (device.json has no step of one token; edge profile measures it again)."),
        ("curve.3.ms", "slow", "ignored (device.json: the field 'curve[3].ms' must be a number, not 'slow'; edge"),
        ("curve.3.ms", -1.0, "ignored (device.json cannot be used: curve[3].ms is -1.0, and must be above 0"),
    ],
)
def test_stale_and_foreign_files_are_ignored_with_a_word(
    kept: Path, paper_bundle: Bundle, place: str, value: Any, word: str
) -> None:
    spoiled(kept, place, value)
    curve, said = ask(paper_bundle)
    assert curve is None and said.startswith(f"The cost curve {kept} ") and word in said


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"{", "is not valid JSON"), (b"\xff\xff", "utf-8"), (b"[]", "must hold a JSON object"), (None, "Is a directory")],
)
def test_a_file_that_cannot_be_read_is_ignored_with_a_word(
    kept: Path, paper_bundle: Bundle, content: bytes | None, word: str
) -> None:
    if content is None:
        kept.unlink()
        kept.mkdir()
    else:
        kept.write_bytes(content)
    curve, said = ask(paper_bundle)
    assert curve is None and re.fullmatch(r"The cost curve \S+ cannot be used and is ignored \(.*\)\.", said)
    assert word in said


def test_an_engine_knows_what_was_measured_for_its_threads(
    tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_engine(tiny_bundle)
    assert engine.costs is None and not caplog.records

    device = machine.describe("cpu", engine.threads)
    kept = store(dataclasses.replace(example_profile(), device=device, bundle=bundle_info(tiny_bundle)))
    measured = open_engine(tiny_bundle).costs
    assert measured is not None and measured.ms(8, 512) == pytest.approx(step_ms(8, 512))

    spoiled(kept, "device.cpu", "Abacus")
    assert open_engine(tiny_bundle).costs is None
    assert "is of processor Abacus, not " in caplog.text


def test_nothing_half_written_is_left(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(part: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    profile = example_profile()
    target = path_for(profile.device, profile.bundle.sha256)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError):
        store(profile)
    assert list(target.parent.iterdir()) == []
