"""The house rules: who may import whom, and what the plain install brings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from imports_of import import_graph, imports
from places import ROOT

from edge.bundle import Bundle
from edge.extras import EXTRAS as BROUGHT

LIGHT = {"onnxruntime", "numpy", "tokenizers", "jinja2", "rich", "google", "psutil"}
# The extras that a file, or all files of a folder, may import from besides the plain install.
EXTRAS: dict[str, tuple[str, ...]] = {
    "edge": (),
    "edge/cli/eval.py": ("export",),
    "edge/cli/eval_skip.py": ("eval",),
    "edge/cli/run/on_cluster.py": ("cluster",),
    "edge/cli/scores.py": ("eval",),
    "edge/cli/serve.py": ("serve",),
    "edge/cli/tune.py": ("tune",),
    "edge/cluster": ("cluster",),
    "edge/fetch.py": ("gguf",),
    "edge/serve": ("serve",),
    "export": ("export",),
    "export/tune": ("tune",),
    "models": (),
    "runtime": (),
    "runtime/decode/grammar.py": ("grammar",),
    "runtime/speech/audio.py": ("audio",),
}
IMPORTED_AS = {"grpcio": "grpc", "protobuf": "google", "pyyaml": "yaml"}  # the others are as they are called
# Import names of the packages whose folders stand at the top of the repository.
FOLDERS = {"edge": "edge", "edge.export": "export", "edge.models": "models", "edge.runtime": "runtime"}


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# What the runtime must not import; `make lint` checks that, and who else may import whom.
OURS = {"edge.cli", "edge.profile", "edge.serve"}
HEAVY = set(pyproject()["tool"]["importlinter"]["contracts"][0]["forbidden_modules"]) - OURS  # type: ignore[index]


def test_edge_imports_what_export_needs_only_inside_functions() -> None:
    assert [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted((ROOT / "edge").rglob("*.py"))
        for name in imports(file, at_import_time=True)
        if any(name == module or name.startswith(f"{module}.") for module in HEAVY)
    ] == []


def test_who_may_import_whom_has_no_exceptions() -> None:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]  # type: ignore[index]
    assert [each["name"] for each in contracts if "ignore_imports" in each] == []
    layers = [each for each in contracts if each["type"] == "layers"]
    assert [each["containers"] for each in layers] == [["edge.runtime"], ["edge.export"]]
    assert all(each["exhaustive"] for each in layers)


def test_no_files_of_the_runtime_import_each_other_in_a_circle() -> None:
    """Inside functions neither."""
    graph = import_graph("edge.runtime", ROOT / "runtime")
    assert "edge.runtime.memory.macos" in graph["edge.runtime.memory.process"]  # which imports it inside a function
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The top-level names and edge's packages among the modules that a fresh interpreter holds after `code`."""
    script = f"import sys\n{code}\nprint('LOADED', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    names = set(result.stdout.rpartition("LOADED")[2].split())
    return {name.partition(".")[0] for name in names} | {name for name in names if name.startswith("edge.")}


def test_importing_edge_and_the_runtime_brings_nothing_heavy() -> None:
    loaded = loaded_by("import edge, edge.runtime, edge.runtime.engine.engine")
    assert not loaded & HEAVY
    assert "onnxruntime" in loaded


def test_running_a_bundle_brings_nothing_heavy(tiny_bundle: Bundle) -> None:
    code = (
        "import edge\n"
        "model = edge.load(sys.argv[1])\n"
        "pieces = list(model.stream('a b', edge.GenerateOptions(max_tokens=4)))\n"
        "assert pieces[-1].finish_reason\n"
        "from edge.cli.main import main\n"
        "assert main(['run', sys.argv[1], 'a b', '--max-tokens', '3', '--raw']) == 0\n"
        "assert main(['verify', sys.argv[1]]) == 0\n"
    )
    loaded = loaded_by(code, str(tiny_bundle.root))
    assert {"onnxruntime", "tokenizers"} <= loaded
    assert not loaded & HEAVY


def opened_without_encoding(file: Path) -> Iterator[str]:
    """The places where a file opens a text file, or one may, in the encoding of the system."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        others = r"\b(os|wave|wheel|archive|av|opener|\w*provider)\.open$"  # which open no text files
        if not isinstance(node, ast.Call) or re.search(others, ast.unparse(node.func)):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name == "open" or (name in ("read_text", "write_text") and isinstance(node.func, ast.Attribute)):
            modes = [part.value for arg in node.args for part in ast.walk(arg) if isinstance(part, ast.Constant)]
            given = [keyword.arg for keyword in node.keywords]
            if not any("b" in str(mode) for mode in modes) and "encoding" not in given:
                yield f"{file.relative_to(ROOT)}:{node.lineno}"


def test_every_text_file_is_opened_with_an_encoding() -> None:
    """Windows' own is an old code page."""
    files = sorted(file for folder in FOLDERS.values() for file in (ROOT / folder).rglob("*.py"))
    assert [place for file in files for place in opened_without_encoding(file)] == []


