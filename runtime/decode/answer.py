"""One answer as it streams: tokens become pieces of text until something ends it, and the clock runs along."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edge.errors import BundleError, InputError
from edge.runtime.decode.answer_text import AnswerText
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import PLAIN, Drafts, generate
from edge.runtime.decode.sampling import RANDOM, Sampler, SamplingOptions, make_sampler
from edge.runtime.decode.thoughts import CLOSING, THINK_TOKENS, Closing
from edge.runtime.memory.process import MB, held
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.engine.cache import KVCache
    from edge.runtime.engine.engine import Engine
    from edge.runtime.engine.prefixes import Prefixes
    from edge.runtime.memory.shares import Shares
    from edge.runtime.speculate.speculation import Figures, Speculation

LONGEST_TOKEN = 256  # characters: of the vocabularies in use none has a token of more than 128
ANSWER_TOKENS = 512  # most tokens of an answer, without its thoughts, where nobody says how many

FinishReason = Literal["stop", "length", "context", "interrupted"]
"""``stop``: an end token or a stop string; ``length``: max_tokens; ``context``: the KV cache is full;
``interrupted``: the caller asked to end it."""


@dataclass
class Timings:
    """Times and counts of one answer. All of its pieces share one object, which each piece updates."""

    prompt_tokens: int
    cached_tokens: int = 0  # of the prompt: those that an earlier text had, whose keys and values were there
    generated_tokens: int = 0
    ttft_ms: float | None = None  # from asking to the first token
    prefill_s: float = 0.0
    decode_s: float = 0.0  # after the first token
    forced_tokens: int = 0  # which were the only ones that a form allowed, and ran together in one step
    speculation: Figures | None = None  # where drafts were verified
    simulated: bool = False  # the device, by a provider: its times are no figures, and results have none
    together: bool = False  # tokens of beams, or of one of several answers: they come together, and there is no rate

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens run per second, those from the cache not counted; None before the first token, without any."""
        run = 0 if self.simulated or self.together else self.prompt_tokens - self.cached_tokens
        return run / self.prefill_s if run and self.prefill_s else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second after the first one; None where there was no second, and of beams."""
        known = self.decode_s and not (self.simulated or self.together)
        return (self.generated_tokens - 1) / self.decode_s if known else None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: the text that one token adds.

    `text` is empty while a character or a possible stop string is not complete. `token_id` is None where no token
    belongs to it: the last piece of an answer that was interrupted. `finish_reason` is set on the last piece alone.
    `thoughts` is the text of the model's thoughts, which is not in `text`; None where the token is not one of them.
    """

    text: str
    token_id: int | None
    finish_reason: FinishReason | None
    timings: Timings
    thoughts: str | None = None


@dataclass(frozen=True)
class Result:
    """A whole answer. `token_ids` are all tokens sampled, an end token and those of a stop string and of thoughts
    included. `thoughts` is what the model thought before; None where it did not think."""

    text: str
    token_ids: list[int] = field(repr=False)
    prompt_tokens: int
    generated_tokens: int
    ttft_ms: float | None
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    peak_private_mb: float | None  # MB (10**6 bytes) of the process so far: see `edge.runtime.memory.process.held`
    peak_rss_mb: float | None
    finish_reason: FinishReason
    forced_tokens: int = 0  # see `Timings`
    speculation: dict[str, Any] | None = None  # the fields of `Figures`, and `accepted_per_step`
    thoughts: str | None = None


def own(options: GenerateOptions | None) -> GenerateOptions:
    """Check that options are for a decoder's answer, and return them; None gives the defaults.

    Raises:
        InputError: they are those of another kind of model, half of which would mean nothing.
    """
    if options is None:
        return GenerateOptions()
    if not isinstance(options, GenerateOptions):
        raise InputError(f"Answers of a decoder are shaped by GenerateOptions, not by {type(options).__name__}.")
    return options


