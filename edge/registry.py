"""Folders whose modules are found by name, so that adding one touches no other file.

A module of such a folder says at its top level, as literals: its `NAME`, or `NAMES` where it answers to several; one
line of `HELP` for a person; and the `TRAITS` that others must know before they choose it. These are read from the
source, and the module is imported when it is loaded, because some need Torch. Modules without a name are helpers.

    POLICIES = Registry("edge.runtime.skip", "skip policy")
    POLICIES.find("first").load().make(bundle)
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from edge.errors import InputError
from edge.spelling import nearest

# Begins with a line's end, which is found seven times as fast as a line's beginning: every start of a command waits.
_FACT = re.compile(r"\n(NAMES?|HELP|TRAITS) = (.*(?:\n[ )\]}].*)*)")


@dataclass(frozen=True)
class Entry:
    """The facts that a module states about itself. module: its import name."""

    name: str
    module: str
    help: str
    traits: Mapping[str, Any]

    @property
    def asked(self) -> str:
        """The spelling that asks for it: its name, or the one in its traits."""
        return str(self.traits.get("asked", self.name))

    def load(self) -> ModuleType:
        """Import the module."""
        return importlib.import_module(self.module)


class Registry(Mapping[str, Entry]):
    """The named modules of a package, by name, in the order of their files. what: the word for one of them in
    messages."""

    def __init__(self, package: str, what: str) -> None:
        self.package = package
        self.what = what

    def __str__(self) -> str:
        """List the spellings that ask for its modules."""
        return ", ".join(entry.asked for entry in self.values())

    def find(self, name: str) -> Entry:
        """The entry of this name.

        Raises:
            InputError: there is none; the sentence says which one was perhaps meant, or which there are.
        """
        if name not in self:
            if (near := nearest(name, self)) is not None:
                raise InputError(f"There is no {self.what} {name!r}; did you mean {near}?")
            raise InputError(f"There is no {self.what} {name!r}; choose one of {', '.join(self)}.")
        return self[name]

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for found in pkgutil.iter_modules(importlib.import_module(self.package).__path__, f"{self.package}."):
            spec = importlib.util.find_spec(found.name)
            assert spec is not None and spec.origin is not None
            source = Path(spec.origin).read_text(encoding="utf-8")
            facts = {fact: ast.literal_eval(value.strip()) for fact, value in _FACT.findall(f"\n{source}")}
            for name in facts.get("NAMES", (facts["NAME"],) if "NAME" in facts else ()):
                assert name not in entries, f"{found.name} and {entries[name].module} have the same name: {name}"
                entries[name] = Entry(name, found.name, facts.get("HELP", ""), facts.get("TRAITS", {}))
        return entries
