"""What a checkpoint's generation_config.json sets shapes a bundle's answers as it shapes transformers' `generate`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_decoder_harness import tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, PreTrainedConfig, PreTrainedTokenizerFast, T5Config

import edge
from edge.cli.main import main
from edge.errors import BundleError
from edge.export.checkpoint import open_checkpoint
from edge.export.manifest.text_format import generation, left_out
from edge.manifest import Manifest, parse
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine
from edge.runtime.text.tokenizer import Text
from edge.runtime.text2text import Text2Text

VOCABULARY = 97
SIZES = dict(vocab_size=VOCABULARY, decoder_start_token_id=2, pad_token_id=0, eos_token_id=1, bos_token_id=2)
BART = dict(d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=3)
CONFIGS: dict[str, PreTrainedConfig] = {
    "t5": T5Config(**SIZES, d_model=48, d_kv=16, d_ff=64, num_layers=2, num_heads=3),
    "bart": BartConfig(
        **{**SIZES, **BART},
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        forced_eos_token_id=None,
        tie_word_embeddings=False,
    ),
}
TEXTS = ["w5 w6 w7 w8", "w90 w12 w33 w4 w71 w18 w25 w60", "w44"]

SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 7},
    {"repetition_penalty": 1.8},
    {"no_repeat_ngram_size": 2},
    {"min_length": 9},
    {"min_new_tokens": 9, "min_length": 2},
    {"forced_bos_token_id": 5, "forced_eos_token_id": 1},
    {"forced_bos_token_id": 5, "begin_suppress_tokens": list(range(3, 60))},
    {"begin_suppress_tokens": list(range(3, 60))},
    {"suppress_tokens": list(range(0, VOCABULARY, 2))},
    {"bad_words_ids": [[i, j] for i in range(3, 60, 2) for j in range(VOCABULARY - 9)] + [[4], [1], [84, 84]]},
    {"num_beams": 3, "repetition_penalty": 1.8, "no_repeat_ngram_size": 1, "min_length": 6},
    {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "num_return_sequences": 4},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": -1.0, "num_return_sequences": 2},
    {"num_beams": 3, "forced_bos_token_id": 5, "forced_eos_token_id": 1, "begin_suppress_tokens": [7, 8, 9]},
    {"num_beams": 3, "bad_words_ids": [[i, j] for i in range(3, 60) for j in range(60)], "min_new_tokens": 5},
]


def writer(name: str) -> Any:
    """A random model with a head of its own, or it would repeat its tokens; a longer row of the end token makes texts
    end sooner and later."""
    seed, end = {"t5": (4, 3.0), "bart": (5, 3.0)}[name]
    model = tiny_model(CONFIGS[name], seed)
    head = torch.randn(VOCABULARY, 48, generator=torch.Generator().manual_seed(seed)) / 4
    head[1] *= end
    model.lm_head.weight = torch.nn.Parameter(head)
    return model


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Engine, Any]:
    """A model directory with a vocabulary of words, an engine over its bundle, and the Torch model."""
    root = tmp_path_factory.mktemp(request.param) / "tiny"
    special = ["<pad>", "</s>", "<s>"]
    words = {token: i for i, token in enumerate([*special, *(f"w{i}" for i in range(3, VOCABULARY))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(root)
    model = writer(request.param)
    model.save_pretrained(root)
    bundle = edge.export(root, root.with_suffix(".edge"), weights="fp32", check=False)
    return root, open_engine(bundle), model


def translator(pair: tuple[Path, Engine, Any], settings: dict[str, Any]) -> Text2Text:
    """What an export of the directory with these settings would be."""
    root, engine, _ = pair
    config = root / "generation_config.json"
    before = config.read_text()
    config.write_text(json.dumps({**json.loads(before), **settings}))
    manifest = dataclasses.replace(engine.bundle.manifest, generation=generation(open_checkpoint(str(root))))
    config.write_text(before)
    bundle = dataclasses.replace(engine.bundle, manifest=parse(manifest.to_json(), "edge.json"))
    return Text2Text(bundle, engine, Text(bundle))


def wanted(model: Any, ids: list[int], settings: dict[str, Any]) -> tuple[list[list[int]], list[float] | None]:
    """The texts behind the first token, without padding, and their scores."""
    given = {"do_sample": False, "output_scores": True, "return_dict_in_generate": True, **settings}
    out = model.generate(torch.tensor([ids]), **given)
    texts = [row[1:] for row in out.sequences.tolist()]
    texts = [text[: text.index(1) + 1] if 1 in text else text for text in texts]
    return texts, None if "sequences_scores" not in out else out.sequences_scores.tolist()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(s) or "none")
def test_answers_and_scores_are_those_of_transformers(pair: tuple[Path, Engine, Any], settings: dict[str, Any]) -> None:
    settings = settings if "max_new_tokens" in settings else {"max_length": 14, **settings}
    model = translator(pair, settings)
    options = Text2TextOptions(n_best=settings.get("num_return_sequences", 1))
    forced = [settings["forced_bos_token_id"]] if "forced_bos_token_id" in settings else []
    for text in TEXTS:
        found = model.candidates(text, options)
        texts, scores = wanted(pair[2], model.prompt_ids(text), settings)
        assert [[*forced, *each.token_ids] for each in found] == texts
        if scores is not None:
            assert [each.score for each in found] == pytest.approx(scores, rel=1e-5, abs=1e-4)


def test_each_setting_changes_an_answer(pair: tuple[Path, Engine, Any]) -> None:
    """Or the comparison above would say nothing."""
    inputs = [[5, 6, 7, 8, 1], [90, 12, 33, 4, 71, 18, 25, 60, 1], [44, 1]]
    plain = [wanted(pair[2], ids, {"max_length": 14})[0] for ids in inputs]
    assert min(len(text) for (text,) in plain) < 8 < max(len(text) for (text,) in plain)
    for settings in SETTINGS[1:-5]:
        assert [wanted(pair[2], ids, {"max_length": 14, **settings})[0] for ids in inputs] != plain, settings


def test_what_is_asked_for_comes_before_what_the_checkpoint_sets(pair: tuple[Path, Engine, Any]) -> None:
    settings = {"num_beams": 3, "repetition_penalty": 1.8, "no_repeat_ngram_size": 1, "min_length": 9, "max_length": 14}
    model = translator(pair, settings)
    plain = Text2TextOptions(beams=1, repetition_penalty=1.0, no_repeat_ngram=0, min_tokens=0, max_tokens=8)
    for text in TEXTS:
        texts, _ = wanted(pair[2], model.prompt_ids(text), {"max_new_tokens": 8})
        assert model.generate(text, plain).token_ids == texts[0] != model.generate(text).token_ids


def test_the_command_takes_the_settings_and_lets_options_override_them(
    pair: tuple[Path, Engine, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = pair[0]
    config, before = root / "generation_config.json", (root / "generation_config.json").read_text()
    config.write_text(
        json.dumps({**json.loads(before), "repetition_penalty": 1.8, "max_length": 14, "do_sample": True})
    )
    target = str(tmp_path / "x.edge")
    try:
        assert main(["export", str(root), "-o", target, "--weights", "fp32", "--no-check"]) == 0
    finally:
        config.write_text(before)
    assert "also have do_sample; the bundle leaves that out" in capsys.readouterr().err
    for options, penalty in (([], 1.8), (["--repetition-penalty", "1"], 1.0)):
        assert main(["run", target, TEXTS[1], "--json", *options]) == 0
        answer = json.loads(capsys.readouterr().out)["token_ids"]
        (text,), _ = wanted(
            pair[2], [90, 12, 33, 4, 71, 18, 25, 60, 1], {"max_length": 14, "repetition_penalty": penalty}
        )
        assert answer == text


def test_settings_that_change_nothing_are_not_told(pair: tuple[Path, Engine, Any]) -> None:
    checkpoint = open_checkpoint(str(pair[0]))
    checkpoint.generation.update(do_sample=False, guidance_scale=None, encoder_no_repeat_ngram_size=3)
    assert left_out(checkpoint) == ["encoder_no_repeat_ngram_size"]


def test_a_manifest_with_another_early_stopping_is_refused(pair: tuple[Path, Engine, Any]) -> None:
    manifest: Manifest = pair[1].bundle.manifest
    assert manifest.generation is not None
    odd = dataclasses.replace(manifest, generation=dataclasses.replace(manifest.generation, early_stopping="soon"))
    with pytest.raises(BundleError, match="early_stopping is 'soon'"):
        parse(odd.to_json(), "edge.json")
