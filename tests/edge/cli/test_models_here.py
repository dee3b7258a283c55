"""`edge list`, `edge pull`, `edge show`, `edge rm` and `edge.load`, by the names that `edge run` takes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import tiny_model, write_gguf
from web_servers import Hub

import edge
from edge import catalog
from edge.bundle import Bundle
from edge.catalog import Entry, UrlSource
from edge.cli.main import main
from edge.cli.run import made, recorded
from edge.cli.run.recorded import Record
from edge.errors import BundleError, InputError

ASKED = ["the moon", "--raw", "--max-tokens", "2", "--context", "64"]


@pytest.fixture
def gguf_hub(hub: Hub) -> Hub:
    hub.files.clear()
    hub.files.update({"m-Q4_K_M.gguf": b"GGUF of 4 bits", "m-Q8_0.gguf": b"GGUF of 8 bits"})
    return hub


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A model of the catalog that was fetched."""
    content = b"GGUF of the catalog"
    import hashlib

    sha256 = hashlib.sha256(content).hexdigest()
    source = UrlSource("toy.gguf", sha256, "http://127.0.0.1:9/", len(content))
    entry = Entry("toy", "Toy", "llama", 1, "MIT", [source], measured=False)
    monkeypatch.setattr(catalog, "_read_all", lambda: {"toy": entry})
    entry.folder.mkdir(parents=True)
    (entry.folder / "toy.gguf").write_bytes(content)
    return entry


Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """What a command that goes well prints."""

    def shown(*args: str) -> str:
        capsys.readouterr()
        assert main(list(args)) == 0, capsys.readouterr().err
        while made._USED:  # as when a command's process ends
            os.close(made._USED.popitem()[1])
        return capsys.readouterr().out

    return shown


def listed(shown: Shown) -> set[tuple[str, str]]:
    return {(each["name"], each["kind"]) for each in json.loads(shown("list", "--json"))}


def test_a_model_on_the_hub_is_run_by_its_name_and_no_network_is_asked_again(
    gguf_hub: Hub, exports: list[Path], shown: Shown
) -> None:
    first = shown("run", "hf.co/org/toy:Q4_K_M", *ASKED)
    assert len(exports) == 1
    gguf_hub.asked.clear()
    assert shown("run", "org/toy:Q4_K_M", *ASKED) == first and gguf_hub.asked == []
    assert len(exports) == 1
    shown("run", "org/toy:Q8_0", *ASKED)
    assert len(set(exports)) == 2, "another file is another model"
    assert listed(shown) == {(f"org/toy:{tag}", kind) for tag in ("Q4_K_M", "Q8_0") for kind in ("bundle", "model")}


def test_a_name_of_the_catalog_and_its_file_have_one_bundle(toy: Entry, exports: list[Path], shown: Shown) -> None:
    shown("run", "toy", *ASKED)
    shown("run", str(toy.folder / "toy.gguf"), *ASKED)
    shown("run", "TOY", *ASKED)
    assert len(exports) == 1
    moved = toy.folder.parent / "moved.gguf"
    shutil.copy(toy.folder / "toy.gguf", moved)
    shown("run", str(moved), *ASKED)
    assert len(exports) == 1


def test_a_bundle_is_used_though_its_model_was_removed(toy: Entry, exports: list[Path], shown: Shown) -> None:
    first = shown("run", "toy", *ASKED)
    shutil.rmtree(toy.folder)
    assert shown("run", "toy", *ASKED) == first and len(exports) == 1


def test_what_is_here_is_listed_shown_and_removed_by_the_same_name(
    toy: Entry, exports: list[Path], shown: Shown, own_cache: Path
) -> None:
    assert listed(shown) == {("toy", "model")}
    assert "edge pull toy" not in shown("show", "toy") and "Toy" in shown("show", "toy")
    shown("run", "toy", *ASKED)
    assert listed(shown) == {("toy", "model"), ("toy", "bundle")}
    table = shown("list")
    assert "toy" in table and "bundle" in table and f"{own_cache} has " in table
    assert json.loads(shown("show", "toy", "--json")) == json.loads(shown("inspect", str(exports[0]), "--json"))
    assert shown("rm", "toy").startswith("toy: ")
    assert listed(shown) == set() and not exports[0].exists() and not toy.folder.exists()
    assert main(["rm", "toy"]) == 2


