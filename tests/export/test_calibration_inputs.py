"""What an encoder-decoder's decoder is calibrated on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from encoder_decoder_harness import tiny_model
from sounds import tone, write_wave
from transformers import T5Config
from unigram_tokenizers import SENTENCES, save_tokenizer
from whisper_files import IDS, LANGUAGES, tiny_whisper

from edge.errors import EdgeError, ExportError
from edge.export.facts.checkpoint import TokenizerFiles
from edge.export.quantize import voice
from edge.export.quantize.answers import answer
from edge.export.quantize.calibration import (
    MAX_LINES,
    MAX_RECORDING,
    MAX_TRANSCRIPT,
    SpeechInputs,
    TextInputs,
    speech_inputs,
    text_inputs,
)
from edge.export.quantize.calibration_cache import CalibrationCache
from edge.manifest import Speech, TextFormat, Tokens

END = IDS["<|endoftext|>"]
SPEECH = Speech(
    sample_rate=16_000,
    window_samples=16_000,
    start=IDS["<|startoftranscript|>"],
    no_timestamps=IDS["<|notimestamps|>"],
    timestamp_begin=IDS["<|0.00|>"],
    languages={token.strip("<|>"): IDS[token] for token in LANGUAGES},
    tasks={"transcribe": IDS["<|transcribe|>"]},
    previous=IDS["<|startofprev|>"],
)


def silent(*told: Any) -> None:
    pass


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, ["<pad>", "</s>", "<unk>"], "$A </s>")
    return (folder / "tokenizer.json").read_text()


def text_checkpoint(tokenizer: str, **config: int) -> Any:
    tokens = Tokens(None, [1], 0, False)
    return SimpleNamespace(name="tiny", config=config, tokenizer=TokenizerFiles(tokenizer, None, tokens))


@torch.no_grad()
def test_answers_that_are_written_together_are_those_of_transformers() -> None:
    """Inputs of different lengths, padded; some answers end before the others."""
    model = tiny_model(T5Config(vocab_size=30, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4), seed=4)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randint(2, 30, (3 + i % 5,), generator=generator).tolist() for i in range(40)]
    free = model.generate(torch.tensor([inputs[0]]), max_new_tokens=6, do_sample=False, decoder_start_token_id=0)
    end = int(free[0, 5])  # a token that it says
    given_texts = TextInputs([(ids, (0,)) for ids in inputs], max_tokens=12, eos=[end])
    lengths = set()
    for ids, example in zip(inputs, answer(given_texts, model, silent, CalibrationCache()), strict=True):
        given = torch.tensor([ids])
        wanted = model.generate(given, max_new_tokens=12, do_sample=False, decoder_start_token_id=0, eos_token_id=end)
        row = wanted[0][wanted[0] != end]
        assert example.answer.tolist() == [row.tolist()]
        torch.testing.assert_close(example.encoded.last_hidden_state, model.get_encoder()(given).last_hidden_state)
        lengths.add(len(row))
    assert len(lengths) > 1


def test_answers_that_were_written_before_are_not_written_again(tmp_path: Path) -> None:
    model = tiny_model(T5Config(vocab_size=30, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4))
    inputs = TextInputs([([5, 6, 7], (0,)), ([5, 9], (0,))], max_tokens=6, eos=[1])
    with torch.no_grad():
        first = answer(inputs, model, silent, CalibrationCache(tmp_path))
        again = answer(inputs, model, lambda *told: pytest.fail("they are written again"), CalibrationCache(tmp_path))
    assert [example.answer.tolist() for example in first] == [example.answer.tolist() for example in again]


def test_each_line_is_an_input_framed_as_the_model_wants_it(tokenizer: str) -> None:
    checkpoint = text_checkpoint(tokenizer, max_position_embeddings=12)
    text = "\n\n".join(SENTENCES * 8)
    plain = text_inputs(checkpoint, TextFormat([], [1], [0]), 64, text)
    assert len(plain.inputs) == 8 * len(SENTENCES)
    assert all(start == (0,) and ids[-1] == 1 and len(ids) <= 12 for ids, start in plain.inputs)
    assert plain.key != text_inputs(checkpoint, TextFormat([], [1], [0]), 64, text[:-40]).key
    languages = {"de": 80, "en": 81, "fr": 82}
    many = TextFormat([], [1], [0], languages, source_at="prefix", target_at_start=True, source="en")
    inputs = text_inputs(checkpoint, many, 64, text).inputs
    assert {start for _, start in inputs} == {(0, 80), (0, 81), (0, 82)}
    assert all(ids[0] == 81 and len(ids) <= 12 for ids, _ in inputs)
    in_source = text_inputs(
        checkpoint, TextFormat([], [1], [0], languages, target_in_source=True, target="fr"), 64, text
    )
    assert all(ids[0] == 82 and start == (0,) for ids, start in in_source.inputs)


def test_the_built_in_lines_are_prose_and_not_too_many(tokenizer: str) -> None:
    found = text_inputs(text_checkpoint(tokenizer), TextFormat([], [1], [0]), 512, None)
    assert MAX_LINES / 2 < len(found.inputs) <= MAX_LINES


def test_a_text_that_is_too_short_is_refused(tokenizer: str) -> None:
    with pytest.raises(ExportError, match="The calibration text holds .. tokens, fewer than the 128"):
        text_inputs(text_checkpoint(tokenizer), TextFormat([], [1], [0]), 64, "A man rides a bicycle.")


def speech_checkpoint() -> Any:
    return SimpleNamespace(
        config={"num_mel_bins": 80}, tokenizer=SimpleNamespace(tokens=Tokens(END, [END], END, False))
    )


def test_a_recording_is_heard_window_by_window_and_not_forever(tmp_path: Path) -> None:
    path = write_wave(tmp_path / "a.wav", tone(2.5))
    assert [len(window) for window in speech_inputs(speech_checkpoint(), SPEECH, 60, path).windows] == [
        16_000,
        16_000,
        8_000,
    ]
    long = speech_inputs(speech_checkpoint(), SPEECH, 60, write_wave(tmp_path / "b.wav", tone(20)))
    assert len(long.windows) == MAX_RECORDING
    with pytest.raises(EdgeError, match="broken"):
        (tmp_path / "broken.wav").write_text("no sound")
        speech_inputs(speech_checkpoint(), SPEECH, 60, tmp_path / "broken.wav")


@torch.no_grad()
def test_each_window_is_transcribed_in_its_language_without_timestamps_and_with_them() -> None:
    model = tiny_whisper(max_source_positions=1500)
    windows = [tone(1.0), tone(1.0, hertz=90)]
    examples = answer(SpeechInputs(windows, SPEECH, 80, max_tokens=20, eos=[END]), model, silent, CalibrationCache())
    assert len(examples) == 4
    answers = [example.answer[0].tolist() for example in examples]
    plain, (first, led) = answers[:2], answers[2:]
    said = [token for token in plain[0] if token < SPEECH.start]
    assert led[: len(said) + 1] == [SPEECH.previous, *said], "it follows the text of the window before"
    timed = [first, led[len(said) + 1 :]]
    for row in plain + timed:
        assert row[0] == SPEECH.start and row[1] in SPEECH.languages.values() and len(row) <= 20
        assert row[2] == IDS["<|transcribe|>"] and END not in row
    assert all(row[3] == SPEECH.no_timestamps for row in plain)
    assert all(row[3] != SPEECH.no_timestamps for row in timed)
    assert examples[0].encoded.last_hidden_state is examples[2].encoded.last_hidden_state


def test_the_built_in_voice_reads_alike_each_time_and_within_a_window() -> None:
    text, speaker = voice.passages()[0]
    samples = voice.read(text, speaker, 0)
    assert np.array_equal(samples, voice.read(text, speaker, 0))
    for text, speaker in voice.passages():
        words = voice.read(text, speaker, 1)
        assert 8 * voice.RATE < len(words) < 30 * voice.RATE and 0.01 < words.std() < 0.2


def test_vowels_ring_at_their_own_formants() -> None:
    """Peterson and Barney's: a man's IY at 270 and 2290 Hz, his AA at 730 and 1090."""

    def share(vowel: str, middle: int) -> float:
        samples = voice.read(" ".join([vowel] * 12), voice.Speaker(pitch=100, speed=1.0, size=1.0))
        hertz = np.fft.rfftfreq(len(samples), 1 / voice.RATE)
        power = np.abs(np.fft.rfft(samples)) ** 2
        return float(power[abs(hertz - middle) < 120].sum() / power.sum())

    for middle in (270, 2290):
        assert share("IY", middle) > 4 * share("AA", middle)
    for middle in (730, 1090):
        assert share("AA", middle) > 4 * share("IY", middle)


def test_whisper_without_languages_has_a_shorter_start() -> None:
    english = Speech(16_000, 16_000, SPEECH.start, SPEECH.no_timestamps, SPEECH.timestamp_begin)
    inputs = SpeechInputs([tone(1.0)], english, 80, max_tokens=min(MAX_TRANSCRIPT, 12), eos=[END])
    with torch.no_grad():
        plain, timed = answer(inputs, tiny_whisper(max_source_positions=1500), silent, CalibrationCache())
    assert plain.answer[0, :2].tolist() == [SPEECH.start, SPEECH.no_timestamps]
    assert timed.answer[0, 0] == SPEECH.start and timed.answer[0, 1] != SPEECH.no_timestamps
