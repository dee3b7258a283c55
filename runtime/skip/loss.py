"""The loss of quality by a skip policy, measured on the recorded answers of a bundle, once for each setting.

A small model that was not tuned for it makes no sense with some of its layers left out, and nothing says so. Before a
bundle first answers under a setting, its recorded answers therefore run through the policy and through the whole
decoder, each token after the recorded ones before it, and a setting that ruins the bundle is refused. A tuned bundle's
answers were recorded after it was tuned; so the same measure holds for it.

The result is stored in the cache folder, by the content of the bundle and the setting.
"""

from __future__ import annotations

import contextlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import MANIFEST, MOST_JSON, Bundle
from edge.errors import BundleError, InputError
from edge.home import cache_dir, drop_oldest, mark_used, read_own_json, replace_text
from edge.runtime.decode.generate_options import never
from edge.runtime.decode.log_softmax import log_softmax
from edge.runtime.decode.loop import prefill
from edge.runtime.engine.binding import KEPT_STEP
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.typed_json import typed

if TYPE_CHECKING:
    from edge.golden import GoldenCase

RUINED = 2.5  # times the perplexity; docs/lab/skipping.md says what was measured on both sides
CASES = 8  # recorded answers that are run, at most: exports write up to 4
TOKENS = 64  # of all answers together, at least: where fewer were recorded, the whole decoder goes on
LONGEST = 64  # tokens of an answer that are run
WORST = 99.0  # nats a token: of a policy whose logits are not numbers
LARGE = 500_000_000  # bytes of a bundle, from which on measuring takes seconds
MILLION = 1_000_000

_say = logging.getLogger(__name__).warning


@dataclass(frozen=True)
class SkipLoss:
    """The loss on `tokens` tokens of the bundle's recorded answers: `same` of them stay the likeliest; `divergence` is
    the mean Kullback-Leibler divergence from the whole decoder, in nats per token."""

    tokens: int
    same: int
    divergence: float

    @property
    def times(self) -> float:
        """Factor by which the perplexity of the whole decoder's answers grows."""
        return float(np.exp(self.divergence))

    @property
    def ruins(self) -> bool:
        return self.times > RUINED


def unless_ruined(bundle: Bundle, skip: str, make: Callable[[], Engine]) -> Engine:
    """The engine that `make` opens with the policy `skip`.

    Raises:
        InputError: the setting ruins the bundle, which is measured where it was not before.
    """
    if (loss := kept(bundle, skip)) is not None:  # before the weights are loaded
        check(bundle, skip, loss)
    engine = make()
    if loss is None:
        if sum(bundle.sizes.values()) > LARGE:
            _say("Measuring what %s costs %s, once.", skip, bundle.manifest.name)
        loss = measured(engine, skip)
        check(bundle, skip, loss)
        keeps = f"keeps {loss.same} of {loss.tokens} tokens of its own answers"
        _say("%s %s, at %s times the perplexity.", skip, keeps, shown(loss.times))
    return engine


def loss_of(engine: Engine, skip: str) -> SkipLoss:
    """Return the loss of the engine's bundle under its policy, called `skip`: the stored one, or measure and store it.

    Raises:
        BundleError: the recorded answers cannot be read.
    """
    loss = kept(engine.bundle, skip)
    return loss if loss is not None else measured(engine, skip)


def measured(engine: Engine, skip: str) -> SkipLoss:
    """Measure the loss of the engine's bundle under its policy, and store it.

    Raises:
        BundleError: the recorded answers cannot be read.
    """
    loss = measure(engine)
    keep(engine.bundle, skip, loss)
    return loss


def check(bundle: Bundle, skip: str, loss: SkipLoss) -> None:
    """Raise InputError where a setting ruins the bundle."""
    if not loss.ruins:
        return
    tune = "" if bundle.manifest.encoder is not None else ", train the model for this one with edge tune"  # decoders
    raise InputError(
        f"{skip} ruins {bundle.manifest.name}: it keeps {loss.same} of {loss.tokens} tokens of the bundle's own "
        f"answers, at {shown(loss.times)} times the perplexity; skip less (edge profile --skip shows what each setting "
        f"costs){tune}, or insist with --skip-anyway (in Python skip_anyway=True)."
    )


def shown(times: float) -> str:
    """Return a factor of perplexity as a person reads it."""
    if times >= MILLION:
        return f"over {MILLION:,}"
    return f"{times:.2f}" if times < 10 else f"{times:,.0f}"


# Measuring


