"""`Text2Text`: a loaded encoder-decoder that turns a text into another, greedily, drawn, or by beams."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import Generation
from edge.runtime.background import Background
from edge.runtime.decode import answer, beam, rules
from edge.runtime.decode.answer import Ends, Piece, Result, Timings
from edge.runtime.decode.beam import Candidate, Hypothesis
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import Drafts, generate
from edge.runtime.decode.passages import stream as passages_stream
from edge.runtime.decode.rules.rule import Processor, RuleSettings
from edge.runtime.decode.sampling import Sampler, make_chooser, processed
from edge.runtime.decode.stream import Stream
from edge.runtime.decode.text2text_options import Text2TextOptions, options_of
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.engine import Engine
from edge.runtime.keywords import Text2TextKeywords
from edge.runtime.loaded import Loaded
from edge.runtime.options import shown, with_keywords
from edge.runtime.speculate.drafter import OFF
from edge.runtime.text.framing import Framing
from edge.runtime.text.passages import Passages
from edge.runtime.text.tokenizer import Text

DEFAULT_TOKENS = 512  # most tokens of an answer where neither the caller nor the bundle sets a limit


@dataclass(frozen=True)
class _Task:
    """Everything that options and bundle decide about an output, whatever the input."""

    prompt: list[int]  # what the decoder begins with
    options: Text2TextOptions
    beam: BeamOptions
    ends: Ends
    rules: RuleSettings
    processors: list[Processor]


class Text2Text(Loaded):
    """An encoder-decoder for text in memory. `edge.load` makes one. Several threads may use it at a time; only one of
    them has drafts.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        text: its tokenizer.
        speculate: what drafts tokens that are verified several in a step: ``off`` or a drafter's name.

    Raises:
        InputError: the bundle's model is not one from text to text, or the drafter does not serve it.
    """

    def __init__(
        self, bundle: Bundle, engine: Engine | Background[Engine], text: Text, *, speculate: str = OFF
    ) -> None:
        if bundle.manifest.text is None:
            raise InputError(f"{bundle.manifest.name} is not a model from text to text.")
        super().__init__(bundle, engine, speculate)
        self.text = text
        self._defaults = bundle.manifest.generation or Generation()
        if self._speculate != OFF:
            self._defaults = dataclasses.replace(self._defaults, num_beams=1)
        self._framing = Framing(bundle.manifest, text, self._defaults.forced_bos)
        self._spare: list[KVCache] = []  # of inputs that are done
        self._last: _Task | None = None

    @property
    def languages(self) -> list[str]:
        """The codes of a multilingual model's languages."""
        assert self.bundle.manifest.text is not None
        return sorted(self.bundle.manifest.text.languages)

    def check(self, options: Text2TextOptions) -> None:
        """Raise InputError where options do not fit the model: before a text is there, and before the weights are."""
        self._beams(options, 1)
        self._framing.check(options.source_language, options.target_language)

    def prompt_ids(self, text: str, options: Text2TextOptions | GenerateOptions | None = None) -> list[int]:
        """The token ids that the encoder would get for this text, or its passages, as soon as the engine has loaded.

        Raises:
            InputError: the text is empty, or longer than the encoder takes in the memory that it may take, or a
                language that the model does not have.
        """
        own = options_of(options)
        return self._sources(text, self._passages(text, own), own)

    def _sources(self, text: str, passages: Passages | None, options: Text2TextOptions) -> list[int]:
        found = list[int]()
        for passage in [text] if passages is None else passages.texts:
            source, _ = self._source(passage, options)
            self._check_length(source, self.engine)
            found += source
        return found

    def stream(
        self,
        text: str,
        options: Text2TextOptions | GenerateOptions | None = None,
        **keywords: Unpack[Text2TextKeywords],
    ) -> Iterator[Piece]:
        """Turn a text into another, piece by piece as its tokens come; with beams, as they become certain.

        Raises:
            InputError: the text is empty or longer than the encoder takes, or an option that does not fit the model.
        """
        own = with_keywords(options_of(options), keywords)
        if (passages := self._passages(text, own)) is None:
            return Stream(self._pieces(text, own))
        return self._in_passages(text, passages, own)

    def _in_passages(self, text: str, passages: Passages, options: Text2TextOptions) -> Iterator[Piece]:
        self._sources(text, passages, options)  # refuses one that is too long before the first is begun
        return Stream(passages_stream(passages, options, self._pieces, self.text.eos))

    def _pieces(self, text: str, options: Text2TextOptions) -> Generator[Piece, None, None]:
        tokens, timings, ends, started = self._begin(text, options, [])
        return answer.pieces(tokens, self.text, timings, ends, started_ns=started)

    def _passages(self, text: str, options: Text2TextOptions) -> Passages | None:
        """The passages that outputs are made of one after the other; None where the text is taken as a whole."""
        return None if options.whole or options.min_tokens else self._framing.passages(text)

    def generate(
        self,
        text: str,
        options: Text2TextOptions | GenerateOptions | None = None,
        **keywords: Unpack[Text2TextKeywords],
    ) -> Result:
        """Turn a text into another; see `stream`."""
        own = with_keywords(options_of(options), keywords)
        if (passages := self._passages(text, own)) is not None:
            return answer.collect(self._in_passages(text, passages, own))
        return self._whole(text, own, [])

    def candidates(
        self,
        text: str,
        options: Text2TextOptions | GenerateOptions | None = None,
        **keywords: Unpack[Text2TextKeywords],
    ) -> list[Candidate]:
        """The `options.n_best` best outputs for all of the text, the best first. One beam has one text and no score.

        Raises:
            InputError: see `stream`.
        """
        own, found = with_keywords(options_of(options), keywords), list[Hypothesis]()
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
        return answer.whole(tokens, self.text, timings, ends, started_ns=started)

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
        task = self._task(options, engine)
        timings = Timings(len(source), simulated=engine.provider.simulated, together=task.beam.beams > 1)
        drafts = answer.drafts_of(self.speculation, task.prompt, task.ends, self.text, options, timings, bare)
        return self._tokens(engine, task, source, drafts, found), timings, task.ends, started

    def _tokens(
        self, engine: Engine, task: _Task, source: list[int], drafts: Drafts, found: list[Hypothesis]
    ) -> Iterator[int]:
        """The output's tokens as they come, with a share of a memory limit."""
        tokens = self._encoded(engine, task, source, drafts, found)
        if engine.plan is None or engine.shares is None:
            return tokens
        rows = len(task.prompt) + task.beam.beams * min(task.ends.max_tokens, task.ends.room)
        return engine.shares.over(engine.plan.answer_bytes(rows), task.options.interrupted, tokens)

    def _encoded(
        self, engine: Engine, task: _Task, source: list[int], drafts: Drafts, found: list[Hypothesis]
    ) -> Generator[int, None, None]:
        """The output's tokens as they come; the cache is used again when they are done, and not where they failed."""
        assert engine.encoder is not None
        cross = engine.encoder.encode_text(np.array(source, np.int64))
        cache = self._cache(engine, task, cross)
        try:
            yield from self._run(engine, cache, task, source, drafts, found)
        except GeneratorExit:  # nobody wants the rest
            self._keep(cache)
            raise
        self._keep(cache)

    def _keep(self, cache: KVCache) -> None:
        """Use a cache again, as long as the model is there. With a memory limit only one is kept: the next answer's."""
        if self._engine is None:
            return
        shares = None if self.engine.plan is None else self.engine.shares
        if shares is None or shares.alone:
            self._spare.append(cache)

    def _run(
        self,
        engine: Engine,
        cache: KVCache,
        task: _Task,
        source: list[int],
        drafts: Drafts,
        found: list[Hypothesis],
    ) -> Iterator[int]:
        if task.beam.beams > 1:
            forced = len(task.prompt) - 1  # transformers generates all but the first by force, and counts them
            return beam.search(
                engine, cache, task.prompt, task.beam, found,
                eos=self.text.eos, processors=task.processors, forced=forced, source=source,
            )  # fmt: skip
        prompt, interrupted = np.array(task.prompt, np.int64), task.options.interrupted
        sampler, chunk = self._sampler(task, source), len(prompt)
        return generate(engine, cache, prompt, sampler, chunk=chunk, interrupted=interrupted, drafts=drafts)

    def close(self) -> None:
        self._spare.clear()
        super().close()

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

    def _sampler(self, task: _Task, source: list[int]) -> Sampler:
        settings = dataclasses.replace(task.rules, source=source)  # a text may repeat what repeats there
        return processed(task.processors, make_chooser(settings), task.prompt)

    def _task(self, options: Text2TextOptions, engine: Engine) -> _Task:
        """Return the settings of an output that follow from these options: the last task, where the options are the
        same."""
        last, defaults = self._last, self._defaults
        if last is not None and last.options is options:
            return last
        prompt = self._framing.start(options.target_language)
        wanted = options.max_tokens
        if wanted is None:
            wanted = DEFAULT_TOKENS if defaults.max_length is None else max(1, defaults.max_length - len(prompt))
        room = engine.context - len(prompt) + 1  # the last token is never run
        limit = min(wanted, room)
        settings = RuleSettings(options, defaults, ends=self.text.eos, begin=len(prompt), most=len(prompt) + limit)
        beams = self._beams(options, limit)
        if engine.exact and beams.beams > 1:
            raise InputError("Only one text at a time is exact; ask for one beam.")
        ends, processors = Ends(options.stop, wanted, room), rules.make_processors(settings)
        self._last = task = _Task(prompt, options, beams, ends, settings, processors)
        return task

    def _beams(self, options: Text2TextOptions, max_tokens: int) -> BeamOptions:
        """Return the options of a beam search. There is one beam where anything drafts; InputError where more are asked
        for."""
        beams = options.beam_options(self._defaults, max_tokens)
        if beams.beams > 1 and self._speculate != OFF:
            raise InputError(
                f"The drafter {self._speculate} drafts one text at a time; leave it out, or ask for one beam."
            )
        return beams

    def _source(self, text: str, options: Text2TextOptions) -> tuple[list[int], list[int]]:
        """The tokens of a text as the encoder takes them, and those of the text alone."""
        if not isinstance(text, str):
            raise InputError(f"A text is turned into another, and not {shown(text)}.")
        answer.check_length(len(text), self.most_tokens)
        source, bare = self._framing.tokens(text, options.source_language, options.target_language)
        answer.check_tokens(source, self.bundle.manifest)
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


def _before(text: str, stops: Sequence[str]) -> str:
    """A whole text up to the first stop string in it."""
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=None)]
