"""Beam search as a tree in one KV cache: the beams are the rows of one step, and what they share is kept once.

The rules are those of transformers 5 (`GenerationMixin._beam_search`), so that the same model gives the same texts.
Diverse beam search (Vijayakumar et al. 2016) follows transformers 4 (`transformers-community/group-beam-search`), which
differs in two rules, see `_Group`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.decode import rules
from edge.runtime.decode.answer import FinishReason
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.branches import Branches, Made
from edge.runtime.decode.rules.rule import Lowering, Processor, RuleSettings
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.failures import check_finite
from edge.runtime.engine.want import LOGITS, Likeliest, Ranked
from edge.runtime.largest import largest
from edge.runtime.limits import PREFILL_CHUNK

Found = tuple[float, int, int]
"""The score of a text that goes on, which text that is, and its next token."""
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Hypothesis:
    """A text that a search found.

    token_ids: after the prompt, with the end token. score: the log probability, as `diversity` and processors changed
    it, divided by the length to the power of the length penalty. finish_reason: ``stop``: an end token; ``length``:
    max_tokens; ``context``: the cache is full; ``interrupted``.
    """

    token_ids: list[int]
    score: float
    log_probability: float
    finish_reason: FinishReason


@dataclass(frozen=True)
class Candidate:
    """One of the n best outputs.

    score ranks them: the log probability over the length to the power of the length penalty.
    """

    text: str
    score: float
    log_probability: float
    token_ids: list[int] = field(repr=False)
    finish_reason: FinishReason


def beam_search(
    engine: Engine,
    cache: KVCache,
    prompt: Sequence[int] | NDArray[np.int64],
    options: BeamOptions,
    *,
    eos: Collection[int],
    processors: Sequence[Processor] = (),
    forced: int = 0,
) -> list[Hypothesis]:
    """Find the `options.n_best` most likely texts after `prompt`, the best first; see `search`."""
    found = list[Hypothesis]()
    for _ in search(engine, cache, prompt, options, found, eos=eos, processors=processors, forced=forced):
        pass
    return found


def new_cache(engine: Engine, prompt_tokens: int, options: BeamOptions, cross: Cross | None = None) -> KVCache:
    """A cache in which no search for texts after such a prompt runs out of room; InputError for more beams than were
    planned. It may have more rows than the engine's context, which limits positions: parallel branches share those."""
    if engine.plan is not None and options.beams > engine.plan.demand.branches:
        raise InputError(
            f"Memory was planned for {engine.plan.demand.branches} beams, not for {options.beams}; name them when the "
            "bundle is loaded, or take fewer."
        )
    return engine.make_cache(prompt_tokens + options.beams * options.max_tokens, cross)


def search(
    engine: Engine,
    cache: KVCache,
    prompt: Sequence[int] | NDArray[np.int64],
    options: BeamOptions,
    found: list[Hypothesis],
    *,
    eos: Collection[int],
    processors: Sequence[Processor] = (),
    forced: int = 0,
    source: Sequence[int] = (),
) -> Iterator[int]:
    """Search step by step: yields the tokens of the best text, each as soon as it is certain because all possible texts
    go on with it, and the others in the end.

    Args:
        cache: `new_cache` makes one; what is in it already comes before the prompt.
        prompt: [P], P >= 1: what the decoder begins with.
        found: is given what `beam_search` returns, before the last tokens are yielded.
        eos: tokens that end a text.
        processors: change the log probabilities, in this order.
        forced: how many of the last prompt tokens count towards a text's length: those that transformers generates by
            force (`forced_bos_token_id`).
        source: what the encoder read: a text may repeat what repeats there.
    """
    if not engine.takes_trees:
        raise InputError("This bundle's decoder takes one text at a time, so that no beams can be searched with it.")
    prompt = np.asarray(prompt, np.int64)
    cache.prompt = cache.length + len(prompt)
    cache.ends = min(cache.capacity, cache.prompt + options.max_tokens)
    groups = [_Group(prompt.tolist(), options, frozenset(eos), forced, source) for _ in range(options.groups)]
    run: Callable[..., Made] = engine.step
    if engine.ranks and len(groups) == 1 and not processors:  # else others are needed than the likeliest
        vocab = engine.bundle.manifest.dims.vocab_size
        likeliest = Likeliest(min(groups[0].candidates, vocab))

        def ranked(*given: Any, **more: Any) -> Made:  # out of a circle others than the likeliest lead
            return engine.step(*given, want=LOGITS if groups[0].lowers else likeliest, **more)

        run = ranked
    for start in range(0, len(prompt), PREFILL_CHUNK):
        made = run(cache, prompt[start : start + PREFILL_CHUNK])
    branches = Branches(run, cache, options.beams)
    certain = 0
    reason: FinishReason = "length"
    while True:
        if options.interrupted():
            reason = "interrupted"
            break
        if isinstance(made, Ranked):
            check_finite(made.logarithms[:, 0])
            groups[0].extend(groups[0].among(made))
        else:
            _extend(groups, made, processors, options.diversity)
        growing = [group for group in groups if not group.done]
        if not growing:
            break
        new = _certain(groups, certain)
        certain += len(new)
        yield from new
        stepped = branches.step(*_join(growing))
        if stepped is None:
            reason = "context"
            break
        made = stepped
    for group in groups:
        if not group.done:
            group.cut(reason)
    ended = sorted((text for group in groups for text in group.ended), key=lambda text: -text.score)
    found += ended[: options.n_best]
    yield from ended[0].token_ids[certain:]


