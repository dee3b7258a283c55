"""Golden answers: recorded at export, replayed by any host to prove that it computes what the exporter computed.

A replay is forced along the recorded tokens: after every step the recorded token is fed, whatever the host itself
chooses, so that the steps after a difference are still comparable.

Two right hosts differ in the last bits of a logit, and rounding activations to 8 bits amplifies that. So the recorder
answers a second time with its kernels for two rows, and with keys and values changed by as much as that rounding does
where products do it; the tolerance is a multiple of how far the two answers part. What is compared are distances
between two of the best logits: a shift common to all changes no probability. Another token whose logit lies within the
tolerance is a near-tie; many near-ties are a fault.

Trees and the graph that skips compute what the decoder's graph does, and replay its answers. The int8 prefill graph and
the one over a KV cache in int8 round otherwise: what they say along the same answers is recorded too, with the distance
of their logits from the decoder's as the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import GOLDEN, Bundle
from edge.errors import BundleError
from edge.manifest import FLOAT32, INT8, KV8, SKIP, Manifest
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.tree import BLOCKED, Tree
from edge.runtime.engine.variant import DECODER, PREFILL, TREE, Variant
from edge.runtime.load import make_engine
from edge.runtime.providers import AUTO
from edge.runtime.providers.base import Provider
from edge.targets import TARGETS, target_for
from edge.typed_json import typed

TOP = 5
MARGIN = 2.0  # tolerance as a multiple of the largest difference between the recorder's own kernels
MIN_TOLERANCE = 1e-3
ROUNDING = 0.01  # by which rounding activations to 8 bits changes keys and values, in multiples of their size (RMS)
MAX_TOLERANCE = 32.0  # exports wrote up to 2.9 (SmolLM2-135M, 4 bits); one this much larger lets anything pass
MAX_CASES, MAX_TOKENS, MAX_TOP = 256, 1 << 16, 64  # of all cases together, and of a step; exports write 4, 400 and 5
MAX_LOGIT = 1e30  # a float32 holds it, and distances between two
MOST_BYTES = 16 << 20  # of the file
MAX_NEAR_TIES = 1 / 8  # of all tokens; the two kernels of the recorder had 1 in 46 (SmolLM2-135M, 8 bits)


@dataclass(frozen=True)
class TopLogits:
    """The best tokens of one step, best first, and their logits."""

    ids: list[int]
    logits: list[float]


@dataclass(frozen=True)
class FormCase:
    """What a graph says along a recorded answer: its own best token of each step, and the logits of two."""

    ids: list[int]
    first: TopLogits
    last: TopLogits

    def at(self, step: int) -> TopLogits | None:
        """The logits that were recorded of a step; None of most."""
        return {0: self.first, len(self.ids) - 1: self.last}.get(step)

    def fits(self, tokens: int, vocab: int) -> bool:
        """Whether it is a record of this many tokens, at least one, of a vocabulary."""
        tops = self.first, self.last
        return (
            len(self.ids) == tokens > 0
            and all(0 < len(top.ids) == len(top.logits) <= MAX_TOP for top in tops)
            and all(abs(logit) <= MAX_LOGIT for top in tops for logit in top.logits)
            and all(0 <= token < vocab for token in (*self.ids, *self.first.ids, *self.last.ids))
        )


@dataclass(frozen=True)
class GoldenCase:
    """One prompt and its greedy answer, with the steps that chose its first and last token. An encoder-decoder's prompt
    is what its decoder begins with; its input is `source_ids`, or `noise(source_seed)` where it reads audio."""

    prompt_ids: list[int]
    greedy_ids: list[int]
    first: TopLogits
    last: TopLogits
    source_ids: list[int] = field(default_factory=list)
    source_seed: int | None = None
    date: str | None = None  # YYYY-MM-DD that the chat template told the model, where it does

    @property
    def own(self) -> FormCase:
        """What the decoder's own graph says."""
        return FormCase(self.greedy_ids, self.first, self.last)