def settled(options: GenerateOptions, manifest: Manifest, *, raw: bool = False) -> GenerateOptions:
    """Return the options with the values that the model's makers set for chats where an option is not set and the
    prompt is not raw.

    Raises:
        InputError: options that do not go together, or with a model that cannot think.
    """
    if (raw or manifest.thinking is None) and (options.think or (options.think_tokens, options.effort) != (None, None)):
        why = "a raw prompt has none" if raw else "this model's chat template and vocabulary have no marks for them"
        raise InputError(f"Options are about thoughts, and {why}; leave these options out.")
    if manifest.thinking is not None and not raw and options.form is not None:
        if options.think:
            raise InputError("An answer in a given form has no thoughts before it; leave out one of the two.")
        options = replace(options, think=False)
    return options.settled(None if raw or manifest.chat_template is None else manifest.generation)


def check_length(characters: int, tokens: int) -> None:
    """Raise InputError for a text with more characters than `tokens` tokens can have, before the tokenizer works on it
    for minutes."""
    if characters > LONGEST_TOKEN * tokens:
        raise InputError(
            f"The text has {characters:,} characters, which cannot fit into {tokens:,} tokens; shorten it or split it."
        )


def check_prompt(prompt: Sequence[int], engine: Engine, advice: str) -> None:
    """Raise InputError where a prompt does not fit into the engine's context; BundleError where it has tokens that the
    model does not have. advice: how to shorten it, for the message."""
    manifest = engine.bundle.manifest
    check_tokens(prompt, manifest)
    if len(prompt) > engine.context:
        what = "raise the context" if engine.plan is None else "raise the memory or the context"
        raise InputError(
            f"The prompt has {len(prompt)} tokens and the context holds {engine.context} (the bundle allows up to "
            f"{manifest.context}); {advice} or {what}."
        )


def check_tokens(tokens: Sequence[int], manifest: Manifest) -> None:
    """Raise BundleError where a token has no embedding in the model."""
    vocab = manifest.dims.vocab_size
    if not 0 <= min(tokens) <= max(tokens) < vocab:  # a text has one token at least: see `Text`
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise BundleError(
            f"The tokenizer of {manifest.name} gives the token {wrong}, and its model has {vocab}, counted from 0; "
            "export the model again."
        )


def answer(
    engine: Engine,
    text: Text,
    cache: KVCache,
    prompt: list[int],
    options: GenerateOptions,
    *,
    chunk: int,
    started_ns: int,
    speculation: Speculation | None = None,
    block: Block | None = None,
    shares: Shares | None = None,
    prefixes: Prefixes | None = None,
) -> Generator[Piece, None, None]:
    """Stream the answer to `prompt`, whose first `cache.length` tokens are in the cache already.

    Args:
        chunk: most prompt tokens to run in one step.
        started_ns: `time.perf_counter_ns()` when the answer was asked for.
        speculation: what drafts, where anything does.
        block: of thoughts, where the answer may begin with some.
        shares: of a memory limit, of which the answer takes one; a chat does that by itself.
        prefixes: texts that the prompt may begin like, one of which the answer becomes; a chat does that by itself.
    """
    timings = Timings(len(prompt), cache.length, simulated=engine.provider.simulated)
    # What is drawn anew every time has no text to keep to.
    cache.exact = engine.pads and (not options.temperature or options.seed != RANDOM)
    ends = ends_of(options, cache.capacity - len(prompt) + 1, block)  # the last token is never run
    sampler = chooser(options, prompt, ends, block, text)
    drafts = forced(drafts_of(speculation, prompt, ends, text, options, timings), options, chunk, timings)

    def made() -> Generator[int, None, None]:
        new = np.asarray(prompt[cache.length :], np.int64)
        return generate(engine, cache, new, sampler, chunk=chunk, interrupted=options.interrupted, drafts=drafts)

    tokens = made() if prefixes is None else _known(prefixes, prompt, cache, timings, made)
    if shares is not None:
        assert engine.plan is not None
        tokens = shares.over(engine.plan.answer_bytes(cache.capacity), options.interrupted, tokens)
    return pieces(tokens, text, timings, ends, started_ns=started_ns, block=block)


