"""`model=PATH`: a smaller model with the same tokenizer writes on, and the larger one checks it.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with drafts that take the smaller
model's likeliest token each time; its probability is what a token is graded by. The smaller model's KV cache keeps what
it has of the text, accepted drafted tokens included, so that it runs next to no token twice.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edge.bundle import TOKENIZER, Bundle, open_bundle
from edge.errors import InputError
from edge.home import expanded
from edge.manifest import INT8, KV8
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import DECODER, Variant, kv_dtypes
from edge.runtime.memory.footprint import Demand, MemoryModel
from edge.runtime.providers import AUTO, BEST, open_provider
from edge.runtime.speculate.drafter import Budget, Drafter, Setting
from edge.runtime.text.tokenizer import Text

NAME = "model"
HELP = "what a smaller bundle with the same tokenizer says, whose path this is"
TRAITS = {"serves": ("decoder",), "asked": "model=PATH"}

CHUNK = 128  # prompt tokens of a step
# Of the larger model's step: a model that takes less reads every prompt. Others read one when they are first asked, of
# a chunk at most: reading more takes longer than their drafts can save.
CHEAP = 0.5
TRIED = 0.25  # one that takes longer falls behind the text as it is tried again: reading it would lose more than may be
NOT_OURS = ("program", "tokenizer")  # kinds of memory that are there for the larger model already, or only for a while

_log = logging.getLogger(__name__)

# SHA-256 of tokenizers that are not the same and have the same tokens: a plan asks for each of many sizes.
_alike = set[tuple[str | None, str | None]]()

# Grades are by the probability of the token: above so many of these bounds.
BOUNDS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
PRIORS = (0.15, 0.25, 0.4, 0.55, 0.7, 0.82, 0.9, 0.97)


def nbytes(setting: Setting) -> int:
    """Bytes of the smaller model: weights, KV cache and activations, as the memory model has them."""
    return _nbytes(_open(setting), setting)


def make(setting: Setting) -> DraftModel:
    """The smaller model, loaded; InputError where it has another tokenizer, an encoder, or takes more than the limit,
    BundleError where it is damaged."""
    bundle = _open(setting)
    setting.check_limit(f"The model that drafts, {bundle.manifest.name},", _nbytes(bundle, setting), "auto")
    bundle.check_files_once()
    size, own = (sum(group.bytes for group in b.manifest.groups) for b in (setting.bundle, bundle))
    if own > TRIED * size:
        name, other = bundle.manifest.name, setting.bundle.manifest.name
        _log.warning(
            f"{name} is {own / size:.0%} of the size of {other}: it hardly drafts for it, because trying it would take "
            f"longer than wrong drafts may; choose a model of less than {TRIED:.0%}, or auto."
        )
    vocab = min(b.manifest.dims.vocab_size for b in (setting.bundle, bundle))
    provider = open_provider(AUTO, setting.threads) if setting.engine is None else setting.engine.provider
    kv = _kv(bundle, setting)
    variant = Variant(KV8 if kv == INT8 else DECODER, kv, context=_context(bundle, setting))
    engine = Engine(bundle, variant, provider)
    return DraftModel(engine, vocab, own / size)


def _nbytes(bundle: Bundle, setting: Setting) -> int:
    context = _context(bundle, setting)
    footprint = MemoryModel(bundle).footprint(Demand(context, min(CHUNK, context), kv=_kv(bundle, setting)))
    return max(
        sum(size for kind, size in kinds.items() if kind not in NOT_OURS)
        for kinds in (footprint.loading, footprint.running)
    )


def _kv(bundle: Bundle, setting: Setting) -> str:
    """Return the type of the smaller model's KV cache: the one that it has where it answers alone."""
    return kv_dtypes(bundle, provider=BEST if setting.engine is None else setting.engine.provider)[0]


def _context(bundle: Bundle, setting: Setting) -> int:
    return min(bundle.manifest.context, setting.context)


def _open(setting: Setting) -> Bundle:
    """The bundle at the path, checked to draft for the other one; InputError or BundleError where it cannot."""
    assert setting.argument is not None
    bundle = open_bundle(expanded(setting.argument))
    name = bundle.manifest.name
    if bundle.manifest.encoder is not None:
        raise InputError(f"{name} has an encoder, and what drafts must be a decoder alone; name another bundle.")
    ours, theirs = ({f.path: f.sha256 for f in b.manifest.files}.get(TOKENIZER) for b in (setting.bundle, bundle))
    if ours is None or (ours != theirs and (ours, theirs) not in _alike):
        _compare(setting.bundle, bundle)
        _alike.add((ours, theirs))
    return bundle


