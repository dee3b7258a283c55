"""Tokenizers that transformers runs in Python over SentencePiece give the same tokens as one tokenizer.json."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from encoder_decoder_harness import tiny_model
from tokenizers import Tokenizer
from transformers import M2M100Config, M2M100Tokenizer, MarianConfig, MarianTokenizer, PLBartTokenizer

import edge
import edge.export
from edge.cli.main import main
from edge.errors import CheckpointError
from edge.export.checkpoint.tokenizer_files import read_tokenizer

WORDS = "the a red old young dog cat man woman house river bridge runs sleeps sees crosses under and two"
WORTE = "der ein rote alte junge Hund Katze Mann Frau Haus Fluss Brücke läuft schläft sieht über unter und"
TEXTS = [
    "The old man sees two dogs.",
    "  a  red\thouse \n under the bridge  ",
    "Über die Brücke läuft ein ﬁsch №5 … ☃☃ 日本",
    "",
    " ",
    "a▁b",
    "\U000f0000house\U000f0000Hund",
    ">>fra<< the dog",
    ">>xyz<< the dog",
    "cats</s>dogs <pad> <unk>",
]


def train(path: Path, words: str, kind: str) -> list[str]:
    """A small SentencePiece model over sentences of `words`; returns its pieces."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(words.split(), k=rng.randint(3, 9))) for _ in range(400)]
    lines = [text.capitalize() + rng.choice(".!?") for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=70, model_type=kind, minloglevel=2
        )
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