@dataclass(frozen=True)
class GoldenForm:
    """What a graph that rounds otherwise says along the answers of all cases."""

    role: str
    tolerance: float
    cases: list[FormCase]


@dataclass(frozen=True)
class Golden:
    """The content of `golden.json`."""

    recorder: str
    tolerance: float  # by how much the distance between two of a step's best logits may differ
    cases: list[GoldenCase]
    forms: list[GoldenForm]  # of graphs that round otherwise

    def form(self, role: str) -> GoldenForm:
        """What the graph with this role should say: what was recorded of it, or of the decoder."""
        own = GoldenForm(role, self.tolerance, [case.own for case in self.cases])
        return next((form for form in self.forms if form.role == role), own)


@dataclass
class GoldenReport:
    """What a replay found. `faults` are sentences; `near_ties` are too, and do not make the bundle wrong."""

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
    """What a golden answer is recorded for; see `GoldenCase`."""

    prompt_ids: list[int]
    source_ids: list[int] = field(default_factory=list)
    source_seed: int | None = None
    date: str | None = None


def roles(bundle: Bundle, provider: str = AUTO) -> list[str]:
    """The graphs that a run could take to answer with, the decoder's own first; or those for the provider's device, by
    their target's name, where the bundle has some."""
    target, manifest = target_for(bundle, provider), bundle.manifest
    if target is not None:
        return [target]
    there = {graph.role for graph in manifest.graphs}
    if manifest.prefill is not None and not manifest.prefill.known:
        there.remove(PREFILL)
    return [DECODER, *(role for role in (PREFILL, KV8, TREE, SKIP) if role in there)]


def open_role(
    bundle: Bundle,
    role: str,
    *,
    context: int | None = None,
    threads: int | None = None,
    provider: str | Provider = AUTO,
) -> Engine:
    """An engine for the graph with this role, or for this target; BundleError where the graph cannot be loaded."""
    if role in TARGETS:
        return make_engine(bundle, Variant(target=role, context=context), provider, threads)
    policy = None
    if role == SKIP:
        from edge.runtime.skip.base import AllLayers

        policy = AllLayers(bundle)
    kv, graph = INT8 if role == KV8 else FLOAT32, DECODER if role == PREFILL else role
    return make_engine(bundle, Variant(graph, kv, role == PREFILL, policy, context=context), provider, threads)


def record_golden(engine: Engine, inputs: Sequence[GoldenInput], tokens: int = 24) -> Golden:
    """For each input its greedy answer of `tokens` tokens, past any end token, and the top logits of the first and last
    step. A prompt and its answer must fit in the engine's context.
    """
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
    """What the graph with this role, which rounds otherwise, says along the recorded answers."""
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


def read_golden(bundle: Bundle) -> Golden:
    """The bundle's golden answers; BundleError where the file cannot be read, or is not what `record_golden` writes."""
    raw, path = bundle.read_json(GOLDEN, MOST_BYTES)
    golden, manifest = typed(raw, Golden, path), bundle.manifest
    vocab, advice = manifest.dims.vocab_size, "export the model again."
    if not golden.cases:
        raise BundleError(f"{path} has no recorded answers; {advice}")
    if len(golden.cases) > MAX_CASES or sum(map(_tokens_of, golden.cases)) > MAX_TOKENS:
        raise BundleError(
            f"{path} has more than {MAX_CASES} recorded answers, or {MAX_TOKENS} tokens of them, which no export "
            f"records; {advice}"
        )
    for i, case in enumerate(golden.cases):
        known = all(0 <= token < vocab for token in (*case.prompt_ids, *case.source_ids))
        if not case.prompt_ids or not known or not case.own.fits(len(case.greedy_ids), vocab):
            raise BundleError(f"{path}: cases[{i}] is no recorded answer of this model; {advice}")
        if len(case.prompt_ids) + len(case.greedy_ids) > manifest.context or not _is_source(case, manifest):
            raise BundleError(f"{path}: cases[{i}] is longer than this model takes, or no input of it; {advice}")
    for form in golden.forms:
        sizes = [len(case.greedy_ids) for case in golden.cases]
        if len(form.cases) != len(sizes) or not all(map(FormCase.fits, form.cases, sizes, repeat(vocab))):
            where = f"{path}: forms {form.role[:60]!r}"
            raise BundleError(f"{where} is no record of this model's answers; {advice}")
    for tolerance in (golden.tolerance, *(form.tolerance for form in golden.forms)):
        if not 0 <= tolerance <= MAX_TOLERANCE:
            raise BundleError(
                f"{path} tolerates that logits differ by {tolerance:g}, and at most {MAX_TOLERANCE:g} says anything of "
                f"a model; {advice}"
            )
    return golden


