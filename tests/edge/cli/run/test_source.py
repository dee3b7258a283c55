"""`edge run` of a model: the bundle is made once, kept, and used from then on."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

import edge.export
from edge.bundle import open_bundle
from edge.cli.main import main
from edge.cli.run import source
from edge.errors import ExportError
from edge.lock import locked


@pytest.fixture
def model(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "home/bundles").glob("*.edge"))


def run(model: Path) -> int:
    return main(["run", str(model), "the moon", "--raw", "--max-tokens", "2", "--context", "64"])


def test_a_models_bundle_is_made_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model) == 0
    first = capsys.readouterr()
    assert f"Making a bundle of {model}, once; edge export makes a smaller" in first.err
    (made,) = kept(tmp_path)
    assert open_bundle(made).manifest.weights == "int8" and str(made) in first.err
    monkeypatch.setattr(source, "_make", lambda *_: pytest.fail("it was made again"))
    assert run(model) == 0
    second = capsys.readouterr()
    assert second.out == first.out and "Making" not in second.err


def test_a_changed_model_is_another_one(model: Path) -> None:
    before = source._name(model)
    weights = next(model.glob("*.safetensors"))
    os.utime(weights, ns=(1, 1))
    assert source._name(model) != before


def test_a_bundle_of_another_version_is_made_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model) == 0
    monkeypatch.setattr(source, "__version__", "99")
    monkeypatch.setattr("edge.export.written.__version__", "99")
    capsys.readouterr()
    assert run(model) == 0
    assert "once, because another version of edge made the one that is there;" in capsys.readouterr().err
    (made,) = kept(tmp_path)
    assert open_bundle(made).manifest.producer == "edge 99"


def test_an_export_that_fails_leaves_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(model.glob("*.safetensors")).write_bytes(b"no weights")
    assert run(model) == 2
    assert "Traceback" not in capsys.readouterr().err and kept(tmp_path) == []


def test_what_is_neither_is_refused_as_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("none.edge", "nothing", "a/b/c"):
        assert main(["run", str(tmp_path / name), "hello"]) == 2
        assert "Making" not in capsys.readouterr().err


def test_two_runs_at_a_time_make_one(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Path]()
    whole, waits = edge.export.export, threading.Event()

    def export(given: str, target: Path, **options: object) -> object:
        waits.wait(30)  # until the other run stands before the lock
        made.append(target)
        return whole(given, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(edge.export, "export", export)
    monkeypatch.setattr(source, "_say", lambda sentence: waits.set() if "waiting" in sentence else None)
    runs = [threading.Thread(target=source.open_source, args=(model,)) for _ in range(2)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert len(made) == 1 == len(kept(tmp_path))


def test_a_lock_is_given_back_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ExportError), locked(tmp_path / "a.lock", lambda: pytest.fail("nobody holds it")):
        raise ExportError("broken")
    with locked(tmp_path / "a.lock", lambda: pytest.fail("it was not given back")):
        pass