def write(root: Path, vocabulary: list[str], **settings: Any) -> None:
    (root / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (root / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Opus-MT has it: one list of ids for both languages, of which some pieces have none."""
    root = tmp_path_factory.mktemp("marian")
    source, target = train(root / "source.spm", WORDS, "unigram"), train(root / "target.spm", WORTE, "unigram")
    common = dict.fromkeys([*source[3:-2], *target[3:]])
    write(root, ["</s>", "<unk>", ">>fra<<", ">>deu<<", *sorted(common), "<pad>"], source_lang="eng", target_lang="deu")
    return root


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def m2m100(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("m2m100")
    pieces = train(root / "sentencepiece.bpe.model", f"{WORDS} {WORTE}", request.param)
    write(root, ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]], src_lang="de", language_codes="m2m100")
    return root


def converted(root: Path) -> Tokenizer:
    return Tokenizer.from_str(read_tokenizer(root, {}).json)


@pytest.mark.parametrize("text", TEXTS)
def test_marian_is_cut_into_the_same_tokens(marian: Path, text: str) -> None:
    slow = MarianTokenizer.from_pretrained(marian)
    if text == ">>xyz<< the dog":  # of a language that the model does not have: text like any other
        assert slow.unk_token_id in slow(text).input_ids
        return
    assert converted(marian).encode(text).ids == slow(text).input_ids


def test_marians_answers_are_written_with_the_target_languages_tokens(marian: Path) -> None:
    slow, tokenizer = MarianTokenizer.from_pretrained(marian), converted(marian)
    for text in ("Der alte Mann läuft über die Brücke.", "Katze!"):
        ids = slow(text_target=text).input_ids
        assert len(ids) > len(slow(text).input_ids) // 2
        assert tokenizer.decode(ids) == slow.decode(ids, skip_special_tokens=True) == text
    everything = list(range(len(slow.encoder)))
    assert tokenizer.decode(everything) == slow.decode(everything, skip_special_tokens=True).replace(" >>", ">>")


def test_marians_special_tokens_are_known(marian: Path) -> None:
    files = read_tokenizer(marian, {"eos_token_id": 0, "pad_token_id": converted(marian).token_to_id("<pad>")})
    assert (files.tokens.bos, files.tokens.eos, files.tokens.add_bos) == (None, [0], False)
    assert files.tokens.pad == converted(marian).token_to_id("<pad>")


@pytest.mark.parametrize("text", TEXTS)
def test_m2m100_is_cut_into_the_same_tokens(m2m100: Path, text: str) -> None:
    slow, tokenizer = M2M100Tokenizer.from_pretrained(m2m100), converted(m2m100)
    ids = slow(text).input_ids
    assert tokenizer.encode(text).ids == ids
    assert ids[0] == slow.get_lang_id("de") == tokenizer.token_to_id("__de__")
    wanted = slow.decode(ids[1:], skip_special_tokens=True)  # transformers 5 would write the language
    assert tokenizer.decode(ids).rstrip() == wanted


NLLB, NLLB_MASK = ("deu_Latn", 70 + 1 + 41), 70 + 1 + 202  # 70 pieces and one more; the 42nd of 202 languages


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    ("settings", "model_type", "before", "behind"),
    [
        ({"src_lang": "deu_Latn"}, "m2m_100", [NLLB[1]], [2]),
        ({"tokenizer_class": "NllbTokenizerFast"}, "m2m_100", [70 + 1 + 46], [2]),  # eng_Latn
        ({"tokenizer_class": "NllbTokenizer", "legacy_behaviour": True}, None, [], [2, 70 + 1 + 46]),
        ({"src_lang": "de_DE"}, "mbart", [], [2, 70 + 1 + 2]),
        ({"tokenizer_class": "MBart50Tokenizer"}, "mbart", [70 + 1 + 3], [2]),  # en_XX
    ],
    ids=["nllb", "nllb by name", "nllb legacy", "mbart", "mbart50"],
)
def test_fairseqs_ids_follow_from_the_sentencepiece_model_alone(
    tmp_path: Path, kind: str, settings: dict[str, Any], model_type: str | None, before: list[int], behind: list[int]
) -> None:
    """By the definition, over the sentencepiece library: transformers 5 finds no language in such a directory."""
    train(tmp_path / "sentencepiece.bpe.model", f"{WORDS} {WORTE}", kind)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_str(read_tokenizer(tmp_path, {"model_type": model_type}).json)
    slow = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))
    for text in TEXTS[:6]:
        pieces = [i + 1 if i else 3 for i in slow.encode(text)]
        assert tokenizer.encode(text).ids == [*before, *pieces, *behind]
        assert tokenizer.decode(pieces, skip_special_tokens=True) == slow.decode([i - 1 for i in pieces if i > 3])
    assert [tokenizer.token_to_id(token) for token in ("<s>", "<pad>", "</s>", "<unk>")] == [0, 1, 2, 3]
    if model_type == "m2m_100":
        assert (tokenizer.token_to_id(NLLB[0]), tokenizer.token_to_id("<mask>")) == (NLLB[1], NLLB_MASK)


@pytest.mark.parametrize(
    "settings", [{}, {"src_lang": "python"}, {"language_codes": "multi"}, {"language_codes": "multi", "src_lang": "go"}]
)
def test_plbarts_files_give_transformers_tokens(tmp_path: Path, settings: dict[str, str]) -> None:
    """Of the smaller set of languages no source is told unless one is set, and only there is a token for gaps."""
    train(tmp_path / "sentencepiece.bpe.model", f"{WORDS} {WORTE}", "bpe")
    slow = PLBartTokenizer(str(tmp_path / "sentencepiece.bpe.model"), **settings)
    slow.save_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    tokenizer = Tokenizer.from_str(read_tokenizer(tmp_path, {"model_type": "plbart"}).json)
    for text in TEXTS[:6]:
        assert tokenizer.encode(text).ids == slow(text).input_ids
    for token in ("__java__", "__en_XX__", "__go__"):
        assert (tokenizer.token_to_id(token) or 3) == slow.convert_tokens_to_ids(token)
    assert (tokenizer.token_to_id("<mask>") is None) == (settings.get("language_codes") == "multi")
    write = {"tokenizer_class": "PLBartTokenizer", "language_codes": "many"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(write))
    with pytest.raises(CheckpointError, match="make no tokenizer"):
        read_tokenizer(tmp_path, {"model_type": "plbart"})


def test_an_nllb_directory_with_a_sentencepiece_model_alone_becomes_a_translator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, target = tmp_path / "nllb", str(tmp_path / "nllb.edge")
    train(root / "sentencepiece.bpe.model", f"{WORDS} {WORTE}", "bpe")
    sizes = dict(d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=128, vocab_size=276)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2, encoder_layers=2, decoder_layers=2)
    model = tiny_model(M2M100Config(**sizes, **heads))
    model.generation_config.update(max_length=12)
    model.save_pretrained(root)
    assert main(["export", str(root), "-o", target, "--weights", "fp32", "--no-check"]) == 0
    slow = sentencepiece.SentencePieceProcessor(model_file=str(root / "sentencepiece.bpe.model"))
    text = "The old man sees two dogs."
    source = [70 + 1 + 46, *(i + 1 for i in slow.encode(text)), 2]
    wanted = model.generate(torch.tensor([source]), do_sample=False, forced_bos_token_id=NLLB[1])[0].tolist()
    capsys.readouterr()
    assert main(["run", target, text, "--from", "eng", "--to", "deu", "--json"]) == 0
    assert [2, NLLB[1], *json.loads(capsys.readouterr().out)["token_ids"]] == wanted
    for options, sentence in (
        ((), "needs a target language, by --to or target_language; it has 202, such as"),
        (("--to", "dee_Latn"), "no target language 'dee_Latn'; it has 202, such as ewe_Latn, deu_Latn"),
        (("--to", "deu", "--from", "xx"), "no source language 'xx'"),
    ):
        assert main(["run", target, text, *options]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("beams", [1, 4])
def test_a_marian_directory_becomes_a_translator(marian: Path, tmp_path: Path, beams: int) -> None:
    """The same answer as transformers', from text to text: tokens, format, settings, graphs and search together."""
    root = tmp_path / "tiny"
    shutil.copytree(marian, root)
    slow = MarianTokenizer.from_pretrained(marian)
    sizes = dict(d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=128)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2, encoder_layers=2, decoder_layers=2)
    pad = slow.pad_token_id
    tokens = dict(vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0)
    model = tiny_model(MarianConfig(**sizes, **heads, **tokens, forced_eos_token_id=0, scale_embedding=True))
    model.generation_config.update(bad_words_ids=[[pad]], num_beams=beams, max_length=20)
    model.save_pretrained(root)
    bundle = edge.export(str(root), tmp_path / "tiny.edge", weights="fp32")
    asked = edge.Text2TextOptions(target_language="deu", circles="allow")
    answer = edge.load(str(bundle.root)).generate("The old man sees two dogs.", asked)
    given = slow(">>deu<< The old man sees two dogs.", return_tensors="pt").input_ids
    wanted = model.generate(given, do_sample=False)[0].tolist()
    assert len(wanted) == 20  # with the end that is forced there
    assert [pad, *answer.token_ids] == wanted
    assert answer.text == slow.decode(wanted, skip_special_tokens=True)


def test_apart_vocabularies_are_refused(marian: Path, tmp_path: Path) -> None:
    for name in ("source.spm", "vocab.json"):
        (tmp_path / name).symlink_to(marian / name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    with pytest.raises(CheckpointError, match="one vocabulary for the source and another for the target"):
        read_tokenizer(tmp_path, {})


@pytest.mark.parametrize(
    "name,content,sentence",
    [
        ("source.spm", b"\xff\xff not a model", "is not a SentencePiece model"),
        ("source.spm", b"", "is no SentencePiece model"),
        ("vocab.json", b'{"a": 0, "b": 0}', "each token an id of its own"),
        ("vocab.json", b'{"a": 0}', "lacks the token </s>"),
        ("vocab.json", b"[]", "must hold a JSON object"),
    ],
)
def test_damaged_files_are_named(marian: Path, tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    for other in ("source.spm", "vocab.json"):
        (tmp_path / other).symlink_to(marian / other)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence):
        read_tokenizer(tmp_path, {})
