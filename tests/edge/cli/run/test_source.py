"""`edge run` of a model: the bundle is made once, kept, and used from then on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edge import fetch
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.cli.run import source
from edge.errors import ExportError
from edge.lock import locked

ASKED = ["the moon", "--raw", "--max-tokens", "2", "--context", "64"]


@pytest.fixture
def model(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))


@pytest.fixture
def exports(pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Exports give a bundle that is there already; their targets."""
    made = list[Path]()

    def export(given: Path, target: Path) -> None:
        made.append(target)
        shutil.copytree(pristine_tiny_bundle.root, target, dirs_exist_ok=True)

    monkeypatch.setattr(source, "_export_apart", export)
    return made


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "home/bundles").glob("*.edge"))


def test_a_models_bundle_is_made_once_and_not_in_the_runs_memory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a limit that PyTorch alone would break."""
    script = "import sys; from edge.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "run", str(model), *ASKED, "--memory", "150MB"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert f"Making a bundle of {model}, once; edge export makes a smaller" in first.stderr
    (made,) = kept(tmp_path)
    assert open_bundle(made).manifest.weights == "int8" and str(made) in first.stderr
    monkeypatch.setattr(source, "_make", lambda *_: pytest.fail("it was made again"))
    assert main(["run", str(model), *ASKED]) == 0
    again = capsys.readouterr()
    assert again.out == first.stdout and "Making" not in again.err


def test_a_changed_model_is_another_one(model: Path) -> None:
    before = source._name(model)
    weights = next(model.glob("*.safetensors"))
    os.utime(weights, ns=(1, 1))
    assert source._name(model) != before


def test_a_bundle_of_another_version_is_made_again(
    model: Path, exports: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source.open_source(model)
    source.open_source(model)
    assert len(exports) == 1
    monkeypatch.setattr(source, "__version__", "99")
    capsys.readouterr()
    source.open_source(model)
    assert "once, because the one that is there is another version's or damaged;" in capsys.readouterr().err
    assert exports == [exports[0]] * 2


def test_an_export_that_fails_leaves_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(model.glob("*.safetensors")).write_bytes(b"no weights")
    assert main(["run", str(model), *ASKED]) == 2
    assert "Traceback" not in capsys.readouterr().err and kept(tmp_path) == []


def test_what_is_neither_is_refused_as_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("none.edge", "nothing", "a/b/c"):
        assert main(["run", str(tmp_path / name), "hello"]) == 2
        assert "Making" not in capsys.readouterr().err


def test_two_runs_at_a_time_make_one(model: Path, exports: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    waits, make = threading.Event(), source._make

    def once_the_other_waits(given: Path, target: Path) -> Bundle:
        assert waits.wait(30)
        return make(given, target)

    monkeypatch.setattr(source, "_make", once_the_other_waits)
    monkeypatch.setattr(source, "_say", lambda sentence: waits.set() if "waiting" in sentence else None)
    found = list[Bundle]()
    runs = [threading.Thread(target=lambda: found.append(source.open_source(model))) for _ in range(2)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert len(exports) == 1 and [bundle.root for bundle in found] == exports * 2


def test_a_cache_that_cannot_be_written_is_said(
    model: Path, tmp_path: Path, exports: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").write_text("a file")
    assert main(["run", str(model), *ASKED]) == 2
    assert f"The folder {tmp_path / 'home/bundles'} cannot be written: " in capsys.readouterr().err
    assert exports == []


@pytest.mark.parametrize(
    ("text", "hub"),
    {"org/name": True, "org/n.5-a@v1.0": True, "org/m.gguf": False, "./a": False, "a/b/c": False, "~/a": False}.items(),
)
def test_what_has_the_form_of_a_hub_id(text: str, hub: bool) -> None:
    assert fetch.is_hub_id(text) is hub


def test_a_lock_is_given_back_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ExportError), locked(tmp_path / "a.lock", lambda: pytest.fail("nobody holds it")):
        raise ExportError("broken")
    with locked(tmp_path / "a.lock", lambda: pytest.fail("it was not given back")):
        pass
