"""What every engine's file offers, and what a measurement is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Models:
    """The model in the forms that engines read. `work` holds what was converted for a peer, kept between runs;
    `pythons` are the interpreters whose environments packages are looked for in, in this order."""

    bundle: Path
    gguf: Path
    work: Path
    pythons: tuple[str, ...]


@dataclass(frozen=True)
class Timed:
    """One greedy answer. `prefill_s`: from handing over the prompt's ids to the first token's id, which is `tokens[0]`.
    `decode_s`: per token, over the single-token steps that gave all further ones."""

    prefill_s: float
    decode_s: float
    tokens: list[int]


class Loaded(Protocol):
    """A model in memory."""

    def generate(self, ids: list[int], n: int) -> Timed:
        """Forget everything, run the prompt `ids` and then `n` single-token steps, greedily, past any end token."""
        ...


class EngineFile(Protocol):
    """An engine's file. Its package is imported by `load` only."""

    __name__: str
    PACKAGE: str  # the distribution on PyPI
    MODULES: tuple[str, ...]  # what an interpreter must find to run it
    IMPORT: str  # the statement that imports it, as a user's script would
    # Settings that are tried first; the fastest one is measured. A name, and keyword arguments of `load`.
    VARIANTS: Mapping[str, Mapping[str, Any]]

    def prepare(self, models: Models, variant: str, threads: int) -> Path:
        """What `load` is given for this variant, made here if it does not exist. Raises `Unavailable`."""
        ...

    def load(self, model: Path, threads: int, capacity: int, **settings: Any) -> Loaded:
        """Load a model for prompt and answer of up to `capacity` tokens, its tokenizer included."""
        ...

    def first_token(self, python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
        """The command line of a fresh process that writes the first token of the chat answer to standard output."""
        ...


class Unavailable(Exception):
    """An engine cannot be measured here; the message says why."""


SCRIPTS = Path(__file__).resolve().parent.parent / "first_token"
