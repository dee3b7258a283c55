"""A registry finds modules by what they say of themselves, and imports none before it is chosen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.errors import InputError
from edge.registry import Registry

SAID = 'NAME = "one"\nHELP = "does one thing"\nTRAITS = {\n    "heavy": True,  # why\n    "needs": ("a", "b"),\n}\n'
SEVERAL = 'NAMES = (\n    "two",\n    "three",\n)\nVALUE = 7\n'


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One over a package of two modules with names, of which one cannot be imported, a helper and a package."""
    files = {
        "__init__": "",
        "first": f'"""Docs."""\n\nimport no_such_library\n\n{SAID}',
        "second": SEVERAL,
        "helper": "def f():\n    NAME = 'inner'\n",
        "fourth/__init__": 'NAME = "four"\n',
    }
    for name, text in files.items():
        path = tmp_path / "found_by_name" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("found_by_name")]:
        monkeypatch.delitem(sys.modules, name)
    return Registry("found_by_name", "thing")


def test_names_help_and_traits_are_known_without_importing_anything(registry: Registry) -> None:
    assert list(registry) == ["one", "four", "two", "three"]
    one = registry["one"]
    assert (one.help, one.traits) == ("does one thing", {"heavy": True, "needs": ("a", "b")})
    assert registry["three"].module == registry["two"].module == "found_by_name.second"
    assert (registry["two"].help, registry["two"].traits) == ("", {})
    assert "found_by_name.second" not in sys.modules


def test_a_module_is_imported_when_it_is_loaded(registry: Registry) -> None:
    assert registry.find("three").load().VALUE == 7
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        registry.find("one").load()


def test_an_unknown_name_is_refused_with_those_that_there_are(registry: Registry) -> None:
    with pytest.raises(InputError, match="There is no thing 'five'; choose one of one, four, two, three."):
        registry.find("five")


def test_two_modules_of_one_name_are_a_mistake(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "found_by_name" / "third.py").write_text('NAME = "two"\n', encoding="utf-8")
    with pytest.raises(AssertionError, match="same name: two"):
        list(registry)