def test_a_bundle_of_a_file_is_listed_run_and_removed_by_its_models_name(
    tmp_path: Path, exports: list[Path], shown: Shown, pristine_tiny_bundle: Bundle
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
    first = shown("run", str(path), *ASKED)
    name = pristine_tiny_bundle.manifest.name
    assert listed(shown) == {(name, "bundle")}
    assert shown("run", name, *ASKED) == first == shown("run", exports[0].stem, *ASKED)
    shown("rm", str(path))
    assert listed(shown) == set() and path.exists(), "the file is the user's"


def test_two_names_of_one_bundle_are_removed_together_and_a_path_is_shown(
    tmp_path: Path, exports: list[Path], shown: Shown, pristine_tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    path, name = write_gguf(tmp_path / "m.gguf", tiny_model("llama")), pristine_tiny_bundle.manifest.name
    assert main(["show", str(path)]) == 2
    assert f"There is no bundle of {path} yet" in capsys.readouterr().err
    shown("run", str(path), *ASKED)
    assert json.loads(shown("show", str(path), "--json")) == json.loads(shown("inspect", str(exports[0]), "--json"))
    assert shown("rm", str(path), name).startswith(f"{path}: ")
    assert listed(shown) == set()


def test_a_path_that_is_there_means_no_model_elsewhere_of_that_name(
    tmp_path: Path, exports: list[Path], shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown("run", str(write_gguf(tmp_path / "m.gguf", tiny_model("llama"))), *ASKED)
    recorded.remember(Record("org/toy", str(tmp_path / "m.gguf"), exports[0].name))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/toy").mkdir(parents=True)
    (tmp_path / "org/toy/config.json").write_text("{}")
    assert main(["rm", "org/toy"]) == 2
    assert exports[0].exists() and recorded.recorded("org/toy") is not None


def test_two_bundles_of_a_name_are_told_apart(
    tmp_path: Path, exports: list[Path], shown: Shown, capsys: pytest.CaptureFixture[str], pristine_tiny_bundle: Bundle
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").write_bytes(f"GGUF {name}".encode())
        shown("run", str(tmp_path / f"{name}.gguf"), *ASKED)
    name = pristine_tiny_bundle.manifest.name
    for args in (["rm", name], ["run", name, "hi"]):
        assert main(args) == 2
        err = capsys.readouterr().err
        assert f"2 bundles are called {name}; name one of " in err and all(path.stem in err for path in exports)
    shown("rm", exports[0].stem)
    assert len(listed(shown)) == 1


@pytest.mark.parametrize("name", ["nothing", "x.edge", "org/nothing", "https://example.org/m.gguf"])
def test_nothing_is_removed_of_a_name_that_has_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.edge").mkdir()
    assert main(["rm", name]) == 2
    assert "The cache has nothing of the name" in capsys.readouterr().err
    assert (tmp_path / "x.edge").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows removes nothing that is open")
def test_a_bundle_that_is_in_use_stays(
    toy: Entry, exports: list[Path], shown: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown("run", "toy", *ASKED)
    monkeypatch.setattr(made, "remove", lambda bundle: False)
    assert main(["rm", "toy"]) == 2
    assert "toy is in use by another process" in capsys.readouterr().err and exports[0].exists()


def test_pull_prints_where_a_model_lies_and_run_takes_it(gguf_hub: Hub, exports: list[Path], shown: Shown) -> None:
    path = Path(shown("pull", "org/toy:Q8_0").strip())
    assert path.read_bytes() == b"GGUF of 8 bits"
    assert listed(shown) == {("org/toy:Q8_0", "model")}
    shown("run", "org/toy:Q8_0", *ASKED)
    (record,) = recorded.records()
    assert record == Record("org/toy:Q8_0", str(path), exports[0].name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x", '{"name": "x", "path": "p", "bundle": "../../etc.edge"}'),
        ("x", '{"name": "y", "path": "p"}'),
        ("x", '{"name": "x", "path": 3}'),
        ("x", "[]"),
        ("x", "no json"),
    ],
)
def test_a_damaged_record_is_none(name: str, content: str) -> None:
    recorded.remember(Record(name, "p"))
    Record(name, "p").file.write_text(content)
    assert recorded.recorded(name) is None


@pytest.mark.parametrize("name", ["x" * 5000, "ü/" * 100, "a\nb", "..", "https://e.org/" + "%2e" * 300 + ".gguf"])
def test_every_name_has_a_record_of_its_own(name: str, own_cache: Path) -> None:
    recorded.remember(Record(name, "p"))
    assert recorded.recorded(name) == Record(name, "p") and recorded.recorded(name + "x") is None
    assert Record(name, "p").file.parent == own_cache / "names"


def test_python_loads_what_the_command_runs(
    toy: Entry, exports: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with edge.load("toy", context=64, kind=edge.Model) as model:
        assert model.generate("the moon", raw=True, max_tokens=2).generated_tokens == 2
    err = capsys.readouterr().err
    assert "Making a bundle of toy" in err and str(exports[0]) in err
    with edge.load(toy.folder / "toy.gguf", context=64) as model:
        assert model.bundle.root == exports[0]
    assert len(exports) == 1


@pytest.mark.parametrize("name", ["tyo", "none.edge", "a/b/c", "a\0b", ""])
def test_python_says_of_a_name_that_means_nothing_what_the_command_says(name: str, toy: Entry) -> None:
    with pytest.raises(edge.EdgeError):
        edge.load(name)
    if name == "tyo":
        with pytest.raises(BundleError, match="no model of that name in the catalog; did you mean toy"):
            edge.load(name)


@pytest.mark.parametrize("odd", [3, None, b"toy", ["toy"]])
def test_python_loads_nothing_by_what_is_no_name(odd: object) -> None:
    with pytest.raises(InputError, match="A bundle is loaded by"):
        edge.load(odd)  # type: ignore[call-overload]