def _extend(
    groups: Sequence[_Group], logits: NDArray[np.float32], processors: Sequence[Processor], diversity: float
) -> None:
    """Let every group choose by the log probabilities of logits [S, V], which are overwritten, as processors and
    earlier groups change them."""
    scores = _log_softmax(logits)
    taken: list[int] = []  # by earlier groups, at this place
    for group in groups:
        if group.done:
            continue
        own = scores if len(groups) == 1 else scores[group.leaves]  # [n, V]
        if processors:
            texts = np.array(group.texts, np.int64)
            for process in processors:
                process(texts, own)
        for token in taken:
            own[:, token] -= np.float32(diversity)
        group.extend(group.best(own))
        taken += group.tokens


class _Group:
    """The beams of one group: their texts so far, prompt included, and the best of those that ended.

    `leaves` are the rows of the last step's logits that belong to its n beams; `parents` and `tokens` say which of
    those rows are continued with which tokens. Lists of so few beams take a third of the time of small arrays.

    Two rules differ between one search and several groups, as they do between transformers 5 and its group search.
    At the limit of tokens, texts that go on compete with those that end there, or come after them. And what may yet be
    reached is judged by the best beam that goes on, or by the best candidate, whether it goes on or not.
    """

    def __init__(
        self, prompt: list[int], options: BeamOptions, eos: frozenset[int], forced: int, source: Sequence[int]
    ) -> None:
        self._options = options
        self._grouped = options.groups > 1
        self._width = options.beams // options.groups
        self.candidates = max(2, 1 + len(eos)) * self._width  # so that enough of them do not end
        self._eos = eos
        self.start = self.length = len(prompt)
        self._uncounted = len(prompt) - forced
        self._limit = len(prompt) + options.max_tokens
        self.texts = [prompt]
        lowering = rules.make_lowering(RuleSettings(options, source=source))
        self._lowerings = [] if lowering is None else [lowering]  # of the texts
        self.scores = [0.0]  # log probabilities of the texts
        self.leaves = [0]
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self.ended: list[Hypothesis] = []  # the best first, at most as many as the group has beams
        self.done = False

    @property
    def lowers(self) -> bool:
        """True if a rule lowers the scores of tokens that may follow a text."""
        return any(rule.losses for rule in self._lowerings)

    def best(self, scores: NDArray[np.float32]) -> list[Found]:
        """Return the best continuations of the texts by the scores of all tokens [n, V], which are overwritten."""
        for beam, rule in enumerate(self._lowerings):
            for token, loss in rule.losses.items():
                scores[beam, token] -= np.float32(loss)
        scores += np.array(self.scores, np.float32)[:, None]
        return _best(scores, self.candidates)

    def among(self, likeliest: Ranked) -> list[Found]:
        """Return the best continuations of the texts by the likeliest tokens after each, the same ones as `best`
        does."""
        logarithms, tokens = (each.tolist() for each in likeliest)
        found = [
            (score + value, beam, token)
            for beam, score in enumerate(self.scores)
            for value, token in zip(logarithms[beam], tokens[beam], strict=True)
        ]
        found.sort(key=itemgetter(0), reverse=True)  # of equals the first one stays first
        return found[: self.candidates]

    def extend(self, found: Sequence[Found]) -> None:
        """Choose the continuations of the texts from the best ones that were found."""
        if not found:  # every token is forbidden
            self.cut("length")
            return
        last = self.length + 1 == self._limit
        chosen: list[tuple[float, int, int]] = []
        for rank, (value, beam, token) in enumerate(found):
            ends = token in self._eos
            if not ends and (self._grouped or not last):
                if len(chosen) < self._width:
                    chosen.append((value, beam, token))
            elif rank < self._width:
                self._add([*self.texts[beam][self.start :], token], value, "stop" if ends else "length")
        self.texts = [[*self.texts[beam], token] for _, beam, token in chosen]
        if self._lowerings:
            self._lowerings = _followed(self._lowerings, [(beam, token) for _, beam, token in chosen])
        self.tokens = [token for _, _, token in chosen]
        self.parents = [self.leaves[beam] for _, beam, _ in chosen]
        self.scores = [value for value, _, _ in chosen]
        self.length += 1
        self.done = not chosen or self._cannot_improve(found[0][0] if self._grouped else self.scores[0])
        if last and not self.done:
            self.cut("length")

    def _cannot_improve(self, best: float) -> bool:
        options = self._options
        if len(self.ended) < self._width:
            return False
        if options.early_stopping is True:
            return True
        far = options.early_stopping == "never" and options.length_penalty > 0
        return self._score(best, self._limit if far else self.length) <= self.ended[-1].score

    def cut(self, reason: FinishReason) -> None:
        """End all texts that go on, for this reason."""
        for text, score in zip(self.texts, self.scores, strict=True):
            self._add(text[self.start :], score, reason)
        self.done = True

    def _add(self, tokens: list[int], value: float, reason: FinishReason) -> None:
        score = self._score(value, self.start + max(1, len(tokens)))
        self.ended.append(Hypothesis(tokens, score, value, reason))
        self.ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self.ended[self._width :]

    def _score(self, log_probability: float, length: int) -> float:
        score: float = log_probability / float(length - self._uncounted) ** self._options.length_penalty
        return score


