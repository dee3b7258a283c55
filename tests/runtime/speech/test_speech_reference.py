"""A tiny random Whisper, exported and transcribing, beside transformers' long-form generation with the same model."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sounds import RATE, sound
from transformers import GenerationConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from whisper_files import IDS, LANGUAGES, TOKENS, WORDLESS, talking_whisper, write_ctranslate2

import edge
from edge.bundle import Bundle
from edge.errors import InputError
from edge.export.checkpoint.whisper_vocabulary import read_vocabulary
from edge.runtime.decode.beam import new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.load import open_engine
from edge.runtime.speech import evidence
from edge.runtime.speech.evidence import log_probabilities
from edge.runtime.speech.transcribe import Transcriber

END, START, ZERO = IDS["<|endoftext|>"], IDS["<|startoftranscript|>"], IDS["<|0.00|>"]
LANGUAGE_IDS = {code: IDS[code] for code in LANGUAGES}
MOST = 30  # tokens of a window: half of the model's positions


def speaking_whisper() -> WhisperForConditionalGeneration:
    """The model, with the settings that transformers wants for it."""
    model = talking_whisper()
    config = GenerationConfig(
        eos_token_id=END, pad_token_id=END, bos_token_id=END, decoder_start_token_id=START, max_length=MOST
    )
    config.is_multilingual, config.lang_to_id = True, LANGUAGE_IDS
    config.task_to_id = {task: IDS[f"<|{task}|>"] for task in ("transcribe", "translate")}
    config.no_timestamps_token_id, config.max_initial_timestamp_index = IDS["<|notimestamps|>"], 50
    config.prev_sot_token_id = IDS["<|startofprev|>"]
    config.suppress_tokens, config.begin_suppress_tokens = model.config.suppress_tokens, [3, END]
    model.generation_config = config
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[WhisperForConditionalGeneration, Transcriber]:
    folder, model = tmp_path_factory.mktemp("speech"), speaking_whisper()
    checkpoint = write_ctranslate2(folder / "tiny-whisper", model, quantization="float32")
    bundle = edge.export(checkpoint, folder / "tiny.edge", weights="fp32")
    ours = edge.load(bundle.root)
    assert isinstance(ours, Transcriber)
    return model, ours


def endless(
    models: tuple[WhisperForConditionalGeneration, Transcriber],
) -> tuple[WhisperForConditionalGeneration, Transcriber]:
    """The same models, which never say that a text or a segment ends."""
    model, ours = copy.deepcopy(models[0]), models[1]
    ends = [END, *range(ZERO + 1, len(TOKENS))]
    model.generation_config.suppress_tokens = [*WORDLESS, *ends]
    speech = dataclasses.replace(ours.speech, suppress=[*WORDLESS, *ends])
    bundle = Bundle(ours.bundle.root, dataclasses.replace(ours.bundle.manifest, speech=speech))
    return model, Transcriber(bundle, open_engine(bundle), ours.text)


def theirs(
    model: WhisperForConditionalGeneration, samples: np.ndarray, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[tuple[float, float, list[int]]]:
    """Begin, end and words of each segment that transformers gives.

    It is made to take each window's features from the window's samples: from those of the whole sound at once, as it
    does itself, a host could not begin before the end, and would need memory for all of it.
    """
    extractor = WhisperFeatureExtractor()

    def features(samples: np.ndarray) -> torch.Tensor:
        return extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features

    def window(input_features: torch.Tensor, seek: torch.Tensor, *sizes: Any, **more: Any) -> torch.Tensor:
        start = int(seek[0]) * 160
        return features(samples[start : start + 30 * RATE])

    monkeypatch.setattr(WhisperForConditionalGeneration, "_get_input_segment", staticmethod(window))
    whole = extractor(samples, sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest")
    if model.generation_config.is_multilingual:
        options["task"] = "transcribe"
    out = model.generate(whole.input_features, return_timestamps=True, return_segments=True, **options)
    segments = [
        (round(float(s["start"]), 3), round(float(s["end"]), 3), [t for t in s["tokens"].tolist() if t < END])
        for s in out["segments"][0]
    ]
    return [segment for segment in segments if segment[0] < segment[1] and segment[2]]


def ours(model: Transcriber, samples: np.ndarray, **options: Any) -> list[tuple[float, float, list[int]]]:
    unjudged = edge.TranscribeOptions(
        temperatures=(0.0,),
        compression_ratio_threshold=None,
        logprob_threshold=None,
        no_speech_threshold=None,
        skip_silence=False,
        **options,
    )
    segments = model.transcribe(samples, unjudged).segments
    return [(round(s.start, 3), round(s.end, 3), [t for t in s.tokens if t < END]) for s in segments]


@pytest.mark.parametrize(
    ("previous", "beams", "seed"),
    [(True, 1, 0), (True, 3, 1), (False, 1, 2), (False, 3, 0)],
    ids=["previous text", "previous text, beams", "each window alone", "each window alone, beams"],
)
def test_segments_are_those_of_transformers(
    models: tuple[WhisperForConditionalGeneration, Transcriber],
    monkeypatch: pytest.MonkeyPatch,
    previous: bool,
    beams: int,
    seed: int,
) -> None:
    model, transcriber = models
    samples = sound(62, seed)
    found = ours(transcriber, samples, previous_text=previous, beams=beams)
    wanted = theirs(model, samples, monkeypatch, condition_on_prev_tokens=previous, num_beams=beams)
    assert len(found) > 3 and found == wanted


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_that_are_cut_off_are_those_of_transformers(
    models: tuple[WhisperForConditionalGeneration, Transcriber], monkeypatch: pytest.MonkeyPatch, beams: int
) -> None:
    model, transcriber = endless(models)
    samples = sound(30, 3)  # one window: transformers lets each further one be three tokens longer
    found = ours(transcriber, samples, previous_text=False, beams=beams)
    wanted = theirs(model, samples, monkeypatch, condition_on_prev_tokens=False, num_beams=beams)
    assert found == wanted and [len(words) for _, _, words in found] == [MOST - 1]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_words_of_a_text_are_as_likely_as_transformers_says(
    models: tuple[WhisperForConditionalGeneration, Transcriber], beams: int, seed: int
) -> None:
    model, transcriber = models
    random, samples, engine = np.random.default_rng(seed), sound(30, seed), transcriber.engine
    prompt = [START, transcriber.speech.languages["en"], transcriber.speech.tasks["transcribe"]][: 1 + seed]
    text = [*random.integers(3, END, MOST - 2).tolist(), END]
    assert engine.encoder is not None
    cross = engine.encoder.encode_audio(samples)
    rows = new_cache(engine, MOST, BeamOptions(beams, max_tokens=MOST), cross) if beams > 1 else None
    cache = rows or engine.new_cache(cross=cross)
    found = log_probabilities(engine, cache, prompt, text)
    features = WhisperFeatureExtractor()(samples, sampling_rate=RATE, return_tensors="pt").input_features
    with torch.no_grad():
        logits = model(features, decoder_input_ids=torch.tensor([[*prompt, *text[:-1]]])).logits[0, len(prompt) - 1 :]
    wanted = logits.log_softmax(-1)[range(len(text)), text]
    assert found == pytest.approx(wanted.numpy(), abs=1e-3)


CERTAIN = {"temperatures": (0.0,), "logprob_threshold": -1e9, "language": "en"}


@pytest.mark.parametrize("beams", [1, 3])
def test_a_text_that_is_as_likely_without_its_sound_is_not_said(
    models: tuple[WhisperForConditionalGeneration, Transcriber], monkeypatch: pytest.MonkeyPatch, beams: int
) -> None:
    """A random model hears hardly anything: what it writes is imagined."""
    options = edge.TranscribeOptions(**CERTAIN, beams=beams, no_speech_threshold=0.0)
    monkeypatch.setattr(evidence, "LIKELIER", 1e9)
    monkeypatch.setattr(evidence, "ENOUGH", 1e9)
    assert models[1].transcribe(sound(62, 0), options).segments == []
    unasked = dataclasses.replace(options, no_speech_threshold=None)
    assert len(models[1].transcribe(sound(62, 0), unasked).segments) > 3


def test_a_text_whose_words_the_sound_makes_likelier_is_said(
    models: tuple[WhisperForConditionalGeneration, Transcriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with words in every piece: dots alone are never said."""
    options = edge.TranscribeOptions(**CERTAIN, no_speech_threshold=None)
    for seed in range(40):
        samples = sound(30, seed)
        said = models[1].transcribe(samples, options)
        if said.segments and all(any(map(str.isalnum, each.text)) for each in said.segments):
            break
    else:
        pytest.fail("no sound has words")
    monkeypatch.setattr(evidence, "LIKELIER", -1e9)
    assert models[1].transcribe(samples, dataclasses.replace(options, no_speech_threshold=0.0)) == said


def test_an_english_checkpoint_is_transcribed_as_by_transformers_and_refuses_other_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = speaking_whisper()
    model.generation_config.is_multilingual = False
    del model.generation_config.lang_to_id, model.generation_config.task_to_id
    model.save_pretrained(tmp_path / "tiny.en")
    (tmp_path / "vocabulary.json").write_text(json.dumps(TOKENS))
    (tmp_path / "tiny.en" / "tokenizer.json").write_text(read_vocabulary(tmp_path, len(TOKENS)).to_str())
    bundle = edge.export(tmp_path / "tiny.en", tmp_path / "x.edge", weights="fp32", check=False)
    english = edge.load(bundle.root)
    assert isinstance(english, Transcriber)
    samples = sound(62, 0)
    found = ours(english, samples, language="en")
    assert len(found) > 3 and found == theirs(model, samples, monkeypatch, condition_on_prev_tokens=True)
    with pytest.raises(InputError, match="understands English alone, not 'de'"):
        ours(english, samples, language="de")
    with pytest.raises(InputError, match="not trained to translate: it knows no language but English"):
        ours(english, samples, task="translate")