def measure(engine: Engine) -> SkipLoss:
    """Measure the loss on the bundle's recorded answers under the engine's policy.

    Raises:
        BundleError: its recorded answers cannot be read.
    """
    from edge.golden import read_golden  # which a setting that was measured before does without

    cases = read_golden(engine.bundle).cases[:CASES]
    tokens, same, divergence = 0, 0, 0.0
    for case in cases:
        for whole, left in _both(engine, case, -(-TOKENS // len(cases))):
            tokens += len(whole)
            same += int((whole.argmax(-1) == left.argmax(-1)).sum())
            for p, q in zip(whole, left, strict=True):  # a row at a time, which takes the least memory
                divergence += _divergence(p, q)
    return SkipLoss(tokens, same, divergence / tokens)


Rows = NDArray[np.float32]  # of logits [R, V]


def _both(engine: Engine, case: GoldenCase, least: int) -> Iterator[tuple[Rows, Rows]]:
    """The logits that choose an answer's tokens, a few at a time: of the whole decoder, and under the policy. least:
    tokens of the answer, if the context has room for them."""
    prompt, answer = case.prompt_ids, case.greedy_ids[:LONGEST]
    length = max(len(answer), min(least, engine.bundle.manifest.context - len(prompt)))
    whole, own = (room_for(engine, case, length) for _ in range(2))
    assert isinstance(whole, SegmentedCache) and engine.routes is not None, "an engine without a policy"
    whole.forced = engine.routes.everything
    yield read(engine, whole, prompt), read(engine, own, prompt)
    width = KEPT_STEP if engine.plan is None else engine.plan.demand.width
    done, token = 1, answer[0]
    while done < length:
        size, known = min(width, length - done), answer[done - 1 :]
        if known:
            tokens = np.array(known[:size], np.int64)
            rows = engine.step(whole, tokens, np.arange(len(tokens)))
        else:
            tokens, rows = _go_on(engine, whole, token, size)
        token, at = int(rows[-1].argmax()), 0
        while at < len(tokens):
            some = tokens[at : at + engine.max_exact_step(own)]
            yield rows[at : at + len(some)], engine.step(own, some, np.arange(len(some)))
            at += len(some)
        done += len(tokens)


def room_for(engine: Engine, case: GoldenCase, tokens: int) -> KVCache:
    """Make a cache for a recorded prompt and an answer of so many tokens, exactly as large as both: so all that a
    policy does in the course of an answer is measured."""
    from edge.golden import noise

    cross, encoder = None, engine.encoder
    if encoder is not None and case.source_seed is not None:
        cross = encoder.encode_audio(noise(case.source_seed))
    elif encoder is not None:
        cross = encoder.encode_text(np.array(case.source_ids[: encoder.max_length], np.int64))
    cache = engine.make_cache(len(case.prompt_ids) + tokens, cross)
    cache.prompt = len(case.prompt_ids)
    return cache


def read(engine: Engine, cache: KVCache, prompt: list[int]) -> Rows:
    """Run a prompt and return the logits [1, V] of its last token."""
    chunk = engine.chunk if engine.plan is None else engine.plan.demand.chunk
    logits = prefill(engine, cache, np.array(prompt, np.int64), chunk=chunk, interrupted=never)
    assert logits is not None, "a prompt that nobody interrupts"
    return logits


def _go_on(engine: Engine, cache: KVCache, token: int, count: int) -> tuple[NDArray[np.int64], Rows]:
    """Run `count` tokens from `token` on, each the likeliest after those before it; and their logits."""
    tokens, rows = list[int](), list[Rows]()
    for _ in range(count):
        tokens.append(token)
        rows.append(engine.step(cache, np.array([token], np.int64)).copy())
        token = int(rows[-1].argmax())
    return np.array(tokens, np.int64), np.concatenate(rows)


def _divergence(whole: NDArray[np.float32], left: NDArray[np.float32]) -> float:
    """KL(whole || left) of two rows of logits [V]; none where the whole decoder's are not numbers either."""
    with np.errstate(all="ignore"):  # of logits that are not finite numpy says more than once
        log_p, log_q = log_softmax(whole), log_softmax(left)
        p = np.exp(log_p)
        likely = p > 0
        found = float((p[likely] * (log_p[likely] - log_q[likely])).sum(dtype=np.float64))
    if np.isnan(log_p).any():
        return 0.0
    return min(max(found, 0.0), WORST) if found == found else WORST


# Keeping


def kept(bundle: Bundle, skip: str) -> SkipLoss | None:
    """Return the stored loss of a bundle with this content; None where there is none, or it cannot be read."""
    path, about = _about(bundle, skip)
    raw = read_own_json(path)
    if not isinstance(raw, dict) or not isinstance(loss := raw.pop("loss", None), dict) or raw != about:
        return None
    try:
        found = typed(loss, SkipLoss, str(path))
    except BundleError:  # damaged: it is measured anew
        return None
    if not 0 <= found.same <= found.tokens or not found.tokens or not 0 <= found.divergence <= WORST:
        return None
    mark_used(path)
    return found


def keep(bundle: Bundle, skip: str, loss: SkipLoss) -> None:
    """Store the loss, where the cache folder can be written."""
    path, about = _about(bundle, skip)
    with contextlib.suppress(OSError):
        replace_text(path, json.dumps({**about, "loss": asdict(loss)}))
        drop_oldest(path.parent, made=path)


def _about(bundle: Bundle, skip: str) -> tuple[Path, dict[str, Any]]:
    """Return the path where the loss of a setting is stored, and the fields of that file that identify the bundle and
    the setting."""
    from edge import __version__

    # By the sums that the manifest has of all other files: hashlib, for its own, takes as long as all the rest.
    manifest = zlib.crc32(bundle.read(MANIFEST, MOST_JSON[MANIFEST]))
    files = {file.path: file.sha256 for file in bundle.manifest.files}
    about = {"manifest": manifest, "files": files, "skip": skip, "edge": __version__}
    return cache_dir() / "skipped" / f"{manifest:08x}-{zlib.crc32(skip.encode()):08x}.json", about
