"""One window of sound becomes tokens: the encoder's output, the language, one decoding, and the decision to try again.

The rules are those of the reference implementation (openai/whisper, decoding.py and decode_with_fallback in
transcribe.py; Radford et al. 2022, section 4.5).
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.decode.beam import beam_search, new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.loop import PLAIN, Drafts, decode
from edge.runtime.decode.rules.circles import ALLOW
from edge.runtime.decode.rules.rule import RuleSettings
from edge.runtime.decode.sampling import (
    Sampler,
    SamplingOptions,
    largest_logit,
    make_chooser,
    processed,
)
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.engine import Engine
from edge.runtime.memory.process import held
from edge.runtime.speculate.drafter import EARLIER
from edge.runtime.speculate.speculation import Figures, Speculation
from edge.runtime.speech.evidence import Evidence, log_probabilities, said_before
from edge.runtime.speech.lengths import encoder_window, repeats
from edge.runtime.speech.rules import speech_rules
from edge.runtime.speech.transcribe_options import REPETITIVE, UNSURE, DecodingOptions
from edge.runtime.speech.words import Spoken

PREFILL_CHUNK = 64  # tokens of earlier text run at once: 223 took 48 MB more, and 10% less of their time
NOTHING = np.zeros(1, np.float32)
SURE = -0.15  # mean log probability of a text that noise does not lead to


@dataclass(frozen=True)
class Decoded:
    """The text of one window. `text` is without timestamps and outer spaces; the measures judge it. imagined: the model
    would give this text for silence, too."""

    tokens: list[int]
    text: str
    avg_logprob: float
    no_speech_prob: float | None
    temperature: float
    imagined: bool = False

    @property
    def compression_ratio(self) -> float:
        """Bytes of the text over bytes of its zlib compression."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


