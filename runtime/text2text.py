"""`Text2Text`: a loaded encoder-decoder that turns a text into another, greedily, drawn, or by beams."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import Generation, TextFormat
from edge.runtime import beam
from edge.runtime.answer import Ends, FinishReason, GenerateOptions, Piece, Result, Timings, never, pieces, whole
from edge.runtime.beam import BeamOptions, EarlyStopping, Hypothesis
from edge.runtime.cache import KVCache
from edge.runtime.draft_from_input import Experience, InputDraft, generate_from_draft
from edge.runtime.encoder import Cross
from edge.runtime.engine import Engine
from edge.runtime.generate import generate
from edge.runtime.languages import find_language
from edge.runtime.loading import Background
from edge.runtime.memory import release_freed
from edge.runtime.processors import ProcessedSampler, Processor, make_processors
from edge.runtime.sampling import Sampler, SamplingOptions, make_sampler
from edge.runtime.text import Text

DEFAULT_TOKENS = 512  # most tokens of an answer where neither the caller nor the bundle sets a limit


@dataclass(frozen=True)
class Text2TextOptions(SamplingOptions):
    """What shapes one output. None stands for what the bundle sets, from the checkpoint's own settings.

    Args:
        max_tokens: most tokens to generate; where nothing is set 512.
        min_tokens: fewest tokens before the output may end; 0: no such rule.
        stop: strings that end the output and are left out of it.
        beams: texts pursued at a time; 1: greedy, or drawn with a temperature.
        groups, diversity, length_penalty, early_stopping, n_best: see `edge.runtime.beam.BeamOptions`.
        no_repeat_ngram: no run of so many tokens occurs twice; 0: no such rule.
        draft_from_input: verify the input as a draft of the output, sooner done where the two resemble. The output is
            the same with float32 weights or an exact engine; else a near-tie may fall the other way.
        source_language, target_language: codes of a multilingual model, such as ``de``, ``de_DE`` or ``deu_Latn``.
        interrupted: asked before every step; the output ends once it says True.

    Raises:
        InputError: a value out of its range, or values that do not go together.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Sequence[str] = ()
    beams: int | None = None
    groups: int = 1
    diversity: float = 0.0
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    n_best: int = 1
    no_repeat_ngram: int | None = None
    draft_from_input: bool = False
    source_language: str | None = None
    target_language: str | None = None
    interrupted: Callable[[], bool] = never

    def __post_init__(self) -> None:
        super().__post_init__()
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", stop)
        GenerateOptions(max_tokens=1 if self.max_tokens is None else self.max_tokens, stop=stop)
        least = self.min_tokens or 0
        for name, value in (("fewest tokens", least), ("n-gram size", self.no_repeat_ngram or 0)):
            if value < 0:
                raise InputError(f"The {name} must be 0 or more, not {value}.")
        if self.max_tokens is not None and least > self.max_tokens:
            raise InputError(f"At least {least} and at most {self.max_tokens} tokens cannot both hold.")
        if self.beams is not None:
            self.beam_options(Generation(), 1)
        one = "are drawn" if self.temperature > 0 else "are taken from a draft" if self.draft_from_input else ""
        if one and max(self.beams or 1, self.groups, self.n_best) > 1:
            raise InputError(
                f"Tokens {one} for one text at a time, so that there are no beams, groups or n best texts."
            )

    def over(self, defaults: Generation) -> Generation:
        """The bundle's settings with what is set here in their place; lengths are not, which are counted otherwise."""
        one = self.temperature > 0 or self.draft_from_input
        given: dict[str, Any] = {
            "num_beams": self.beams if self.beams is not None or not one else 1,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
            "no_repeat_ngram_size": self.no_repeat_ngram,
            "repetition_penalty": self.repetition_penalty,
        }
        return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})

    def beam_options(self, defaults: Generation, max_tokens: int) -> BeamOptions:
        """How beams are searched, with the bundle's defaults in the place of what is not set."""
        settings = self.over(defaults)
        if settings.num_beams == 1 and not (self.length_penalty is None and self.early_stopping is None):
            raise InputError(
                "A length penalty and early stopping are for searches of several beams, and there is one; ask for 2 or "
                "more beams, or leave them out."
            )
        return BeamOptions(
            beams=settings.num_beams,
            groups=self.groups,
            diversity=self.diversity,
            length_penalty=settings.length_penalty,
            early_stopping=cast(EarlyStopping, settings.early_stopping),  # the manifest was checked
            n_best=self.n_best,
            max_tokens=max_tokens,
            interrupted=self.interrupted,
        )


