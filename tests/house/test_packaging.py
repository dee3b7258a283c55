"""The distribution: what the wheel and the sdist hold, and that what they install works from every folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from places import DOCS, ROOT

import edge
from edge.bundle import Bundle

FOLDERS = {"edge": "edge", "edge/export": "export", "edge/models": "models", "edge/runtime": "runtime"}
IMPORTS = "import edge.runtime.engine.engine, edge.export, edge.models"


def run(*command: str | Path, cwd: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone to build in: setuptools leaves its work in the tree it builds, and takes up old work there."""
    tree = tmp_path_factory.mktemp("clone")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    for folder in (*FOLDERS.values(), "tests"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="module")
def built(tree: Path) -> Path:
    """The folder of what `python -m build` makes: an sdist, and a wheel from that sdist."""
    run(sys.executable, "-m", "build", "--no-isolation", cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def files(tree: Path) -> set[str]:
    """Every file of the packages: modules, types, texts, the catalog, recipes and the report's parts."""
    found = {
        f"{place}/{file.relative_to(tree / folder).as_posix()}"
        for place, folder in FOLDERS.items()
        for file in (tree / folder).rglob("*")
        if file.is_file()
    }
    assert {Path(name).suffix for name in found} >= {".py", ".typed", ".txt", ".toml", ".jsonl", ".css", ".html", ".js"}
    return found


def environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment, which sees the packages of ours but nothing that is editable."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join(ours) + "\n")  # files like this one in those folders are not read
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed."""
    python = environment(tmp_path_factory.mktemp("installed"))
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, wheel, cwd=built)
    return python


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path, files: set[str]) -> None:
    with zipfile.ZipFile(built / f"edge_lm-{edge.__version__}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        metadata = message_from_string(wheel.read(f"edge_lm-{edge.__version__}.dist-info/METADATA").decode())
    assert {name for name in names if ".dist-info/" not in name} == files
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (metadata["Name"], metadata["Version"]) == ("edge-lm", edge.__version__)


def test_the_sdist_holds_what_builds_the_wheel_and_nothing_else(built: Path, files: set[str]) -> None:
    with tarfile.open(built / f"edge_lm-{edge.__version__}.tar.gz") as sdist:
        assert all(member.isfile() or member.isdir() for member in sdist)  # no links
        names = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    ours = {"pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
    assert {name for name in names if ".egg-info/" not in name} == files | ours | {"PKG-INFO", "setup.cfg"}


def test_an_index_would_take_both(built: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)


def test_what_is_installed_works_from_every_folder(installed: Path, tmp_path: Path) -> None:
    for folder, home in ((tmp_path, installed.parent.parent), (ROOT, ROOT)):
        assert run(installed.with_name("edge"), "--version", cwd=folder) == f"edge {edge.__version__}\n"
        assert run(installed, "-m", "edge.cli.main", "--version", cwd=folder) == f"edge {edge.__version__}\n"
        found = run(installed, "-c", f"{IMPORTS}; print(edge.__file__, edge.runtime.__file__, sep='\\n')", cwd=folder)
        assert all(Path(file).is_relative_to(home) for file in found.splitlines()), found


def test_an_installed_edge_measures_loading_and_memory_in_the_clone_too(installed: Path, tiny_bundle: Bundle) -> None:
    said = run(installed.with_name("edge"), "profile", tiny_bundle.root, "--seconds", "1", "--json", cwd=ROOT)
    profile = json.loads(said)
    assert profile["load"] and profile["memory"]


def test_type_checkers_follow_an_editable_install(tree: Path, tmp_path: Path) -> None:
    run(sys.executable, "-c", f"import setuptools.build_meta as b; b.build_editable({str(tmp_path)!r})", cwd=tree)
    python = environment(tmp_path / "venv")
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert [file.read_text().strip() for file in site.glob("__editable__*")] == [str(tree)]  # what pyright reads too
    mypy = (sys.executable, "-m", "mypy", "--follow-imports=skip", "--cache-dir", tmp_path / "cache")
    run(*mypy, "--python-executable", python, "-c", IMPORTS, cwd=tmp_path)


def test_no_page_and_no_sentence_installs_another_project() -> None:
    pages = [ROOT / "README.md", *(DOCS).rglob("*.md")]
    modules = [file for folder in FOLDERS.values() for file in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 100
    for file in (*pages, *modules):
        found = re.search(r"\bedge\[|install ['\"]?edge\b(?!-lm)", file.read_text(encoding="utf-8"))
        assert found is None, f"{file}: {found}"


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and "version" in project["dynamic"]
