"""Encoder-decoders that were exported in segments and are loaded with a policy: their answers, with beams too."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_decoder_harness import tiny_model
from sounds import sound
from transformers import T5Config
from unigram_tokenizers import SENTENCES, save_tokenizer
from whisper_files import IDS, WORDLESS, tiny_whisper, write_ctranslate2

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.speech.transcribe import Transcriber
from edge.runtime.text2text import Text2Text

LAYERS = 4  # of each decoder


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A random T5 with its tokenizer, as transformers has them and as a folder; its answers have 16 tokens."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny-t5"
    tokenizer = save_tokenizer(folder, ["<pad>", "</s>", "<unk>"], "$A </s>")
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=48,
        d_kv=16,
        d_ff=80,
        num_layers=1,
        num_decoder_layers=LAYERS,
        num_heads=3,
        decoder_start_token_id=0,
    )
    model = tiny_model(config)
    with torch.no_grad():
        model.shared.weight[1] = 0  # the end token is never likely
    model.generation_config.update(max_length=17, no_repeat_ngram_size=2)  # else random weights say one thing
    model.save_pretrained(folder)
    return model, tokenizer, folder


@pytest.fixture(scope="module")
def t5(tiny_t5: tuple[Any, Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return edge.export(tiny_t5[2], tmp_path_factory.mktemp("t5") / "t5.edge", weights="fp32", segments=1, check=False)


def loaded(bundle: Bundle, skip: str, **options: Any) -> Text2Text:
    model = edge.load(bundle.root, skip=skip, **options)
    assert isinstance(model, Text2Text) and (model.engine.routes is not None) is (skip != "off")
    return model


def answers(bundle: Bundle, skip: str, beams: int = 1) -> list[list[int]]:
    model, options = loaded(bundle, skip), Text2TextOptions(beams=beams)
    return [model.generate(text, options).token_ids for text in SENTENCES]


@pytest.mark.parametrize("beams", [1, 3])
def test_unified_answers_as_transformers_does_without_these_layers(
    t5: Bundle, tiny_t5: tuple[Any, Any, Path], beams: int
) -> None:
    shorter, tokenizer = copy.deepcopy(tiny_t5[0]), tiny_t5[1]
    del shorter.decoder.block[1:3]
    shorter.config.num_decoder_layers = 2
    wanted = []
    for text in SENTENCES:
        given = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            out = shorter.generate(given, do_sample=False, num_beams=beams, use_cache=False)
        wanted.append(out[0].tolist())
    engine = loaded(t5, "unified:0.4").engine
    assert engine.routes is not None and engine.routes.policy.route(engine.new_cache(), 1) == (0, 3)
    found = answers(t5, "unified:0.4", beams)
    assert [[0, *each] for each in found] == wanted
    assert found != answers(t5, "off", beams) and len(set(map(tuple, found))) > 1


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("skip", ["unified:0", f"skipdecode:{LAYERS}-{LAYERS}"])
def test_nothing_left_out_is_the_answer_without_a_policy(t5: Bundle, skip: str, beams: int) -> None:
    assert answers(t5, skip, beams) == answers(t5, "off", beams)


def test_skipdecode_begins_as_the_whole_decoder_and_then_leaves_layers_out(t5: Bundle) -> None:
    whole, found = answers(t5, "off"), answers(t5, "skipdecode:2-4")
    assert [each[0] for each in found] == [each[0] for each in whole], "the prompt runs through all layers"
    assert found != whole and {len(each) for each in found} == {16}
    model = loaded(t5, "skipdecode:2-4")
    model.generate(SENTENCES[0])
    (cache,) = model._spare
    assert isinstance(cache, SegmentedCache)
    assert cache.held.tolist() == [16, 1 + 6, 1 + 11, 16], "two layers fall, after thirds of the answer"


def test_skipdecode_does_not_hang_on_what_was_asked_before(t5: Bundle) -> None:
    """A cache that is used again may be larger than an answer needs: layers fall by the answer's own room."""
    long, short = Text2TextOptions(max_tokens=60, beams=1), Text2TextOptions(max_tokens=12, beams=1)
    model, found = loaded(t5, "skipdecode:2-4"), list[list[int]]()
    for text in SENTENCES:
        model.generate(text, long)
        found.append(model.generate(text, short).token_ids)
    assert found == [loaded(t5, "skipdecode:2-4").generate(text, short).token_ids for text in SENTENCES]
    (cache,) = model._spare
    assert isinstance(cache, SegmentedCache) and cache.held[1] < cache.held[0] < 20 < cache.capacity


def test_the_command_skips_in_an_encoder_decoder(t5: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for skip in ("off", "unified:0", "unified:0.4", "skipdecode:2-4"):
        assert main(["run", str(t5.root), SENTENCES[0], "--skip", skip]) == 0
        said[skip] = capsys.readouterr().out
    assert said["off"] == said["unified:0"] and len(set(said.values())) == 3


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("whisper")
    # Without timestamps no text ends before it has as many tokens as it may.
    suppressed = [*WORDLESS, IDS["<|endoftext|>"], *range(IDS["<|0.02|>"], len(IDS))]
    model = tiny_whisper(max_source_positions=1500, encoder_layers=1, decoder_layers=LAYERS, suppress_tokens=suppressed)
    checkpoint = write_ctranslate2(folder / "tiny-whisper", model, quantization="float32")
    return edge.export(checkpoint, folder / "x.edge", weights="fp32", segments=1, check=False)


@pytest.mark.parametrize("beams", [1, 3])
def test_speech_is_transcribed_with_layers_left_out(whisper: Bundle, beams: int) -> None:
    samples, heard = sound(3, 0), dict[str, list[list[int]]]()
    options = edge.TranscribeOptions(temperatures=(0.0,), beams=beams, logprob_threshold=None, language="en")
    for skip in ("off", "unified:0", "unified:0.4", "skipdecode:2-4"):
        model = edge.load(whisper.root, skip=skip)
        assert isinstance(model, Transcriber)
        heard[skip] = [segment.tokens for segment in model.transcribe(samples, options).segments]
        assert sum(map(len, heard[skip])) > 16
    assert heard["off"] == heard["unified:0"]
    assert heard["off"] != heard["unified:0.4"] and heard["off"] != heard["skipdecode:2-4"]