def _tokens_of(case: GoldenCase) -> int:
    return len(case.prompt_ids) + len(case.greedy_ids) + len(case.source_ids)


def _is_source(case: GoldenCase, manifest: Manifest) -> bool:
    """Whether a case has the input that this kind of model takes."""
    seed, ids, encoder = case.source_seed, len(case.source_ids), manifest.encoder
    if encoder is None:
        return seed is None and not ids
    if encoder.input == "audio":
        return seed is not None and 0 <= seed < 2**32 and not ids
    return seed is None and 1 <= ids <= encoder.max_length


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
        yield _branched(engine, cache, token) if role == TREE else engine.step(cache, token[None])[0]


def _branched(engine: Engine, cache: KVCache, token: np.int64) -> NDArray[np.float32]:
    """The logits [V] after `token`, which is in a tree twice; the tree's other branch is dropped."""
    length = cache.length
    bias = np.zeros((2, length + 2), np.float32)
    bias[[0, 1], [length + 1, length]] = BLOCKED  # neither sees the other
    tree = Tree(np.array([length, length]), bias)
    logits: NDArray[np.float32] = engine.step(cache, np.array([token, token]), np.array([0]), tree=tree)[0]
    cache.truncate(length + 1)
    return logits


def _new_cache(engine: Engine, given: GoldenInput | GoldenCase, capacity: int) -> KVCache:
    if engine.encoder is None:
        return engine.new_cache(capacity)
    if given.source_seed is None:
        return engine.new_cache(capacity, engine.encoder.encode_text(np.array(given.source_ids, np.int64)))
    return engine.new_cache(capacity, engine.encoder.encode_audio(noise(given.source_seed)))


def noise(seed: int, samples: int = 32_000) -> NDArray[np.float32]:
    """Audio that any host can make alike: a linear congruential generator's upper half words (Numerical Recipes'
    constants, modulo 2**32), as samples from -0.1 to 0.1."""
    state, words = seed, np.empty(samples, np.float32)
    for i in range(samples):
        state = (1664525 * state + 1013904223) % 2**32
        words[i] = state >> 16
    return (words - 32768) * np.float32(0.1 / 32768)


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
    """How far the logits of an answer, whose best of each step are given, differ from those of steps of two rows."""
    answer = [top.ids[0] for top in tops]
    cache = _new_cache(engine, given, len(given.prompt_ids) + len(answer) + 1)
    cache.exact = True
    groups, random = engine.bundle.manifest.groups, np.random.default_rng(0)
    if cache.cross is not None and any(group.method.startswith("rows") for group in groups):
        _round(cache.cross.buffers, random)
    deviation = _distance(engine.step(cache, np.array(given.prompt_ids, np.int64))[0], tops[0])
    if any(group.block_size and not group.method.startswith("rows") for group in groups):
        _round([(key[:, :, : cache.length], value[:, :, : cache.length]) for key, value in cache.buffers], random)
    for token, top in zip(answer, tops[1:], strict=False):
        deviation = max(deviation, _distance(engine.step(cache, np.array([token], np.int64))[0], top))
    return deviation


def _round(pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]], random: np.random.Generator) -> None:
    """Change keys and values, in place, by as much as rounding activations to 8 bits does."""
    for part in (part for pair in pairs for part in pair):
        size = ROUNDING * float(np.sqrt(np.square(part).mean()))
        part += size * random.standard_normal(part.shape, np.float32)
