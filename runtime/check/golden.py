"""Golden answers: recorded at export, replayed by any host to prove that it computes what the exporter computed.

A replay is forced along the recorded tokens: after every step the recorded token is fed, whatever the host itself
chooses, so that the steps after a difference are still comparable.

Two right hosts differ in the last bits of a logit, and rounding activations to 8 bits amplifies that. So the recorder
answers a second time with its kernels for two rows, and with keys and values changed by as much as that rounding does
where products do it; the tolerance is a multiple of how far the two answers part. What is compared are distances
between two of the best logits: a shift common to all changes no probability. Another token whose logit lies within the
tolerance is a near-tie; many near-ties are a fault.

The graph that skips computes what the decoder's graph does, and replays its answers. The int8 prefill graph and
the one over a KV cache in int8 round otherwise: what they say along the same answers is recorded too, with the distance
of their logits from the decoder's as the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.golden import MAX_TOLERANCE, FormCase, Golden, GoldenCase, GoldenForm, TopLogits, noise
from edge.manifest import FLOAT32, INT8, KV8, SKIP
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import DECODER, PREFILL, Variant
from edge.runtime.load import make_engine
from edge.runtime.providers import AUTO
from edge.runtime.providers.provider import Provider
from edge.targets import TARGETS, target_for

TOP = 5
MARGIN = 2.0  # tolerance as a multiple of the largest difference between the recorder's own kernels
MIN_TOLERANCE = 1e-3
ROUNDING = 0.01  # by which rounding activations to 8 bits changes keys and values, in multiples of their size (RMS)
MAX_NEAR_TIES = 1 / 8  # of all tokens; the two kernels of the recorder had 1 in 46 (SmolLM2-135M, 8 bits)


@dataclass
class GoldenReport:
    """Result of a replay. `faults` are sentences; `near_ties` are too, and do not make the bundle wrong."""

    tolerance: float
    prompts: int = 0
    tokens: int = 0
    different: int = 0  # of the tokens: neither as recorded nor a near-tie
    largest_difference: float = 0.0
    near_ties: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass(frozen=True)
class GoldenInput:
    """The input for which a golden answer is recorded; see `GoldenCase`."""

    prompt_ids: list[int]
    source_ids: list[int] = field(default_factory=list)
    source_seed: int | None = None
    date: str | None = None


def roles(bundle: Bundle, provider: str = AUTO) -> list[str]:
    """Roles of the graphs that a run could use to answer with, the decoder's first; or those for the provider's device,
    by their target's name, where the bundle has some."""
    target, manifest = target_for(bundle, provider), bundle.manifest
    if target is not None:
        return [target]
    there = {graph.role for graph in manifest.graphs}
    if manifest.prefill is not None and not manifest.prefill.known:
        there.remove(PREFILL)
    return [DECODER, *(role for role in (PREFILL, KV8, SKIP) if role in there)]


def open_role(
    bundle: Bundle,
    role: str,
    *,
    context: int | None = None,
    threads: int | None = None,
    provider: str | Provider = AUTO,
) -> Engine:
    """Open an engine for the graph with this role, or for this target; BundleError where the graph cannot be loaded."""
    if role in TARGETS:
        return make_engine(bundle, Variant(target=role, context=context), provider, threads)
    policy = None
    if role == SKIP:
        from edge.runtime.skip.skip_policy import AllLayers

        policy = AllLayers(bundle)
    kv, graph = INT8 if role == KV8 else FLOAT32, DECODER if role == PREFILL else role
    return make_engine(bundle, Variant(graph, kv, role == PREFILL, policy, context=context), provider, threads)


def record_golden(engine: Engine, inputs: Sequence[GoldenInput], tokens: int = 24) -> Golden:
    """Record for each input its greedy answer of `tokens` tokens, past any end token, and the top logits of the first
    and last step. A prompt and its answer must fit in the engine's context."""
    import onnxruntime

    cases: list[GoldenCase] = []
    deviation = 0.0
    for given in inputs:
        prompt = given.prompt_ids
        cache = _new_cache(engine, given, len(prompt) + tokens + 1)
        tops = [_top(engine.step(cache, np.array(prompt, np.int64))[0])]
        while len(tops) < tokens:
            tops.append(_top(engine.step(cache, np.array(tops[-1].ids[:1], np.int64))[0]))
        answer = [top.ids[0] for top in tops]
        deviation = max(deviation, _deviation(engine, given, tops))
        source = given.source_ids, given.source_seed
        cases.append(GoldenCase(prompt, answer, tops[0], tops[-1], *source, given.date))
    tolerance = float(f"{max(MIN_TOLERANCE, MARGIN * deviation):.2g}")
    if tolerance > MAX_TOLERANCE:
        raise BundleError(
            f"The model's answers cannot be recorded: the logits of two kernels differ by {deviation:.3g}, which no "
            "host could tell from a fault; export it with other weights."
        )
    return Golden(f"onnxruntime {onnxruntime.__version__}", tolerance, cases, [])


def record_form(engine: Engine, golden: Golden, role: str) -> GoldenForm:
    """Record the tokens and top logits that the graph with this role, which rounds otherwise, gives along the recorded
    answers."""
    cases, deviation = [], golden.tolerance
    for case in golden.cases:
        ids: list[int] = []
        tops: list[TopLogits] = []
        for i, logits in enumerate(_forced(engine, case, role)):
            ids.append(int(logits.argmax()))
            if recorded := case.own.at(i):
                tops.append(_top(logits))
                deviation = max(deviation, _distance(logits, recorded))
        cases.append(FormCase(ids, tops[0], tops[-1]))
    return GoldenForm(role, float(f"{deviation:.2g}"), cases)