def _known(
    prefixes: Prefixes,
    prompt: list[int],
    cache: KVCache,
    timings: Timings,
    make: Callable[[], Generator[int, None, None]],
) -> Generator[int, None, None]:
    """Yield the tokens of an answer, whose cache begins with what is known of the prompt. Afterwards its text is known,
    unless an error ended it."""
    timings.cached_tokens = prefixes.begin(prompt, cache)
    said: list[int] = []
    tokens = make()
    try:
        for token in tokens:
            said.append(token)
            yield token
    except GeneratorExit:
        tokens.close()
        prefixes.leave([*prompt, *said][: cache.length], cache, prefixes.whole(len(prompt)))
        raise
    prefixes.leave([*prompt, *said][: cache.length], cache, prefixes.whole(len(prompt)))


def chooser(options: GenerateOptions, prompt: Sequence[int], ends: Ends, block: Block | None, text: Text) -> Sampler:
    """Return the sampler of an answer to `prompt`; without a form it closes thoughts at their maximum length, too."""
    if options.form is not None:
        from edge.runtime.decode.grammar import formed

        return formed(options, prompt, text)
    sampler = make_sampler(options, prompt)
    return sampler if block is None or ends.closes is None else Closing(sampler, block, text, ends.closes)


def ends_of(options: GenerateOptions, room: int, block: Block | None) -> Ends:
    """Return the limits of an answer, for which the context has room for `room` tokens."""
    if block is None or block.closed:
        return Ends(options.stop, options.max_tokens or ANSWER_TOKENS, room)
    if options.max_tokens is not None:
        return Ends(options.stop, options.max_tokens, room, closes=options.think_tokens)
    # As many whether the room is the context's, or that of a cache for as many tokens as come of it.
    most = min(THINK_TOKENS, max(room - ANSWER_TOKENS - CLOSING, room * 3 // 4))
    closes = most if options.think_tokens is None else options.think_tokens
    return Ends(options.stop, ANSWER_TOKENS, room, closes + CLOSING, closes)


def drafts_of(
    speculation: Speculation | None,
    prompt: Sequence[int],
    ends: Ends,
    text: Text,
    options: SamplingOptions,
    timings: Timings,
    source: Sequence[int] = (),
) -> Drafts:
    """The drafts of an answer to `prompt`, or of its rest, whose figures go with the `timings`, and go on where they
    have some. source: see `AnswerDrafts`."""
    if speculation is None:
        return PLAIN
    most, drawn = ends.most, bool(options.temperature)
    drafts = speculation.drafts(prompt, most, ends=text.eos, drawn=drawn, source=source, figures=timings.speculation)
    timings.speculation = drafts.figures
    return drafts


def forced(drafts: Drafts, options: GenerateOptions, chunk: int, timings: Timings) -> Drafts:
    """The drafts of an answer, with those of its form where it keeps to one: see `Forced`."""
    if options.form is None:
        return drafts
    from edge.runtime.decode.forced import Forced

    return Forced(drafts, chunk, timings)


@dataclass(frozen=True)
class Ends:
    """Conditions that end an answer, besides an end token: stop strings, the maximum number of tokens, and the
    context's room.

    more: tokens of thoughts that do not count towards `max_tokens`. closes: tokens after which thoughts are closed.
    """

    stop: Sequence[str]
    max_tokens: int
    room: int
    more: int = 0
    closes: int | None = None

    @property
    def most(self) -> int:
        """Tokens that an answer may have, its thoughts included."""
        return min(self.max_tokens + self.more, self.room)

    def reached(self, tokens: int, thoughts: int = 0) -> FinishReason | None:
        """Return the reason why an answer of `tokens` tokens, `thoughts` of them of thoughts, has ended; None: it may
        go on."""
        if tokens - min(thoughts, self.more) == self.max_tokens:
            return "length"
        return "context" if tokens == self.room else None


def pieces(
    tokens: Iterable[int],
    text: Text,
    timings: Timings,
    ends: Ends,
    *,
    started_ns: int,
    block: Block | None = None,
) -> Generator[Piece, None, None]:
    """Turn tokens, as they come, into pieces of text until something ends the answer. If the tokens run out before, the
    answer was interrupted."""
    whole = AnswerText(text, ends, block)
    resumed = time.perf_counter_ns()
    for token in tokens:
        _clock(timings, started_ns, resumed)
        said = whole.push(token)
        if said.finish is not None:
            held()  # the peak, while the KV cache is there
            yield Piece(said.text, token, said.finish, timings, said.thoughts)
            return
        yield Piece(said.text, token, None, timings, said.thoughts)
        resumed = time.perf_counter_ns()
    said = whole.flush()
    yield Piece(said.text, None, "interrupted", timings, said.thoughts)


def _clock(timings: Timings, started_ns: int, resumed_ns: int) -> None:
    """Count a token that just came, after the loop went on at `resumed_ns`: the caller's own time is left out."""
    now = time.perf_counter_ns()
    if timings.generated_tokens == 0:
        timings.ttft_ms = (now - started_ns) / 1e6
        timings.prefill_s = (now - resumed_ns) / 1e9
    else:
        timings.decode_s += (now - resumed_ns) / 1e9
    timings.generated_tokens += 1


def collect(pieces: Iterable[Piece]) -> Result:
    """Run an answer to its end and return it whole."""
    text: list[str] = []
    thoughts: list[str] = []
    ids: list[int] = []
    for piece in pieces:
        text.append(piece.text)
        if piece.thoughts is not None:
            thoughts.append(piece.thoughts)
        if piece.token_id is not None:
            ids.append(piece.token_id)
    assert piece.finish_reason is not None
    whole = "".join(thoughts) if thoughts else None
    return result("".join(text), ids, piece.finish_reason, piece.timings, whole)


def whole(tokens: Iterable[int], text: Text, timings: Timings, ends: Ends, *, started_ns: int) -> Result:
    """Run an answer to its end and return the result of `collect` on its `pieces`, faster: the text is decoded once and
    not with every token, which was a fifth of the time of a small translator's sentences."""
    if ends.stop:
        return collect(pieces(tokens, text, timings, ends, started_ns=started_ns))
    ids: list[int] = []
    finish: FinishReason | None = None
    eos = text.eos
    resumed = time.perf_counter_ns()
    for token in tokens:
        if not ids:
            _clock(timings, started_ns, resumed)
            resumed = time.perf_counter_ns()
        ids.append(token)
        finish = "stop" if token in eos else ends.reached(len(ids))
        if finish is not None:
            break
    if ids:
        timings.generated_tokens = len(ids)
        timings.decode_s = (time.perf_counter_ns() - resumed) / 1e9
    return result(text.decode(ids), ids, finish or "interrupted", timings)


def result(text: str, ids: list[int], finish: FinishReason, timings: Timings, thoughts: str | None = None) -> Result:
    """Make the result of an answer, with the memory that the process has now."""
    memory = held()
    return Result(
        text=text,
        token_ids=ids,
        prompt_tokens=timings.prompt_tokens,
        generated_tokens=timings.generated_tokens,
        ttft_ms=None if timings.simulated else timings.ttft_ms,
        decode_tokens_per_s=timings.decode_tokens_per_s,
        prefill_tokens_per_s=timings.prefill_tokens_per_s,
        peak_private_mb=None if memory is None else memory.peak_private / MB,
        peak_rss_mb=None if memory is None else memory.peak_rss / MB,
        finish_reason=finish,
        forced_tokens=timings.forced_tokens,
        speculation=None if timings.speculation is None else timings.speculation.summary(),
        thoughts=thoughts,
    )