class WindowDecoder:
    """Decodes one window after the other: `hear` it, then `decode` it. engine: of a bundle for speech."""

    def __init__(
        self, engine: Engine, text: Spoken, options: DecodingOptions, speculation: Speculation | None = None
    ) -> None:
        manifest = engine.bundle.manifest
        assert manifest.speech is not None
        if engine.exact and options.beams > 1:
            raise InputError("Only one text at a time is exact; ask for one beam.")
        self._engine, self._text, self._options = engine, text, options
        self._speech, self._end, self._context = manifest.speech, manifest.tokens.eos[0], engine.context
        self._cross: Cross | None = None
        self._samples = NOTHING  # what is heard
        self._window = 0  # samples of it that the encoder read, with silence
        self._last: int | None = None  # its end, where the encoder reads less than a window: see `speech_rules`
        self._cache: KVCache | None = None
        self._drawing: dict[float, Sampler] = {  # by temperature; draws go on from window to window
            t: make_chooser(RuleSettings(SamplingOptions(temperature=t, seed=options.seed)))
            for t in options.temperatures
            if t > 0
        }
        vocab = manifest.dims.vocab_size
        self._first = np.empty(vocab, np.float32)  # logits after the prompt
        self._work = np.empty(vocab, np.float32)
        self._speculation = speculation
        self._tried: Decoded | None = None  # the first text, where others were tried after it
        self._said = list[int]()  # tokens of all decodings so far, the latest ones
        self.speculated: Figures | None = None  # what drafts did, in all windows

    @property
    def _circles(self) -> str:
        """The option `circles` at temperature 0: "allow" where a repetitive text is tried again anyway, so that no rule
        changes it."""
        options = self._options
        tries = len(options.temperatures) > 1 and options.compression_ratio_threshold is not None
        return ALLOW if tries or self._last is not None else options.circles

    def hear(self, samples: NDArray[np.float32]) -> None:
        """Encode a window of up to `window_samples` samples [N], which must not change until it is decoded. The other
        methods are about this window."""
        encoder, whole = self._engine.encoder, self._speech.window_samples
        assert encoder is not None
        self._samples, window = samples, whole
        if encoder.any_length:
            window = encoder_window(len(samples), self._speech)
        tick = self._speech.sample_rate // self._speech.frames_per_second
        self._last = -(-len(samples) // tick) if window < whole else None
        self._encode(samples, window)

    def _encode(self, samples: NDArray[np.float32], window: int) -> None:
        """Encode samples and silence after them, `window` samples in all."""
        assert self._engine.encoder is not None
        self._window = window
        self._cross = self._engine.encoder.encode_audio(samples, into=self._cross, window=window)
        if self._cache is None:
            self._cache = self._new_cache(self._cross)
        self._cache.reset(self._cross)
        held()  # the peak: what the encoder made is gone when the last window was heard

    def _new_cache(self, cross: Cross) -> KVCache:
        if self._options.beams == 1:
            return self._engine.new_cache(self._context, cross)
        longest = self._context // 2
        return new_cache(self._engine, longest, BeamOptions(self._options.beams, max_tokens=longest), cross)

    def detect_language(self) -> str:
        """The likeliest language of the window, from one step after the start token."""
        cache = self._heard()
        cache.reset()
        logits = self._engine.step(cache, np.array([self._speech.start], np.int64))[-1]
        largest_logit(logits)  # or what is wrong with them
        return max(self._speech.languages, key=lambda code: float(logits[self._speech.languages[code]]))

    def decode(self, prompt: Sequence[int]) -> Decoded | None:
        """Decode the text after `prompt`, at the first temperature whose result is good enough, or else the last one;
        None where it was interrupted. Where the encoder read less than a window and the text is in doubt, the sound is
        encoded and decoded again in a whole window."""
        if self._last is not None:
            decoded = self._decode(prompt, self._options.temperatures[:1])
            if decoded is None:
                return None
            if not self._doubtful(decoded):
                evidence = self._evidence(prompt, decoded)
                if evidence is None or not all(each.weak for each in evidence):
                    return decoded
            self._last = None
            self._encode(self._samples, self._speech.window_samples)
        decoded = self._decode(prompt, self._options.temperatures)
        if decoded is None or self.is_silence(decoded):
            return decoded
        first = [] if self._tried is None else [self._tried]
        evidence = self._evidence(prompt, decoded, *first)
        if evidence is None:
            return decoded
        return dataclasses.replace(decoded, imagined=all(each.imagined for each in evidence))

    def _decode(self, prompt: Sequence[int], temperatures: Sequence[float]) -> Decoded | None:
        no_speech_prob = self._prefill(prompt)
        decoded = self._tried = None
        for temperature in temperatures:
            beams = temperature == 0 and self._options.beams > 1
            generated = self._search(prompt) if beams else self._sample(prompt, temperature)
            if generated is None:
                return None
            tokens, logprob = generated
            self._said = [*self._said, *tokens][-EARLIER:]
            text = self._text.decode([token for token in tokens if token < self._end]).strip()
            self._tried = self._tried or decoded
            decoded = Decoded(tokens, text, logprob / (len(tokens) + 1), no_speech_prob, temperature)
            if not self._failed(decoded):
                break
        return decoded

    def _evidence(self, prompt: Sequence[int], decoded: Decoded, *tries: Decoded) -> list[Evidence] | None:
        """Measure how much the sound raises the probability of a text, and of other tries, compared with silence, which
        replaces the window in the encoder. None where the model is sure of speech."""
        threshold = self._options.no_speech_threshold
        if threshold is None or decoded.no_speech_prob is None or decoded.no_speech_prob <= threshold / 2:
            return None
        if decoded.avg_logprob >= SURE or not decoded.text:
            return None
        alone = prompt[prompt.index(self._speech.start) :]  # what was said before makes words likely in silence, too
        texts = [[*each.tokens, self._end] for each in (decoded, *tries) if any(map(str.isalnum, each.text))]
        heard = [log_probabilities(self._engine, self._heard(), alone, text) for text in texts]
        self._encode(NOTHING, self._window)
        silent = [log_probabilities(self._engine, self._heard(), alone, text) for text in texts]
        words = [np.array(text) < self._end for text in texts]
        repeated = [said_before(text) for text in texts]
        both = zip(heard, silent, words, repeated, strict=True)
        return [Evidence((h - s)[counted], again[counted]) for h, s, counted, again in both]

    def is_silence(self, decoded: Decoded) -> bool:
        """True if a window has no speech: the model says so and is not sure of its text, or it imagined the text."""
        if decoded.imagined:
            return True
        threshold, sure = self._options.no_speech_threshold, self._options.logprob_threshold
        if threshold is None or decoded.no_speech_prob is None or decoded.no_speech_prob <= threshold:
            return False
        return sure is None or decoded.avg_logprob <= sure

    def _doubtful(self, decoded: Decoded) -> bool:
        """True if a whole window may give a better text than the short one, whatever the options accept."""
        loops = decoded.compression_ratio > REPETITIVE or repeats(decoded.text)
        return loops or decoded.avg_logprob < UNSURE or self.is_silence(decoded)

    def _failed(self, decoded: Decoded) -> bool:
        """True if another temperature may give a better text."""
        options = self._options
        unsure = options.logprob_threshold is not None and decoded.avg_logprob < options.logprob_threshold
        if unsure and self.is_silence(decoded):
            return False
        limit = options.compression_ratio_threshold
        return unsure or (limit is not None and decoded.compression_ratio > limit)

    def _heard(self) -> KVCache:
        assert self._cache is not None, "nothing was heard yet"
        return self._cache

    def _prefill(self, prompt: Sequence[int]) -> float | None:
        """Run the prompt; the chance that there is no speech, which the model gives after its start token."""
        cache = self._heard()
        cache.reset()
        tokens = np.array(prompt, np.int64)
        cache.prompt = len(tokens)
        start = prompt.index(self._speech.start)  # earlier text stands before it
        for chunk in range(0, start, PREFILL_CHUNK):
            self._engine.step(cache, tokens[chunk : min(chunk + PREFILL_CHUNK, start)])
        logits = self._engine.step(cache, tokens[start:], np.array([0, len(prompt) - start - 1], np.int64))
        self._first[:] = logits[1]
        token = self._speech.no_speech
        largest_logit(logits[0])  # or what is wrong with them
        return None if token is None else math.exp(_log_probability(logits[0], token, self._work))

    def _maximum(self, prompt: Sequence[int]) -> int:
        """Maximum tokens that may be generated; the last one needs no position, as it is not run."""
        return min(self._context // 2, self._context - len(prompt) + 1)

    def _sample(self, prompt: Sequence[int], temperature: float) -> tuple[list[int], float] | None:
        """Tokens after the prompt that was run, without the end token, and the sum of their log probabilities with the
        end token's; None where it was interrupted."""
        cache, maximum = self._heard(), self._maximum(prompt)
        if temperature > 0:
            chooser = self._drawing[temperature]
        else:
            chooser = make_chooser(RuleSettings(SamplingOptions(circles=self._circles)))
        chosen = Scored(chooser, self._work)
        rules = speech_rules(self._speech, self._end, len(prompt), self._last)
        sampler = processed(rules, chosen, prompt)
        cache.truncate(len(prompt))
        first, tokens = sampler(self._first), list[int]()
        drafts = self._drafts(prompt, maximum, temperature > 0)
        following = decode(self._engine, cache, first, sampler, drafts, self._options.interrupted)
        for token in islice(chain([first], following), maximum):
            if token == self._end:
                return tokens, chosen.log_probability
            tokens.append(token)
        return (tokens, chosen.log_probability) if len(tokens) == maximum else None

    def _drafts(self, prompt: Sequence[int], maximum: int, drawn: bool) -> Drafts:
        """From the prompt, and from all decodings so far."""
        if self._speculation is None:
            return PLAIN
        ends, figures = frozenset([self._end]), self.speculated
        drafts = self._speculation.drafts(prompt, maximum, ends=ends, drawn=drawn, source=self._said, figures=figures)
        self.speculated = drafts.figures
        return drafts

    def _search(self, prompt: Sequence[int]) -> tuple[list[int], float] | None:
        """Search for the most likely text by beam search; the result is like that of `_sample`."""
        cache, options = self._heard(), self._options
        cache.truncate(len(prompt) - 1)  # the search runs the last token itself, and is shown none before it
        wanted = BeamOptions(
            options.beams, max_tokens=self._maximum(prompt), circles=self._circles, interrupted=options.interrupted
        )
        rules = speech_rules(self._speech, self._end, 1, self._last)
        found = beam_search(self._engine, cache, prompt[-1:], wanted, eos=[self._end], processors=rules)[0]
        if found.finish_reason == "interrupted":
            return None
        tokens = found.token_ids
        return (tokens[:-1] if tokens[-1] == self._end else tokens), found.log_probability


class Scored:
    """Chooses like another sampler, and sums the log probabilities of the chosen tokens. work: [V], overwritten."""

    def __init__(self, sampler: Sampler, work: NDArray[np.float32]) -> None:
        self._sampler, self._work = sampler, work
        self.log_probability = 0.0

    def __call__(self, scores: NDArray[np.float32]) -> int:
        token = self._sampler(scores)
        self.log_probability += _log_probability(scores, token, self._work)
        return token


def _log_probability(scores: NDArray[np.float32], token: int, work: NDArray[np.float32]) -> float:
    """The log-softmax of `scores` [V] at `token`; `work` [V] is overwritten."""
    largest = scores.max()
    np.subtract(scores, largest, out=work)
    np.exp(work, out=work)
    return float(scores[token] - largest) - math.log(float(work.sum()))
