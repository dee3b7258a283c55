"""Calibration material of an encoder-decoder's decoder: inputs of the encoder, and answers to them."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor
from transformers.modeling_outputs import BaseModelOutput

from edge.errors import ExportError
from edge.export.quantize import voice
from edge.export.quantize.kept import Kept
from edge.export.quantize.pairs import Pair, Report
from edge.runtime.speech.audio import open_audio

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.manifest import Speech, TextFormat

LINES = 256  # of a text, at most: bounds the time of an export
TOGETHER = 16  # texts that are answered in one batch
HEARD_TOGETHER = 2  # windows of sound: the decoder's keys and values of each take 37 MB of Whisper base
ANSWER = 64  # tokens of an answer, at most
MIN_TOKENS = 128  # of all answers: with fewer the second moments say nothing
WINDOWS = 12  # of a recording, at most
TRANSCRIPT = 160  # tokens of a window's transcript, at most
LANGUAGES = 8  # that a multilingual model answers in
NOTHING = -1  # after the end of an answer

Start = tuple[int, ...]  # an answer's first tokens


@dataclass(frozen=True)
class Lines:
    """Texts, each of which a model answers. inputs: what the encoder reads, and what the answer begins with; those that
    are answered together stand together."""

    inputs: list[tuple[list[int], Start]]
    most: int  # tokens of an answer
    eos: list[int]

    @property
    def key(self) -> object:
        return self.most, self.inputs

    def pairs(self, model: Any, report: Report, kept: Kept) -> list[Pair]:
        answers = kept.tensor("answers", partial(self._answers, model, report))
        encoder = model.get_encoder()
        return [
            Pair(BaseModelOutput(encoder(input_ids=torch.tensor([ids])).last_hidden_state), answer[answer >= 0][None])
            for (ids, _), answer in zip(self.inputs, answers, strict=True)
        ]

    def _answers(self, model: Any, report: Report) -> torch.Tensor:
        rows: list[torch.Tensor] = []
        while len(rows) < len(self.inputs):
            report(len(rows), len(self.inputs), "writing answers to calibrate on")
            start = self.inputs[len(rows)][1]
            batch = [ids for ids, begun in self.inputs[len(rows) : len(rows) + TOGETHER] if begun == start]
            ids = _padded(batch, 0)
            mask = (_padded(batch, NOTHING) != NOTHING).long()
            encoded = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            rows += write(model, encoded, mask, torch.tensor([start] * len(batch)), self.most, self.eos)
        return torch.nn.utils.rnn.pad_sequence(rows, True, NOTHING)


def lines(checkpoint: Checkpoint, form: TextFormat, context: int, text: str | None) -> Lines:
    """The lines of a text, default the sentences of the built-in one, for a model of this format.

    A model that has no target language of its own answers in several of its languages.

    Raises:
        ExportError: the text is too short.
    """
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    known = list(form.languages.values())
    targets = [form.languages[form.target]] if form.target else known[:: max(1, len(known) // LANGUAGES)][:LANGUAGES]
    source = [form.languages[form.source]] if form.source_at and form.source else known[:1] if form.source_at else []
    longest = min(context, checkpoint.config.get("max_position_embeddings") or context)
    room = longest - len(form.prefix) - len(form.suffix) - len(source) - form.target_in_source
    inputs: list[tuple[list[int], Start]] = []
    given = _sentences() if text is None else [line for line in text.splitlines() if line.strip()]
    for i, line in enumerate(given[:LINES]):
        target = targets[i % len(targets) :][:1] if targets else []
        ids = [*form.prefix, *tokenizer.encode(line, add_special_tokens=False).ids[:room], *form.suffix]
        if form.target_in_source:
            ids = [*target, *ids]
        ids = [*source, *ids] if form.source_at == "prefix" else [*ids, *source]
        inputs.append((ids, (*form.decoder_start, *(target if form.target_at_start else []))))
    if (count := sum(len(ids) for ids, _ in inputs)) < MIN_TOKENS:
        raise ExportError(
            f"The calibration text holds {count} tokens, fewer than the {MIN_TOKENS} that are needed; give more lines, "
            "each of them an input."
        )
    inputs.sort(key=lambda each: (each[1], len(each[0])))
    return Lines(inputs, min(ANSWER, context - 2), checkpoint.tokenizer.tokens.eos)


def _sentences() -> list[str]:
    """The prose of the built-in calibration text."""
    found = re.split(r"(?<=[.!?])\s+|\n+", built_in())
    prose = [each for each in found if re.fullmatch(r"[A-Z][^{}<>=|_]{20,}[.!?]", each)]
    return prose[:: max(1, len(prose) // LINES)]


def built_in() -> str:
    return (files("edge.export.quantize") / "calibration.txt").read_text(encoding="utf-8")


def write(
    model: Any, encoded: torch.Tensor, mask: torch.Tensor | None, start: torch.Tensor, most: int, eos: Sequence[int]
) -> Iterator[torch.Tensor]:
    """A model's greedy answers to a batch [B, T, hidden] of what its encoder made: `start` [B, S] and up to `most`
    tokens, without the end token. mask [B, T]: 1 for what counts."""
    answers, read, cache = start, start, None
    ended = torch.zeros(len(start), dtype=torch.bool)
    end = torch.tensor(eos)
    for _ in range(most):
        out = model(
            encoder_outputs=BaseModelOutput(encoded),
            attention_mask=mask,
            decoder_input_ids=read,
            decoder_attention_mask=torch.ones_like(answers),
            past_key_values=cache,
            use_cache=True,
        )
        cache, read = out.past_key_values, out.logits[:, -1:].argmax(-1)
        ended |= torch.isin(read[:, 0], end)
        if ended.all():
            break
        answers = torch.cat([answers, read], 1)
    for row in answers:
        length = start.shape[1]
        over = torch.isin(row[length:], end).nonzero()
        yield row[: length + int(over[0])] if len(over) else row


@dataclass(frozen=True)
class Sounds:
    """Sound, window by window, that a speech model transcribes: without timestamps, and with them, led by what was said
    in the window before."""

    windows: list[NDArray[np.float32]]  # [N] each
    speech: Speech
    mels: int
    most: int  # tokens of an answer
    eos: list[int]

    @property
    def key(self) -> object:
        return self.most, [zlib.crc32(window.tobytes()) for window in self.windows]

    def pairs(self, model: Any, report: Report, kept: Kept) -> list[Pair]:
        extract = WhisperFeatureExtractor(feature_size=self.mels)
        encoded = []
        for i, window in enumerate(self.windows):
            report(i, len(self.windows), "listening to what is calibrated on")
            given = extract(window, sampling_rate=self.speech.sample_rate, return_tensors="pt")
            encoded.append(model.get_encoder()(given.input_features).last_hidden_state)
        answers = kept.tensor("answers", partial(self._answers, model, encoded, report))
        plain, timed = ([row[row >= 0] for row in rows] for rows in answers.chunk(2))
        led = [timed[0], *map(self._after, plain, timed[1:])]
        heard = zip(encoded * 2, plain + led, strict=True)
        return [Pair(BaseModelOutput(each), answer[None]) for each, answer in heard]

    def _answers(self, model: Any, encoded: list[torch.Tensor], report: Report) -> torch.Tensor:
        """Return all windows' transcripts without timestamps, then those with timestamps."""
        rows: list[torch.Tensor] = []
        for timed in (False, True):
            for at in range(0, len(encoded), HEARD_TOGETHER):
                report(len(rows), 2 * len(encoded), "writing answers to calibrate on")
                batch = encoded[at : at + HEARD_TOGETHER]
                start = torch.tensor([self._start(model, each, timed) for each in batch])
                rows += write(model, torch.cat(batch), None, start, self.most - start.shape[1], self.eos)
        return torch.nn.utils.rnn.pad_sequence(rows, True, NOTHING)

    def _after(self, before: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        """A transcript as a host has it written: after the text of the window before."""
        if self.speech.previous is None:
            return answer
        text = before[before < self.speech.start][-self.most :]
        return torch.cat([torch.tensor([self.speech.previous]), text, answer])

    def _start(self, model: Any, encoded: torch.Tensor, timed: bool) -> list[int]:
        """Return the tokens that a transcript begins with; the language is the most likely one."""
        start, languages = [self.speech.start], list(self.speech.languages.values())
        if languages:
            logits = Pair(BaseModelOutput(encoded), torch.tensor([start])).run(model)[0, -1]
            start += [languages[int(logits[languages].argmax())], self.speech.tasks["transcribe"]]
        return start if timed else [*start, self.speech.no_timestamps]


def sounds(checkpoint: Checkpoint, speech: Speech, context: int, recording: Path | None) -> Sounds:
    """The windows of a recording; default: the built-in sentences, read by the built-in voice.

    Raises:
        EdgeError: the recording cannot be read.
    """
    rate, size = speech.sample_rate, speech.window_samples
    if recording is None:
        heard = [voice.read(text, speaker, i) for i, (text, speaker) in enumerate(voice.passages())]
    else:
        samples = np.concatenate(list(itertools.islice(open_audio(recording, rate).blocks, WINDOWS * size // rate)))
        heard = [samples[at : at + size] for at in range(0, len(samples), size)]
    mels = int(checkpoint.config["num_mel_bins"])
    return Sounds(heard, speech, mels, min(context // 2 - 1, TRANSCRIPT), checkpoint.tokenizer.tokens.eos)


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)