UNSET = Text2TextOptions()


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


@dataclass(frozen=True)
class _Task:
    """One input, ready to run: everything that options and bundle decide about it."""

    source: list[int]  # the input's tokens as the encoder takes them
    bare: list[int]  # those of its text alone
    prompt: list[int]  # what the decoder begins with
    options: Text2TextOptions
    beam: BeamOptions
    ends: Ends
    processors: list[Processor]


class Text2Text:
    """An encoder-decoder for text in memory. `edge.load` makes one. Several threads may ask it at a time.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        text: its tokenizer.

    Raises:
        InputError: the bundle's model is not one from text to text.
    """

    def __init__(self, bundle: Bundle, engine: Engine | Background[Engine], text: Text) -> None:
        if bundle.manifest.text is None:
            raise InputError(f"{bundle.manifest.name} is not a model from text to text.")
        self.bundle = bundle
        self.text = text
        self._format: TextFormat = bundle.manifest.text
        self._defaults = bundle.manifest.generation or Generation()
        self._engine = engine
        self._spare: list[KVCache] = []  # of inputs that are done
        self._last: _Task | None = None

    @property
    def engine(self) -> Engine:
        """The engine, as soon as it has loaded."""
        engine = self._engine
        if isinstance(engine, Background):
            self._engine = engine = engine.result()
            release_freed()  # what reading the tokenizer and the graph took
        return engine

    @cached_property
    def _experience(self) -> Experience:
        """What drafts from inputs have taught so far."""
        return Experience(self.engine.costs)

    @property
    def languages(self) -> list[str]:
        """The codes of a multilingual model's languages."""
        return sorted(self._format.languages)

    def check(self, options: Text2TextOptions) -> None:
        """Raise InputError where options do not fit the model: before a text is there, and before the weights are."""
        options.beam_options(self._defaults, 1)
        self._prompt(options)
        if self._format.target_in_source and options.target_language is not None:
            find_language(self._format.languages, options.target_language, None, "target")
        if options.source_language is not None or self._format.source_at:
            self._source_language(options)

    def prompt_ids(self, text: str, options: Text2TextOptions | GenerateOptions | None = None) -> list[int]:
        """The token ids that the encoder would get for this text, as soon as the engine has loaded.

        Raises:
            InputError: the text is empty, or longer than the encoder takes in the memory that it may take, or a
                language that the model does not have.
        """
        source, _ = self._source(text, _own(options))
        self._check_length(source, self.engine)
        return source

    def stream(self, text: str, options: Text2TextOptions | GenerateOptions | None = None) -> Iterator[Piece]:
        """Turn a text into another, piece by piece as its tokens come; with beams, as they become certain.

        Raises:
            InputError: the text is empty or longer than the encoder takes, or an option that does not fit the model.
        """
        tokens, timings, ends, started = self._begin(text, _own(options), [])
        return pieces(tokens, self.text, timings, ends, started_ns=started)

    def generate(self, text: str, options: Text2TextOptions | GenerateOptions | None = None) -> Result:
        """Turn a text into another; see `stream`."""
        return self._whole(text, _own(options), [])

    def candidates(self, text: str, options: Text2TextOptions | GenerateOptions | None = None) -> list[Candidate]:
        """The `options.n_best` best outputs, the best first. Where there is one beam, one text and no score.

        Raises:
            InputError: see `stream`.
        """
        own, found = _own(options), list[Hypothesis]()
        result = self._whole(text, dataclasses.replace(own, stop=()), found)
        if not found:
            found = [Hypothesis(result.token_ids, math.nan, math.nan, result.finish_reason)]
        return [
            Candidate(
                _before(self.text.decode(each.token_ids), own.stop),
                each.score,
                each.log_probability,
                each.token_ids,
                each.finish_reason,
            )
            for each in found
        ]

    def _whole(self, text: str, options: Text2TextOptions, found: list[Hypothesis]) -> Result:
        """`generate`, which also leaves the texts that a beam search found in `found`."""
        tokens, timings, ends, started = self._begin(text, options, found)
        return whole(tokens, self.text, timings, ends, started_ns=started)

    def _begin(
        self, text: str, options: Text2TextOptions, found: list[Hypothesis]
    ) -> tuple[Iterator[int], Timings, Ends, int]:
        """The output's tokens as they come, its clock, what ends it, and when it was asked for in ns."""
        asked = time.perf_counter_ns()
        source, bare = self._source(text, options)
        encoded = time.perf_counter_ns()
        engine = self.engine
        started = time.perf_counter_ns() - (encoded - asked)  # waiting for the weights to load does not count
        self._check_length(source, engine)
        task = self._task(source, bare, options, engine)
        return self._tokens(engine, task, found), Timings(len(source)), task.ends, started

    def _tokens(self, engine: Engine, task: _Task, found: list[Hypothesis]) -> Iterator[int]:
        """The output's tokens as they come; the cache is used again when they are done."""
        assert engine.encoder is not None
        cross = engine.encoder.encode_text(np.array(task.source, np.int64))
        cache = self._cache(engine, task, cross)
        try:
            if task.beam.beams > 1:
                yield from self._searched(engine, cache, task, found)
                return
            prompt, interrupted = np.array(task.prompt, np.int64), task.options.interrupted
            sampler = self._sampler(task)
            if task.options.draft_from_input:
                draft = InputDraft(task.bare, self._experience)
                yield from generate_from_draft(
                    engine, cache, prompt, sampler, draft, self._experience, interrupted=interrupted
                )
            else:
                yield from generate(engine, cache, prompt, sampler, chunk=len(prompt), interrupted=interrupted)
        finally:
            self._spare.append(cache)

    def _searched(self, engine: Engine, cache: KVCache, task: _Task, found: list[Hypothesis]) -> Iterator[int]:
        """The tokens of the best text of a beam search, each as soon as it is certain."""
        forced = len(task.prompt) - 1  # transformers generates all but the first by force, and counts them
        steps = beam.search(
            engine, cache, task.prompt, task.beam, eos=self.text.eos, processors=task.processors, forced=forced
        )
        certain = 0
        while True:
            try:
                new = next(steps)
            except StopIteration as end:
                found.extend(end.value)
                yield from found[0].token_ids[certain:]
                return
            certain += len(new)
            yield from new

    def _cache(self, engine: Engine, task: _Task, cross: Cross) -> KVCache:
        """A cache for one input: one whose input is done, with its bound buffers, where it is large enough."""
        prompt, most = len(task.prompt), min(task.ends.max_tokens, task.ends.room)
        found = None
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while self._spare and found is None:
                cache = self._spare.pop()
                if cache.capacity >= prompt + task.beam.beams * most:
                    cache.reset(cross)
                    found = cache
        if found is None:
            found = beam.new_cache(engine, prompt, task.beam, cross)
        found.ends = min(found.capacity, prompt + most)  # which some policies that skip layers go by
        return found

    def _sampler(self, task: _Task) -> Sampler:
        plain = task.options
        if plain.repetition_penalty is not None:
            plain = dataclasses.replace(plain, repetition_penalty=None)  # that is a processor here
        sampler = make_sampler(plain, self.bundle.manifest.dims.vocab_size)
        return ProcessedSampler(task.processors, sampler, task.prompt) if task.processors else sampler

    def _task(self, source: list[int], bare: list[int], options: Text2TextOptions, engine: Engine) -> _Task:
        """One input's task; what options decide is that of the input before, where they are the same."""
        last = self._last
        if last is None or last.options is not options:
            self._last = last = self._decided(options, engine)
        return dataclasses.replace(last, source=source, bare=bare)

    def _decided(self, options: Text2TextOptions, engine: Engine) -> _Task:
        """All that options decide about a task, which has no input yet."""
        if engine.exact and options.over(self._defaults).num_beams > 1:
            raise InputError("Only one text at a time is exact; ask for one beam.")
        defaults = self._defaults
        prompt = self._prompt(options)
        wanted = options.max_tokens
        if wanted is None:
            wanted = DEFAULT_TOKENS if defaults.max_length is None else max(1, defaults.max_length - len(prompt))
        room = engine.context - len(prompt) + 1  # the last token is never run
        limit = min(wanted, room)
        least = defaults.min_length if options.min_tokens is None else len(prompt) + options.min_tokens
        processors = make_processors(
            options.over(defaults), self.text.eos, begin=len(prompt), least=least, most=len(prompt) + limit
        )
        ends = Ends(options.stop, wanted, room)
        return _Task([], [], prompt, options, options.beam_options(defaults, limit), ends, processors)

    def _prompt(self, options: Text2TextOptions) -> list[int]:
        """What the decoder begins with."""
        form, forced = self._format, self._defaults.forced_bos
        prompt = list(form.decoder_start)
        if form.target_at_start or (options.target_language is not None and not form.target_in_source):
            prompt.append(find_language(form.languages, options.target_language, form.target, "target"))
        return prompt if forced is None else [*prompt, forced]

    def _source_language(self, options: Text2TextOptions) -> int:
        form = self._format
        if form.languages and not form.source_at:
            raise InputError("This model finds out the source language itself; leave it away.")
        return find_language(form.languages, options.source_language, form.source, "source")

    def _source(self, text: str, options: Text2TextOptions) -> tuple[list[int], list[int]]:
        """The tokens of a text as the encoder takes them, and those of the text alone."""
        if not text.strip():
            raise InputError("The text is empty; give the model something to work on.")
        form = self._format
        bare = self.text.encode(text)
        source = [*form.prefix, *bare, *form.suffix]
        if form.target_in_source:
            source = self._to_target(bare, source, options.target_language)
        if form.source_at or options.source_language is not None:
            language = self._source_language(options)
            source = [language, *source] if form.source_at == "prefix" else [*source, language]
        self._check_length(source)
        return source, bare

    def _check_length(self, source: list[int], engine: Engine | None = None) -> None:
        """Raise InputError where a text is longer than the model's encoder takes, or that of an engine, which may have
        memory for less."""
        assert self.bundle.manifest.encoder is not None
        whole = most = self.bundle.manifest.encoder.max_length
        if engine is not None:
            assert engine.encoder is not None
            most = engine.encoder.max_length
        if len(source) > most:
            raise InputError(
                f"The text has {len(source)} tokens and this model's encoder takes up to {most}"
                f"{' in the memory that it may take' if most < whole else ''}; split it, for example into sentences."
            )

    def _to_target(self, bare: list[int], source: list[int], code: str | None) -> list[int]:
        """The input with the target's token in front, which a text may have brought along."""
        form = self._format
        own = bare[0] if bare and bare[0] in form.languages.values() else None
        if code is None and (own is not None or len(form.languages) == 1):
            return source
        language = find_language(form.languages, code, form.target, "target")
        if own not in (None, language):
            raise InputError(f"The text asks for {self.text.token(bare[0])}, and the target language is {code!r}.")
        return source if own is not None else [language, *source]


def _before(text: str, stops: Sequence[str]) -> str:
    """A whole text up to the first stop string in it."""
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=None)]


def _own(options: Text2TextOptions | GenerateOptions | None) -> Text2TextOptions:
    """The options of a decoder's answer as options of an output."""
    if options is None:
        return UNSET
    if isinstance(options, Text2TextOptions):
        return options
    return Text2TextOptions(**{f.name: getattr(options, f.name) for f in dataclasses.fields(options)})