def _followed(before: Sequence[Lowering], chosen: Iterable[tuple[int, int]]) -> list[Lowering]:
    """A rule in each text that is one of those `before`, by its place there, and a token. The first that continues a
    text takes over what followed that one, so that little is copied."""
    found, tokens, taken = list[Lowering](), list[int](), set[int]()
    for place, token in chosen:
        found.append(before[place].copy() if place in taken else before[place])
        tokens.append(token)
        taken.add(place)
    for rule, token in zip(found, tokens, strict=True):
        rule.push(token)
    return found


def _join(groups: Sequence[_Group]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return the rows of the last step that go on, and the token after each. Groups that found the same text share a
    row."""
    if len(groups) == 1:
        (group,) = groups
        group.leaves = list(range(len(group.tokens)))
        return np.array(group.parents, np.intp), np.array(group.tokens, np.int64)
    rows: dict[tuple[int, int], int] = {}
    for group in groups:
        pairs = zip(group.parents, group.tokens, strict=True)
        group.leaves = [rows.setdefault(pair, len(rows)) for pair in pairs]
    parents, tokens = zip(*rows, strict=True)
    return np.array(parents, np.intp), np.array(tokens, np.int64)


def _certain(groups: Sequence[_Group], known: int) -> list[int]:
    """Return the common next tokens of all texts that may still be the best, after the first `known` ones of the
    output."""
    texts = [text[group.start + known :] for group in groups if not group.done for text in group.texts]
    certain = texts[0][: _same(texts)]
    if ended := [group.ended[0] for group in groups if group.ended]:
        best = max(ended, key=lambda text: text.score).token_ids[known:]
        certain = certain[: _same([certain, best])]
    return certain


def _same(texts: Sequence[list[int]]) -> int:
    """Number of tokens that are the same at the beginning of all texts."""
    count = 0
    for tokens in zip(*texts, strict=False):
        if tokens.count(tokens[0]) < len(tokens):
            break
        count += 1
    return count


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn logits [S, V] into log probabilities in place."""
    best = logits.max(axis=1, keepdims=True)
    check_finite(best)
    logits -= best
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def _best(scores: NDArray[np.float32], count: int) -> list[Found]:
    """The `count` largest of the scores [n, V] that are not forbidden (-inf), in order: value, row and column."""
    vocab = scores.shape[1]
    values, places = largest(scores.reshape(-1), min(count, scores.size))
    found = zip(values.tolist(), places.tolist(), strict=True)
    return [(value, place // vocab, place % vocab) for value, place in found if value >= LOWEST]
