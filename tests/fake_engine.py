"""An engine without a model: a function of all tokens so far says which comes next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edge.bundle import Bundle, sha256_of
from edge.manifest import Dims, File, KVLayer, KVLayout, Manifest, Source, Tokens
from edge.runtime.cache import KVCache
from edge.runtime.model import Model
from edge.runtime.speculate.successors import FILE, Context, write_table
from edge.runtime.text import Text

BOS, START, END = 256, 257, 258  # after the 256 bytes
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)
LAYOUT = KVLayout("float32", [KVLayer(1, 8)])  # buffers that no one reads


class FakeEngine:
    """Keeps what `Engine` promises, and records the tokens of every step."""

    plan = None
    costs = None
    wide = None
    chooses = False
    threads = 1
    exact = False
    takes_trees = False
    kv = LAYOUT

    def __init__(self, bundle: Bundle, next_token: Callable[[list[int]], int], context: int = 1000) -> None:
        self.bundle, self.context, self.next_token = bundle, context, next_token
        self.steps: list[list[int]] = []
        self._contents: WeakKeyDictionary[KVCache, list[int]] = WeakKeyDictionary()

    def steady(self, cache: KVCache) -> int:
        return cache.room

    def new_cache(self, capacity: int | None = None) -> KVCache:
        assert capacity is None or capacity <= self.context
        return KVCache(LAYOUT, capacity or self.context)

    def step(
        self, cache: KVCache, tokens: np.ndarray, rows: np.ndarray | None = None, *, tree: None = None
    ) -> np.ndarray:
        assert tokens.dtype == np.int64 and tokens.ndim == 1 and 1 <= len(tokens) <= cache.room
        self.steps.append(tokens.tolist())
        history = self._contents.setdefault(cache, [])
        del history[cache.length :]
        assert len(history) == cache.length
        start = len(history)
        history.extend(tokens.tolist())
        cache.length += len(tokens)
        wanted = [len(tokens) - 1] if rows is None else rows
        logits = np.zeros((len(wanted), self.bundle.manifest.dims.vocab_size), np.float32)
        for out, row in zip(logits, wanted, strict=True):
            try:
                out[self.next_token(history[: start + row + 1])] = 10
            except AssertionError:
                if rows is None or row == 0:  # what stands behind a row of a draft may be wrong
                    raise
        return logits


def byte_bundle(folder: Path, template: str | None = TEMPLATE, add_bos: bool = True) -> Bundle:
    """A bundle folder of which only the tokenizer is there: one token per byte, and three special ones."""
    alphabet = bytes_to_characters()
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<start>", "<end>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    manifest = Manifest(
        *(1, "edge test", "bytes", "llama", "decoder", "fp32", Dims(1, 8, 8, 1, 1, 8, 259), 2000, []),
        *(LAYOUT, [], Tokens(BOS, [END], None, add_bos), template, Source("bytes", "directory")),
    )
    return Bundle(folder, manifest)


def bytes_to_characters() -> list[str]:
    """The character by which byte-level vocabularies write each byte, in the order of the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def says(*answers: str, end: bool = True) -> Callable[[list[int]], int]:
    """A model that gives these answers in turn, one to each prompt that ends with the assistant's opening."""
    opening = [START, *b"assistant\n"]

    def next_token(history: list[int]) -> int:
        begins = [i + len(opening) for i in range(len(history)) if history[i : i + len(opening)] == opening]
        if not begins:  # the prompt comes in chunks
            return END
        wanted = [*answers[len(begins) - 1].encode(), *([END] if end else [])]
        said = history[begins[-1] :]
        assert said == wanted[: len(said)], "the cache does not hold what was said"
        return wanted[len(said)] if len(said) < len(wanted) else END

    return next_token


def fake_model(
    folder: Path,
    next_token: Callable[[list[int]], int],
    *,
    context: int = 1000,
    template: str | None = TEMPLATE,
    prefill_chunk: int = 512,
    speculate: str = "off",  # else steps hold what is drafted as well
) -> tuple[Model, FakeEngine]:
    bundle = byte_bundle(folder, template)
    engine = FakeEngine(bundle, next_token, context)
    return Model(bundle, engine, Text(bundle), prefill_chunk=prefill_chunk, speculate=speculate), engine  # type: ignore[arg-type]


def tokens_in(steps: Sequence[Sequence[int]]) -> list[int]:
    return [token for step in steps for token in step]


def with_tokens(bundle: Bundle, **changes: object) -> Bundle:
    tokens = dataclasses.replace(bundle.manifest.tokens, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, tokens=tokens))


def with_table(bundle: Bundle, table: Mapping[Context, tuple[int, int]] | bytes) -> Bundle:
    """The bundle, which the test may harm, with this table."""
    path = bundle.path(FILE)
    path.write_bytes(table if isinstance(table, bytes) else write_table(table))
    file = File(FILE, path.stat().st_size, sha256_of(path))
    return Bundle(bundle.root, dataclasses.replace(bundle.manifest, files=[*bundle.manifest.files, file]))
