"""A speech engine without a model: a script says what is heard in each window of sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from fake_engine import LAYOUT, byte_bundle
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.manifest import Dims, EncoderDims, Speech, Tokens
from edge.runtime.cache import KVCache
from edge.runtime.speech.transcribe import Transcriber
from edge.runtime.text import Text

RATE = 16_000
CONTEXT = 448
END, START, EN, DE, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS, ZERO = range(258, 268)
VOCABULARY = ZERO + 1501  # 256 bytes, two special tokens of `byte_bundle`, these, and the timestamps
SPEECH = Speech(
    sample_rate=RATE,
    window_samples=30 * RATE,
    start=START,
    no_timestamps=NO_TIMESTAMPS,
    timestamp_begin=ZERO,
    languages={"en": EN, "de": DE},
    tasks={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    no_speech=NO_SPEECH,
    previous=PREVIOUS,
    suppress=[START, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH],
    begin_suppress=[ord(" "), END],
)


def at(seconds: float) -> int:
    """The timestamp token of a time in the window."""
    return ZERO + round(seconds * 50)


def said(*parts: float | str) -> list[int]:
    """Tokens of words and times, such as said(0.0, " Hello.", 1.5)."""
    return [token for part in parts for token in ([*part.encode()] if isinstance(part, str) else [at(part)])]


@dataclass
class Heard:
    """What the fake encoder made of a window: its samples."""

    samples: NDArray[np.float32]
    buffers: list[object] = field(default_factory=list)
    length: int = 1500


@dataclass
class Script:
    """What the model makes of one window: the tokens it says, how sure it is, and whether it believes in speech.

    `again` is what it says when it is asked again, at other temperatures; the first token is the same each time.
    """

    tokens: Sequence[int]
    again: Sequence[Sequence[int]] = ()
    sure: float = 20.0  # the logit of each token, over 0 of other words
    no_speech: float = -20.0  # the logit of <|nospeech|> behind the start token
    language: int = EN


class FakeSpeechEngine:
    """Keeps what `Engine` and its `encoder` promise. `script` answers for each window's samples, once per window."""

    plan = None
    exact = False

    def __init__(self, bundle: Bundle, script: Callable[[NDArray[np.float32]], Script]) -> None:
        self.bundle, self.context, self._script = bundle, CONTEXT, script
        self.encoder = self
        self.windows: list[NDArray[np.float32]] = []
        self.keep_windows = True
        self.prompt_length = 3
        self.prompts: list[list[int]] = []
        self.steps = 0
        self._now = Script([])
        self._asked = 0
        self._contents: list[int] = []

    def encode_audio(self, pcm: NDArray[np.float32], into: Heard | None = None) -> Heard:
        assert pcm.dtype == np.float32 and 1 <= len(pcm) <= SPEECH.window_samples
        if self.keep_windows:
            self.windows.append(pcm.copy())
        self._now, self._asked = self._script(pcm), 0
        heard = into or Heard(pcm)
        heard.samples = pcm
        return heard

    def new_cache(self, capacity: int | None = None, cross: Heard | None = None) -> KVCache:
        assert cross is not None
        return KVCache(LAYOUT, capacity or self.context, cross)  # type: ignore[arg-type]

    def make_cache(self, rows: int, cross: Heard | None = None) -> KVCache:
        return KVCache(LAYOUT, rows, cross)  # type: ignore[arg-type]

    def step(self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64] | None = None) -> NDArray:
        assert tokens.dtype == np.int64 and 1 <= len(tokens) <= cache.room
        self.steps += 1
        del self._contents[cache.length :]
        assert len(self._contents) == cache.length
        self._contents.extend(tokens.tolist())
        if len(tokens) >= self.prompt_length and tokens[0] == START:  # the language is asked for with one token
            self.prompts.append(self._contents.copy())
        first = cache.length
        cache.length += len(tokens)
        chosen = [len(tokens) - 1] if rows is None else rows.tolist()
        return np.stack([self._logits(self._contents[: first + row + 1]) for row in chosen])

    def _logits(self, contents: list[int]) -> NDArray[np.float32]:
        logits = np.zeros(VOCABULARY, np.float32)
        logits[ZERO:] = -10  # or they would be preferred for their number
        if START not in contents:  # nobody asks what follows earlier text
            return logits
        if contents[-1] == START and self.prompt_length > 1:
            logits[self._now.language] = 5
            logits[NO_SPEECH] = self._now.no_speech
            return logits
        generated = contents[contents.index(START) + self.prompt_length :]
        self._asked += len(generated) == 1  # the logits of the first token are asked for once
        script = [self._now.tokens, *self._now.again][min(max(self._asked - 1, 0), len(self._now.again))]
        logits[script[len(generated)] if len(generated) < len(script) else END] = self._now.sure
        return logits


def speech_bundle(folder: Path, speech: Speech = SPEECH) -> Bundle:
    bundle = byte_bundle(folder, template=None)
    manifest = bundle.manifest
    changes = {
        "kind": "encoder-decoder",
        "family": "whisper",
        "dims": Dims(1, 8, 8, 1, 1, 8, VOCABULARY),
        "context": CONTEXT,
        "tokens": Tokens(None, [END], None, False),
        "encoder": EncoderDims(1, 8, 1, 1500, "audio"),
        "cross": LAYOUT,
        "speech": speech,
    }
    return Bundle(bundle.root, type(manifest)(**{**vars(manifest), **changes}))


def fake_transcriber(folder: Path, *scripts: Script, speech: Speech = SPEECH) -> tuple[Transcriber, FakeSpeechEngine]:
    """A transcriber that hears these scripts in turn; the last one again and again."""
    bundle = speech_bundle(folder, speech)
    waiting = list(scripts)
    engine = FakeSpeechEngine(bundle, lambda samples: waiting.pop(0) if len(waiting) > 1 else waiting[0])
    return Transcriber(bundle, engine, Text(bundle)), engine  # type: ignore[arg-type]


def noise(seconds: float, level: float = 0.1) -> NDArray[np.float32]:
    """Something to hear."""
    samples = np.random.default_rng(0).standard_normal(round(seconds * RATE)) * level
    return samples.astype(np.float32)