def replay_golden(
    engine: Engine, golden: Golden, progress: Callable[[int], object] = lambda tokens: None, *, role: str = DECODER
) -> GoldenReport:
    """Run every recorded answer here, in the graph with this role. progress: gets the tokens just checked."""
    form = golden.form(role)
    report = GoldenReport(form.tolerance)
    for number, (case, own) in enumerate(zip(golden.cases, form.cases, strict=True), 1):
        report.prompts += 1
        for i, logits in enumerate(_forced(engine, case, role)):
            place = f"prompt {number}, token {i + 1}"
            _check_token(report, place, logits, own.ids[i])
            if top := own.at(i):
                difference = _distance(logits, top)
                if not difference <= report.largest_difference:  # so that NaN stays, and is a fault
                    report.largest_difference = difference
                if not difference <= report.tolerance:
                    report.faults.append(f"{place}: two logits are {difference:.3g} farther or closer than recorded")
            report.tokens += 1
            progress(1)
    ties = len(report.near_ties)
    if ties > MAX_NEAR_TIES * report.tokens:
        report.faults.append(f"{ties} of {report.tokens} tokens are near-ties, of which there should be a few")
    return report


def _forced(engine: Engine, case: GoldenCase, role: str = DECODER) -> Iterator[NDArray[np.float32]]:
    """The logits [V] that choose each token of the answer, each given the recorded tokens before it: token by token, or
    all at once in the int8 prefill graph, which is there for steps of many."""
    cache = _new_cache(engine, case, len(case.prompt_ids) + len(case.greedy_ids))
    prompt, answer = np.array(case.prompt_ids, np.int64), np.array(case.greedy_ids[:-1], np.int64)
    if role == PREFILL:
        assert engine.prefill is not None
        yield engine.prefill.step(cache, prompt)[0]
        if len(answer):
            yield from engine.prefill.step(cache, answer, np.arange(len(answer)))
        return
    yield engine.step(cache, prompt)[0]
    for token in answer:
        yield engine.step(cache, token[None])[0]


def _new_cache(engine: Engine, given: GoldenInput | GoldenCase, capacity: int) -> KVCache:
    if engine.encoder is None:
        return engine.new_cache(capacity)
    if given.source_seed is None:
        return engine.new_cache(capacity, engine.encoder.encode_text(np.array(given.source_ids, np.int64)))
    return engine.new_cache(capacity, engine.encoder.encode_audio(noise(given.source_seed)))


def _check_token(report: GoldenReport, place: str, logits: NDArray[np.float32], recorded: int) -> None:
    best = int(logits.argmax())
    if np.isnan(logits[best]):  # the best one, wherever there is one
        report.different += 1
        report.faults.append(f"{place}: logits are not numbers")
        return
    if best == recorded:
        return
    gap = float(logits[best] - logits[recorded])
    if gap <= report.tolerance:
        report.near_ties.append(f"{place}: {best} instead of {recorded}, whose logit is only {gap:.2g} lower")
    else:
        report.different += 1
        report.faults.append(f"{place}: {best} instead of the recorded {recorded}, whose logit is {gap:.3g} lower")


def _distance(logits: NDArray[np.float32], recorded: TopLogits) -> float:
    """By how much the distance between two of the best logits differs from the recorded one, at most."""
    return float(np.ptp(logits[recorded.ids] - np.array(recorded.logits, np.float32)))


def _top(logits: NDArray[np.float32]) -> TopLogits:
    ids = np.argsort(-logits, kind="stable")[:TOP]
    if np.isnan(logits).any() or not np.isfinite(logits[ids]).all():
        raise BundleError("The model's logits are not numbers, so there is nothing to record; export other weights.")
    return TopLogits(ids.tolist(), [round(float(x), 5) for x in logits[ids]])


def _deviation(engine: Engine, given: GoldenInput, tops: Sequence[TopLogits]) -> float:
    """Largest distance between the logits of an answer, given by the best of each step, and those of steps of two
    rows."""
    answer = [top.ids[0] for top in tops]
    cache = _new_cache(engine, given, len(given.prompt_ids) + len(answer) + 1)
    cache.exact = cache.states is None  # a token that fills a step up cannot be taken out of a state
    groups, random = engine.bundle.manifest.groups, np.random.default_rng(0)
    if cache.cross is not None and any(group.method.startswith("rows") for group in groups):
        _round([part for pair in cache.cross.buffers for part in pair], random)
    deviation = _distance(engine.step(cache, np.array(given.prompt_ids, np.int64))[0], tops[0])
    if any(group.block_size and not group.method.startswith("rows") for group in groups):
        rows = [part[:, :, : cache.length] for pair in cache.buffers for part in pair if part.size]
        states = [] if cache.states is None else [buffer.array for buffer in cache.states.part().values()]
        _round([*rows, *states], random)
    for token, top in zip(answer, tops[1:], strict=False):
        deviation = max(deviation, _distance(engine.step(cache, np.array([token], np.int64))[0], top))
    return deviation


def _round(parts: Iterable[NDArray[Any]], random: np.random.Generator) -> None:
    """Change keys, values and states, in place, by as much as rounding activations to 8 bits does."""
    for part in parts:
        size = ROUNDING * float(np.sqrt(np.square(part).mean()))
        part += size * random.standard_normal(part.shape, np.float32)