def declared(*extras: str) -> set[str]:
    """Import names of what an install with these extras brings by name."""
    project = pyproject()["project"]
    assert isinstance(project, dict)
    names = set[str]()
    for line in [*project["dependencies"], *(line for e in extras for line in project["optional-dependencies"][e])]:
        name, inner = re.match(r"([\w-]+)(?:\[(\w+)\])?", line).groups()  # type: ignore[union-attr]
        names |= declared(inner) if inner else {IMPORTED_AS.get(name, name.replace("-", "_"))}
    return names


def foreign(file: Path) -> set[str]:
    """The packages of others that a file imports, inside functions too."""
    return {name.partition(".")[0] for name in imports(file, at_import_time=False)} - sys.stdlib_module_names - {"edge"}


def test_the_plain_install_is_six_packages_and_one_more_where_the_system_is_not_linux() -> None:
    assert declared() == LIGHT
    elsewhere = [line for line in pyproject()["project"]["dependencies"] if ";" in line]  # type: ignore[index]
    assert [line.partition(">")[0] for line in elsewhere] == ["psutil"] and "linux" not in elsewhere[0]


def test_every_import_is_declared_where_it_is_used_and_nothing_else_is() -> None:
    used, undeclared = set[str](), list[str]()
    for file in (file for folder in FOLDERS.values() for file in (ROOT / folder).rglob("*.py")):
        place = file.relative_to(ROOT)
        extras = next(EXTRAS[str(p)] for p in (place, *place.parents) if str(p) in EXTRAS)
        undeclared += [f"{place} imports {name}" for name in sorted(foreign(file) - declared(*extras))]
        used |= foreign(file)
    assert undeclared == []
    assert declared("audio", "eval", "serve", "tune") <= used


def test_whatever_export_needs_is_named_where_it_is_missing() -> None:
    for extra in ("gguf", "export"):
        brought = {*BROUGHT["gguf"], *BROUGHT[extra]}
        assert declared(extra) - LIGHT <= brought
        assert brought - {"ml_dtypes"} <= HEAVY


def test_what_the_tests_import_comes_with_their_extras() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    own = "tests/android", "tests/fixtures", "benchmarks"
    beside = {path.stem for folder in own for path in (ROOT / folder).iterdir()}
    used = set().union(*map(foreign, [*files, *(ROOT / "fuzz").rglob("*.py")])) - beside - {"fuzz", "tools"}
    assert "pytest" in used and used <= declared("tune", "test", "cluster")


def test_no_test_imports_another() -> None:
    """What several tests need stands in tests/fixtures."""
    assert [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for name in imports(file, at_import_time=False)
        if name.partition(".")[0].startswith("test_")
    ] == []


def test_every_package_folder_is_in_pyproject() -> None:
    setuptools = pyproject()["tool"]["setuptools"]  # type: ignore[index]
    found = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == found
    assert setuptools["package-dir"] == {"": "."}
    for folder in FOLDERS.values():
        for file in (ROOT / folder).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file.relative_to(ROOT)} is in no package"


@pytest.mark.parametrize("name", FOLDERS)
def test_every_package_is_where_its_import_name_says(name: str) -> None:
    assert ROOT.joinpath(*name.split(".")).resolve() == ROOT / FOLDERS[name]


def test_no_file_outgrows_its_room() -> None:
    long = {
        str(file.relative_to(ROOT))
        for folder in FOLDERS.values()
        for file in (ROOT / folder).rglob("*.py")
        if len(file.read_text(encoding="utf-8").splitlines()) > 400
    }
    assert not long, "look for the second room in it"


def test_a_modules_name_says_whose_it_is() -> None:
    """No more than three share one."""
    names = Counter(file.stem for folder in FOLDERS.values() for file in (ROOT / folder).rglob("[!_]*.py"))
    assert {name for name, count in names.items() if count > 3} == set()


def test_constraints_pin_every_direct_dependency() -> None:
    project = pyproject()["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    every = [*project["dependencies"], *(line for e in ("gguf", "export", "tune", "test") for line in extras[e])]
    wanted = [line for line in every if not line.startswith("edge-lm[")]
    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert {line.partition(">")[0] for line in wanted} <= pinned
