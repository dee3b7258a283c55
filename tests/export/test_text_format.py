"""What text looks like around an encoder-decoder, told from its checkpoint's files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from places import SHARED
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration

from edge.errors import CheckpointError
from edge.export.checkpoint.directory import DirectoryCheckpoint
from edge.export.facts.checkpoint import TokenizerFiles
from edge.export.manifest.text_format import generation, text_format
from edge.manifest import Generation, TextFormat, Tokens

MULTI30K = SHARED / "models" / "multi30k-en-de"


@dataclass
class Words:
    """A checkpoint with a tokenizer of words: ids 0 to 3 are <s>, <pad>, </s>, <unk>; then languages, then words."""

    config: dict[str, Any]
    template: str = "$A </s>"
    languages: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)
    name: str = "words"

    def __post_init__(self) -> None:
        self.config = {"model_type": "t5", **self.config}

    @property
    def tokenizer(self) -> TokenizerFiles:
        special = ["<s>", "<pad>", "</s>", "<unk>", *self.languages]
        vocabulary = {token: i for i, token in enumerate([*special, "a", "text"])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens(special)
        used = [(token, vocabulary[token]) for token in self.template.split() if token in vocabulary]
        tokenizer.post_processor = processors.TemplateProcessing(single=self.template, special_tokens=used)
        return TokenizerFiles(tokenizer.to_str(), None, Tokens(0, [2], 1, False))


def test_the_ends_of_a_text_are_those_of_the_tokenizer() -> None:
    assert text_format(Words({"decoder_start_token_id": 1})) == TextFormat(suffix=[2], decoder_start=[1])
    bart = Words({"decoder_start_token_id": 2}, "<s> $A </s>")
    assert text_format(bart) == TextFormat(prefix=[0], suffix=[2], decoder_start=[2])
    assert text_format(Words({"decoder_start_token_id": 0}, "$A")) == TextFormat(decoder_start=[0])


def test_generation_settings_come_before_the_configuration() -> None:
    words = Words({"decoder_start_token_id": 1, "forced_eos_token_id": 2}, generation={"decoder_start_token_id": 0})
    assert text_format(words).decoder_start == [0]
    assert generation(words).forced_eos is None


def test_a_decoder_begins_with_bos_where_nothing_else_is_said() -> None:
    assert text_format(Words({"bos_token_id": 0})).decoder_start == [0]
    with pytest.raises(CheckpointError, match="does not say what its decoder begins with"):
        text_format(Words({}))


def test_settings_that_are_absent_are_transformers_defaults() -> None:
    assert generation(Words({})) == Generation()


def test_settings_of_marian_and_bart() -> None:
    marian = Words({}, generation=dict(num_beams=4, max_length=512, bad_words_ids=[[1], [5, 6]], forced_eos_token_id=2))
    assert generation(marian) == Generation(max_length=512, num_beams=4, forced_eos=2, bad_words=[[1], [5, 6]])
    bart = dict(early_stopping=True, length_penalty=2.0, no_repeat_ngram_size=3, forced_bos_token_id=0)
    wanted = Generation(length_penalty=2.0, early_stopping=True, no_repeat_ngram_size=3, forced_bos=0)
    assert generation(Words({}, generation=bart)) == wanted


def test_the_shared_translator_is_a_plain_t5() -> None:
    if not MULTI30K.is_dir():
        pytest.skip("shared/models/multi30k-en-de is not here")
    checkpoint = DirectoryCheckpoint(MULTI30K)
    assert text_format(checkpoint) == TextFormat(suffix=[1], decoder_start=[0])
    assert generation(checkpoint) == Generation()


def test_an_older_config_json_has_them_too(tmp_path: Path) -> None:
    sizes = dict(d_model=16, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9, max_position_embeddings=8)
    config = BartConfig(**sizes, encoder_layers=1, decoder_layers=1)
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "num_beams": 4, "no_repeat_ngram_size": 3}))
    found = generation(DirectoryCheckpoint(tmp_path))
    assert found == Generation(num_beams=4, no_repeat_ngram_size=3, forced_eos=2)


def test_a_checkpoint_without_its_tokenizer_says_so(tmp_path: Path) -> None:
    if not MULTI30K.is_dir():
        pytest.skip("shared/models/multi30k-en-de is not here")
    for file in MULTI30K.iterdir():
        if "tokenizer" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        text_format(DirectoryCheckpoint(tmp_path))


LANGUAGES = {"en_XX": 4, "de_DE": 5}


def test_mbart_names_the_source_behind_the_text_and_the_target_at_the_start() -> None:
    """cc25: the decoder begins with the language; a fine-tuned one has its own as the default."""
    mbart = Words({"model_type": "mbart", "decoder_start_token_id": 5}, "$A </s> en_XX", list(LANGUAGES))
    form = TextFormat([], [2], [], LANGUAGES, "suffix", True, source="en_XX", target="de_DE")
    assert text_format(mbart) == form
    unsaid = Words({"model_type": "mbart", "bos_token_id": 0}, "$A </s> en_XX", list(LANGUAGES))
    assert text_format(unsaid) == TextFormat([], [2], [], LANGUAGES, "suffix", True, source="en_XX")


def test_plbart_is_framed_as_mbart_is() -> None:
    """Its tokens name programming languages, and pieces of code look like them."""
    tokens = ["__java__", "__en_XX__", "__init__"]
    plbart = Words({"model_type": "plbart", "decoder_start_token_id": 5}, "$A </s> __java__", tokens)
    languages = {"java": 4, "en_XX": 5}
    assert text_format(plbart) == TextFormat([], [2], [], languages, "suffix", True, source="java", target="en_XX")
    unsaid = Words({"model_type": "plbart", "decoder_start_token_id": 2}, "$A </s>", tokens)
    assert text_format(unsaid) == TextFormat([], [2], [2], languages, target_at_start=True)


def test_mbart50_forces_the_target_behind_the_start() -> None:
    settings = {"decoder_start_token_id": 2, "forced_bos_token_id": 5, "max_length": 200}
    mbart = Words({"model_type": "mbart"}, "en_XX $A </s>", list(LANGUAGES), settings)
    assert text_format(mbart) == TextFormat([], [2], [2], LANGUAGES, "prefix", True, source="en_XX", target="de_DE")
    assert generation(mbart) == Generation(max_length=200)  # the language is no forced token beside


def test_nllb_and_m2m100_write_their_languages_each_in_its_way() -> None:
    for tokens, codes in ((["eng_Latn", "deu_Latn"], ["eng_Latn", "deu_Latn"]), (["__en__", "__de__"], ["en", "de"])):
        words = Words({"model_type": "m2m_100", "decoder_start_token_id": 2}, f"{tokens[0]} $A </s>", tokens)
        form = TextFormat([], [2], [2], dict(zip(codes, (4, 5), strict=True)), "prefix", True, source=codes[0])
        assert text_format(words) == form


def test_marians_target_stands_in_front_of_the_text() -> None:
    targets = [">>deu<<", ">>cmn_Hans<<"]
    words = Words({"model_type": "marian", "decoder_start_token_id": 1}, "$A </s>", targets)
    assert text_format(words) == TextFormat([], [2], [1], {"deu": 4, "cmn_Hans": 5}, target_in_source=True)
    assert text_format(Words({"model_type": "marian", "decoder_start_token_id": 1})).target_in_source is False


def test_madlads_target_stands_in_front_of_the_text() -> None:
    words = Words({"model_type": "t5", "decoder_start_token_id": 0}, "$A </s>", ["<2de>", "<2zh_Latn>"])
    assert text_format(words) == TextFormat([], [2], [0], {"de": 4, "zh_Latn": 5}, target_in_source=True)


def test_a_piece_of_text_that_looks_like_a_language_is_none() -> None:
    assert text_format(Words({"model_type": "t5", "bos_token_id": 0}, "$A </s>", ["my_ID"])).languages == {}