def _compare(bundle: Bundle, other: Bundle) -> None:
    """InputError where two bundles have different vocabularies."""
    text, drafts = Text(bundle), Text(other)
    for token in range(max(b.manifest.dims.vocab_size for b in (bundle, other))):
        ours, theirs = text.token(token), drafts.token(token)
        if ours != theirs:
            said = [f"{name!r}" if name is not None else "none" for name in (theirs, ours)]
            raise InputError(
                f"{other.manifest.name} cannot draft for {bundle.manifest.name}: their tokenizers differ (token "
                f"{token} is {said[0]} there and {said[1]} here); name a bundle with the same tokenizer."
            )


class DraftModel(Drafter):
    """A model that drafts. vocab: tokens that both models know. cost: of its steps, in steps of the larger model."""

    name = NAME
    priors = PRIORS

    def __init__(self, engine: Engine, vocab: int, cost: float) -> None:
        self.cost = cost
        self._engine = engine
        self._vocab = vocab
        self._cache: KVCache | None = None
        self._held: list[int] = []  # tokens in the cache; drafted ones stand at the end
        self._length = 0  # of the text, as far as it was told
        self._right = 0  # tokens held that the text begins with
        self._readable = True  # whether this model knows all of the text's tokens: its vocabulary may be padded less

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        self._length = self._right = 0
        self._readable = True
        self.accept(tokens)
        if self.cost < CHEAP and self._readable and len(tokens) < self._engine.context:
            self._read(tokens)  # here, and not in the first draft, by whose time drafts are judged

    def accept(self, tokens: Sequence[int]) -> None:
        if self._right == self._length:
            for held, token in zip(self._held[self._right : self._right + len(tokens)], tokens, strict=False):
                if held != token:
                    break
                self._right += 1
        self._length += len(tokens)
        self._readable = self._readable and max(tokens, default=0) < self._vocab

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        count = min(budget.tokens, self._engine.context - len(context) + 1)
        if count < 1 or not self._readable or (self.cost >= CHEAP and len(context) - self._right > CHUNK):
            return NOTHING
        right = min(self._right, len(context) - 1)  # the last token is run anew where it is held
        if not budget.afford(self.cost, len(context) - right):
            return NOTHING
        self._right = right
        share = self.cost

        def run(tokens: Sequence[int]) -> NDArray[np.float32] | None:
            return self._run(tokens) if budget.afford(share, len(tokens)) else None

        return written(run, self._read(context), budget._replace(tokens=count), self._vocab)

    def _read(self, text: Sequence[int]) -> NDArray[np.float32]:
        """Hold `text` and nothing else; logits [V] of what follows it, where there was anything to run."""
        if self._cache is None:
            self._cache = self._engine.new_cache()
        self._right = self._cache.truncate(self._right)
        del self._held[self._right :]
        logits = self._run(text[self._right :])
        self._right = len(text)
        return logits

    def _run(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits [V] of what follows these tokens after those in the cache."""
        assert self._cache is not None
        logits = np.empty((1, 0), np.float32)
        for start in range(0, len(tokens), CHUNK):
            piece = tokens[start : start + CHUNK]
            logits = self._engine.step(self._cache, np.array(piece, np.int64))
            self._held += piece
        last: NDArray[np.float32] = logits[-1]
        return last


def written(
    run: Callable[[Sequence[int]], NDArray[np.float32] | None],
    logits: NDArray[np.float32] | None,
    budget: Budget,
    vocab: int | None = None,
) -> Draft:
    """A draft of the likeliest token each time, graded by its probability, which ends where logits are not finite.

    run: gives the logits [V] of what follows some tokens, or None where there is no time to ask. logits: of what
    follows the text. vocab: tokens that may be drafted; default: all.
    """
    tokens, grades, chance = list[int](), list[int](), 1.0
    while logits is not None:
        known = logits[:vocab]
        token = int(known.argmax())
        if not math.isfinite(known.item(token)):
            break
        probability = 1 / float(np.exp(known - known[token]).sum())
        chance *= probability
        if tokens and chance < budget.min_chance:
            break
        tokens.append(token)
        grades.append(bisect.bisect(BOUNDS, probability))
        if len(tokens) == budget.tokens or chance < budget.min_chance:
            break
        logits = run(tokens[-1:])
    return Draft(tokens, grades)
