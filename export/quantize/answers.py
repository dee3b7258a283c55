"""A model's answers to the inputs that its decoder is calibrated on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from transformers import WhisperFeatureExtractor
from transformers.modeling_outputs import BaseModelOutput

from edge.export.facts.progress import Progress
from edge.export.quantize.calibration import SpeechInputs, TextInputs
from edge.export.quantize.calibration_cache import CalibrationCache
from edge.export.quantize.calibration_set import Example

TEXTS = 16  # that are answered in one batch
WINDOWS = 2  # of sound in one batch: the decoder's keys and values of each take 37 MB of Whisper base
PADDING = -1  # after the end of an answer
WRITING = "writing answers to calibrate on"


def answer(inputs: TextInputs | SpeechInputs, model: Any, report: Progress, cache: CalibrationCache) -> list[Example]:
    """Return inputs with a model's answers to them. cache: provides answers that were written before, and stores the
    others."""
    if isinstance(inputs, TextInputs):
        return _answer_texts(inputs, model, report, cache)
    return _transcribe(inputs, model, report, cache)


def _answer_texts(inputs: TextInputs, model: Any, report: Progress, cache: CalibrationCache) -> list[Example]:
    answers = cache.tensor("answers", partial(_answers, inputs, model, report))
    encoder = model.get_encoder()
    return [
        Example(BaseModelOutput(encoder(input_ids=torch.tensor([ids])).last_hidden_state), _unpadded(row)[None])
        for (ids, _), row in zip(inputs.inputs, answers, strict=True)
    ]


def _answers(inputs: TextInputs, model: Any, report: Progress) -> torch.Tensor:
    rows: list[torch.Tensor] = []
    while len(rows) < len(inputs.inputs):
        report(len(rows), len(inputs.inputs), WRITING)
        start = inputs.inputs[len(rows)][1]
        batch = [ids for ids, begun in inputs.inputs[len(rows) : len(rows) + TEXTS] if begun == start]
        ids = _padded(batch, 0)
        mask = (_padded(batch, PADDING) != PADDING).long()
        encoded = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        rows += write(model, encoded, mask, torch.tensor([start] * len(batch)), inputs.max_tokens, inputs.eos)
    return torch.nn.utils.rnn.pad_sequence(rows, True, PADDING)


def _transcribe(inputs: SpeechInputs, model: Any, report: Progress, cache: CalibrationCache) -> list[Example]:
    """Return all windows without timestamps, then with them, led by what was said in the window before."""
    extract = WhisperFeatureExtractor(feature_size=inputs.mels)
    encoded = []
    for i, window in enumerate(inputs.windows):
        report(i, len(inputs.windows), "listening to what is calibrated on")
        given = extract(window, sampling_rate=inputs.speech.sample_rate, return_tensors="pt")
        encoded.append(model.get_encoder()(given.input_features).last_hidden_state)
    transcripts = cache.tensor("answers", partial(_transcripts, inputs, model, encoded, report))
    plain, timed = (list(map(_unpadded, rows)) for rows in transcripts.chunk(2))
    led = [timed[0], *map(partial(_after, inputs), plain, timed[1:])]
    return [Example(BaseModelOutput(each), row[None]) for each, row in zip(encoded * 2, plain + led, strict=True)]


def _transcripts(inputs: SpeechInputs, model: Any, encoded: list[torch.Tensor], report: Progress) -> torch.Tensor:
    """Return all windows' transcripts without timestamps, then those with timestamps."""
    rows: list[torch.Tensor] = []
    for timed in (False, True):
        for at in range(0, len(encoded), WINDOWS):
            report(len(rows), 2 * len(encoded), WRITING)
            batch = encoded[at : at + WINDOWS]
            start = torch.tensor([_start(inputs, model, each, timed) for each in batch])
            rows += write(model, torch.cat(batch), None, start, inputs.max_tokens - start.shape[1], inputs.eos)
    return torch.nn.utils.rnn.pad_sequence(rows, True, PADDING)


def _after(inputs: SpeechInputs, before: torch.Tensor, transcript: torch.Tensor) -> torch.Tensor:
    """A transcript as a host has it written: after the text of the window before."""
    if inputs.speech.previous is None:
        return transcript
    text = before[before < inputs.speech.start][-inputs.max_tokens :]
    return torch.cat([torch.tensor([inputs.speech.previous]), text, transcript])


def _start(inputs: SpeechInputs, model: Any, encoded: torch.Tensor, timed: bool) -> list[int]:
    """Return the tokens that a transcript begins with; the language is the most likely one."""
    speech = inputs.speech
    start, languages = [speech.start], list(speech.languages.values())
    if languages:
        logits = Example(BaseModelOutput(encoded), torch.tensor([start])).run(model)[0, -1]
        start += [languages[int(logits[languages].argmax())], speech.tasks["transcribe"]]
    return start if timed else [*start, speech.no_timestamps]


def write(
    model: Any,
    encoded: torch.Tensor,
    mask: torch.Tensor | None,
    start: torch.Tensor,
    max_tokens: int,
    eos: Sequence[int],
) -> Iterator[torch.Tensor]:
    """Yield greedy answers to a batch [B, T, hidden] of the encoder's outputs: `start` [B, S] and up to `max_tokens`
    tokens, without the end token. mask [B, T]: 1 for what counts."""
    answers, read, cache = start, start, None
    ended = torch.zeros(len(start), dtype=torch.bool)
    end = torch.tensor(eos)
    for _ in range(max_tokens):
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


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)


def _unpadded(row: torch.Tensor) -> torch.Tensor:
    return row[row != PADDING]
