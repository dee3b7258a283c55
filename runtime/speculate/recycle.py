"""`recycle`: what was likely the last time the model read the same token.

Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling": a
matrix has for each token of the vocabulary the few candidates with the largest logits after its latest occurrence, in
rejected drafts too. The paper drafts trees of all candidates; a step of more tokens costs too much for that on every
processor that was measured (docs/lab/speculation.md), and the draft here is the chain of first candidates.

A drafted token is graded by how often in a row it was the likeliest after the token before. A bundle may have a file
with rows to begin with, made at export (`read_seed`), which are graded by the first candidate's share. The table stays
from text to text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.largest import largest_of_each
from edge.runtime.speculate.drafter import Budget, Drafter, Setting

NAME = "recycle"
HELP = "what the model held likely when it last read the same token"
TRAITS = {"serves": ("decoder",)}

SEED = "recycle.bin"
CANDIDATES = 8  # of each token, among which the first one's share is taken; the paper's number
WIDEST = 64  # candidates of each token of a bundle's file, at most
LEVELS = 8  # of how sure a row is of its first candidate
HEAD = 8  # bytes

# Rows of the file: levels by the first candidate's share in what all candidates have.
BOUNDS = np.array([0.25, 0.4, 0.5, 0.6, 0.7, 0.85, 0.95])
# By level, of rows that the model made here, which is how often in a row the first candidate was the same, and of those
# from the bundle's file; measured over greedy answers of SmolLM2-135M to 60 questions of Spec-Bench.
MADE_HERE = (0.35, 0.73, 0.87, 0.92, 0.95, 0.95, 0.95, 0.95)
FROM_FILE = (0.04, 0.08, 0.12, 0.15, 0.15, 0.15, 0.2, 0.35)
PRIORS = MADE_HERE + FROM_FILE


def nbytes(setting: Setting) -> int:
    """Bytes of the table."""
    vocab = setting.bundle.manifest.dims.vocab_size
    return vocab * (_dtype(vocab).itemsize + 1)


def make(setting: Setting) -> Recycle:
    """A table with the bundle's rows in it, where it has some; InputError where it is larger than the limit,
    BundleError where the file cannot be read."""
    setting.check_limit("For this vocabulary the drafter recycle", nbytes(setting))
    recycle = Recycle(setting.bundle.manifest.dims.vocab_size)
    seed = read_seed(setting.bundle)
    if seed is not None:
        recycle.seed(*seed)
    return recycle


def _dtype(vocab: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)


class Recycle(Drafter):
    """The likeliest successor of each token of a vocabulary, with how sure it is."""

    name = NAME
    priors = PRIORS
    reads_logits = True

    def __init__(self, vocab: int) -> None:
        self._next = np.zeros(vocab, _dtype(vocab))
        self._sure = np.zeros(vocab, np.uint8)  # 0: nothing is known; else a grade and 1

    def seed(self, tokens: NDArray[np.uint32], candidates: NDArray[np.uint32], sure: NDArray[np.uint8]) -> None:
        """Take rows over: of each token [N] the candidates [N, k], the best first, and the level of sureness [N]."""
        self._next[tokens] = candidates[:, 0]
        self._sure[tokens] = 1 + LEVELS + sure

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        """Begin a text. The table serves every text."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: what follows a token is learnt from the logits."""

    def verified(self, tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        following, sure = self._next, self._sure
        for token, likeliest in zip(tokens.tolist(), logits.argmax(axis=1).tolist(), strict=True):
            level = int(sure[token])
            if not level or following[token] != likeliest:
                following[token] = likeliest
                sure[token] = 1
            else:
                sure[token] = min(level + 1, LEVELS) if level <= LEVELS else 2

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        following, sure = self._next, self._sure
        token, tokens, grades = context[-1], list[int](), list[int]()
        for _ in range(budget.tokens):
            level = int(sure[token])
            if not level:
                break
            token = int(following[token])
            tokens.append(token)
            grades.append(level - 1)
        return Draft(tokens, grades) if tokens else NOTHING


def matrix_rows(logits: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Of logits [S, V], V >= count, the `count` largest of each row [S, count], the largest first, and the level of
    the first one's share in them [S]."""
    values, places = largest_of_each(logits, count)
    share = 1 / np.exp(values - values[:, :1]).sum(axis=1)
    return places, np.searchsorted(BOUNDS, share, side="right").astype(np.uint8)


def write_seed(tokens: NDArray[Any], candidates: NDArray[Any], sure: NDArray[Any]) -> bytes:
    """The bytes of a bundle's file: the numbers N and k, then of N tokens their ids, k candidates each, the best first,
    and levels of sureness. Numbers have 32 bits, little-endian; levels have 8."""
    count, width = candidates.shape
    return struct.pack("<II", count, width) + b"".join(
        np.ascontiguousarray(array, dtype).tobytes()
        for array, dtype in ((tokens, "<u4"), (candidates, "<u4"), (sure, "u1"))
    )


def read_seed(bundle: Bundle) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]] | None:
    """Tokens [N], candidates [N, k] and levels [N] of the bundle's file; None without one, BundleError where it
    cannot be read or is not what `write_seed` writes."""
    if not bundle.has(SEED):
        return None
    vocab = bundle.manifest.dims.vocab_size
    path, raw = bundle.file(SEED), bundle.read(SEED, HEAD + vocab * (4 + 4 * WIDEST + 1))
    count, width = struct.unpack_from("<II", raw) if len(raw) >= HEAD else (0, 0)
    if not 1 <= width <= WIDEST or len(raw) != HEAD + count * (4 + 4 * width + 1):
        raise BundleError(f"{path} is not a table of candidates; export or copy the bundle again.")
    tokens = np.frombuffer(raw, "<u4", count, HEAD)
    candidates = np.frombuffer(raw, "<u4", count * width, HEAD + 4 * count).reshape(count, width)
    sure = np.frombuffer(raw, np.uint8, count, HEAD + 4 * count * (1 + width))
    if count and (max(tokens.max(), candidates.max()) >= vocab or sure.max() >= LEVELS):
        raise BundleError(f"{path} names tokens that the vocabulary of {vocab} does not have; export the bundle again.")
    return tokens, candidates, sure
