"""The engines that are compared: a file each, found by name, of the shape of `EngineFile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

DECODER, SPEECH, TEXT = "decoder", "speech", "text"  # tasks
# Of decoders. This runtime first: every ratio is its figure over another's.
DECODERS = ("edge", "onnxruntime-genai", "llama.cpp", "openvino-genai")
_FILES = {
    "edge": "edge_runtime",
    "onnxruntime-genai": "genai",
    "llama.cpp": "llamacpp",
    "openvino-genai": "ov_genai",
    "ctranslate2": "ctranslate",
}


@dataclass(frozen=True)
class Models:
    """A decoder in the forms that engines read. `work` holds what was converted for a peer, kept between runs;
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


@dataclass(frozen=True)
class Heard:
    """One window of sound. `encode_s`: until the encoder is done. `decode_s`: from there until the last token, the
    prompt included. `tokens` are those behind the prompt."""

    encode_s: float
    decode_s: float
    tokens: list[int]


@dataclass(frozen=True)
class Translated:
    """Texts, one after the other, from text to text."""

    seconds: float
    texts: list[str]


class Unavailable(Exception):
    """An engine cannot be measured here; the message says why."""


class EngineFile(Protocol):
    """An engine's file. Its package is imported by `load` only. What that returns answers by its tasks:

    - DECODER: `generate(ids, n) -> Timed`: forget everything, run the prompt `ids` and then `n` single-token steps,
      greedily, past any end token;
    - SPEECH: `hear(pcm, features, prompt, suppress, beams, n) -> Heard`: encode a window, then decode exactly `n`
      tokens behind `prompt`, the end token and `suppress` forbidden. pcm: a .npy file of mono samples [N] at 16 kHz;
      features: one of log-mel features [1, M, 3000] for engines that compute none, whose figures leave that out;
    - TEXT: `translate(texts, beams, n) -> Translated`: texts of up to `n` tokens each, one at a time.
    """

    __name__: str
    PACKAGE: str  # the distribution on PyPI
    MODULES: tuple[str, ...]  # what an interpreter must find to run it
    IMPORT: str  # the statement that imports it, as a user's script would
    # By task: settings that are tried first, of which the fastest is measured. A name, and keyword arguments of `load`;
    # `threads` among them takes the place of --threads.
    VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def load(self, model: Path, threads: int, capacity: int, task: str, **settings: Any) -> Any:
        """Load a model for prompt and answer of up to `capacity` tokens, its tokenizer included."""
        ...

    def prepare(self, models: Models, variant: str, threads: int) -> Path:
        """Of a decoder: what `load` is given for this variant, made here if it does not exist. Raises `Unavailable`."""
        ...

    def first_token(self, python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
        """The command line of a fresh process that writes the first token of the chat answer to standard output: of a
        peer the smallest script that its user would write."""
        ...

    def from_gguf(self, python: str, gguf: Path, cache: Path, prompt: str, threads: int) -> list[str]:
        """The same from a GGUF file, and from what an earlier run left in the folder `cache`."""
        ...


def engine_file(name: str) -> EngineFile:
    """The file of an engine, whose name may go on after a comma or a blank. Importing it imports nothing of the engine
    itself."""
    return cast(EngineFile, import_module(f"engines.{_FILES[name.split(',')[0].split()[0]]}"))
