"""The tokenizer built from a GGUF vocabulary encodes as the tokenizer the vocabulary came from."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPT2Tokenizer, Qwen2Tokenizer

from edge import catalog
from edge.errors import CheckpointError
from edge.export.checkpoint import gguf_tokenizer, open_checkpoint
from edge.export.facts.checkpoint import TokenizerFiles
from edge.export.facts.gguf_header import GGUFHeader

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x**2  # square\n\n\tif a == b: pass\r\n",
    "1234567890 3.14159 1,000,000 2024-01-02 abc123def",
    "don't can't I'LL we've DON'T they're",
    "😀 emoji 👩‍👩‍👧 and 🇩🇪",
    "你好世界。 日本語のテキスト 123",
    "Ünïcödé naïve café, عربى, ठीक है, x²+y³=½",
    "  leading  double   spaces and trailing   ",
    "\n\nnew\n\n\nlines\t\ttabs",
    "---===***/// https://example.com/a?b=c&d=1#frag",
    " ",
    "   ",
    "\n",
    "aaaaaaaaaaaaaaaaaaaaaa",
]
CORPUS = [*TEXTS, "the then there these other another brother", "return 100 200 2000 squares of the lazy numbers"] * 3


def written(path: Path, model: str, tokens: list[str], types: list[int], **fields: Any) -> TokenizerFiles:
    """What is read from a GGUF file that holds nothing but this vocabulary."""
    writer = gguf.GGUFWriter(path, fields.pop("architecture", "llama"))
    writer.add_name(fields.pop("name", "a model"))
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if "merges" in fields:
        writer.add_token_merges(fields.pop("merges"))
    if "scores" in fields:
        writer.add_token_scores(fields.pop("scores"))
    for key, value in fields.items():
        add = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool}[type(value)]
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf_tokenizer.tokenizer_of(GGUFHeader(path))


def trained(backend: Tokenizer) -> tuple[list[str], list[str]]:
    """Tokens and merges that byte-level BPE learns of CORPUS when text is prepared as `backend` does it."""
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    state = json.loads(backend.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return tokens, [" ".join(pair) for pair in state["merges"]]


@pytest.mark.parametrize(
    ("pre", "reference_class"), [("gpt-2", GPT2Tokenizer), ("default", GPT2Tokenizer), ("qwen2", Qwen2Tokenizer)]
)
def test_byte_level_text_is_split_as_the_models_own_class_splits_it(
    tmp_path: Path, pre: str, reference_class: type
) -> None:
    tokens, merges = trained(reference_class().backend_tokenizer)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    reference = reference_class(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in merges])
    found = written(tmp_path / "t.gguf", "gpt2", tokens, [1] * len(tokens), merges=merges, pre=pre)
    tokenizer = Tokenizer.from_str(found.json)
    for text in [*TEXTS, "cafe\u0301 decomposed"]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.backend_tokenizer.encode(text, add_special_tokens=False).ids, text
        if pre != "qwen2":  # which composes characters
            assert tokenizer.decode(ids) == text


def test_smollm_never_merges_digits(tmp_path: Path) -> None:
    tokens, merges = trained(GPT2Tokenizer().backend_tokenizer)
    assert any(len(t) > 1 and t.isdigit() for t in tokens)
    found = written(tmp_path / "t.gguf", "gpt2", tokens, [1] * len(tokens), merges=merges, pre="smollm")
    tokenizer = Tokenizer.from_str(found.json)
    assert tokenizer.encode("in 2000, 100").tokens[-3:] == ["1", "0", "0"]
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text


def test_llama_3_takes_digits_in_threes_and_whole_words_without_merging(tmp_path: Path) -> None:
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*alphabet, "12", "123", "45", "hello", "<|begin_of_text|>", "<|eot_id|>"]
    types = [1] * (len(tokens) - 2) + [3, 3]
    merges = ["1 2", "12 3", "4 5"]  # none leads to "hello"
    found = written(
        tmp_path / "t.gguf", "gpt2", tokens, types, merges=merges, pre="llama-bpe",
        bos_token_id=len(tokens) - 2, eos_token_id=len(tokens) - 1,
    )  # fmt: skip
    tokenizer = Tokenizer.from_str(found.json)
    assert tokenizer.encode("12345").tokens == ["123", "45"]
    assert tokenizer.encode("hello<|eot_id|>").tokens == ["hello", "<|eot_id|>"]
    assert found.tokens.add_bos  # Llama 3 begins with it even where the file does not say so


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path) -> None:
    tokens = ["<|end|>", "<think>", *sorted(ByteLevel.alphabet())]
    types = [3, 4] + [1] * 256
    found = written(tmp_path / "t.gguf", "gpt2", tokens, types, merges=["a b"][:0], pre="gpt-2", eos_token_id=0)
    tokenizer = Tokenizer.from_str(found.json)
    assert tokenizer.encode("a<think>b<|end|>").tokens == ["a", "<think>", "b", "<|end|>"]
    ids = tokenizer.encode("a<think>b<|end|>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b"
    assert found.tokens.eos == [0]
    assert not found.tokens.add_bos


def sentencepiece_model(**options: Any) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
        minloglevel=2, hard_vocab_limit=False, **options,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def written_from(
    path: Path, model: sentencepiece.SentencePieceProcessor, kind: str = "llama", **fields: Any
) -> TokenizerFiles:
    """As llama.cpp's converter writes a SentencePiece model: runs of spaces with real spaces, types, scores."""
    pieces, types, scores = [], [], []
    for i in range(model.get_piece_size()):
        piece = model.id_to_piece(i)
        if model.is_unknown(i):
            type_ = 2
        elif model.is_control(i):
            type_ = 3
        elif model.is_unused(i):
            type_ = 5
        elif model.is_byte(i):
            type_ = 6
        elif piece.strip("\u2581") == "" and len(piece) > 1:
            type_, piece = 4, " " * len(piece)
        else:
            type_ = 1
        pieces.append(piece)
        types.append(type_)
        scores.append(model.get_score(i))
    return written(
        path, kind, pieces, types, scores=scores, bos_token_id=model.bos_id(), eos_token_id=model.eos_id(),
        unknown_token_id=model.unk_id(), **fields,
    )  # fmt: skip


def test_a_sentencepiece_vocabulary_with_a_leading_space_encodes_as_sentencepiece(tmp_path: Path) -> None:
    model = sentencepiece_model()
    found = written_from(tmp_path / "t.gguf", model)
    tokenizer = Tokenizer.from_str(found.json)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == model.encode(text), text
        assert tokenizer.decode(ids) == text
    assert found.tokens.add_bos
    assert found.tokens.bos == model.bos_id()


def test_a_sentencepiece_vocabulary_without_a_leading_space_matches_runs_of_spaces_whole(tmp_path: Path) -> None:
    runs = ["\u2581" * n for n in range(2, 6)]
    model = sentencepiece_model(add_dummy_prefix=False, user_defined_symbols=runs)
    found = written_from(tmp_path / "t.gguf", model, add_space_prefix=False, add_bos_token=False)
    tokenizer = Tokenizer.from_str(found.json)
    assert tokenizer.get_vocab_size() == model.get_piece_size()
    for text in [*TEXTS, "a     b  c"]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == model.encode(text), text
        assert tokenizer.decode(ids) == text
    assert not found.tokens.add_bos


def test_gemma_4_has_the_merges_of_its_pieces_in_the_file(tmp_path: Path) -> None:
    model = sentencepiece_model(add_dummy_prefix=False)
    implied = json.loads(written_from(tmp_path / "scores.gguf", model, add_space_prefix=False).json)["model"]["merges"]
    merges = [" ".join(pair) for pair in implied]
    found = written_from(tmp_path / "t.gguf", model, kind="gemma4", merges=merges, add_space_prefix=False)
    assert json.loads(found.json)["model"]["merges"] == implied
    tokenizer = Tokenizer.from_str(found.json)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == model.encode(text), text
        assert tokenizer.decode(ids) == text
    assert found.tokens.add_bos
    fewer = written_from(tmp_path / "f.gguf", model, kind="gemma4", merges=merges[:2], add_space_prefix=False)
    assert json.loads(fewer.json)["model"]["merges"] == implied[:2]


# As in Phi-3's tokenizer.json: whether they are special, and whether they eat the white space after them.
PHI3_TOKENS = {
    **{"<unk>": (True, False), "<s>": (True, False), "</s>": (False, True), "<|endoftext|>": (True, False)},
    **dict.fromkeys(("<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>"), (True, True)),
}
PHI3_MERGES = ["h e", "l l", "\u2581 he", "ll o", "\u2581he llo", "\u2581 S"]
PHI3_TEXTS = [
    "<|user|>\nhello<|end|>\n<|assistant|>\n",
    "<|system|>  Shell <|end|> \t\r\n  <|user|>\n\n hello",
    "<|endoftext|>\nhello</s>  hello <s> hello<unk>\nS",
    "hello <|user|> hello\n<|end|>",
    "<|end|>\u00a0\u3000hello",
    "  hello\n",
]


def phi3_vocabulary() -> tuple[list[str], list[int], Tokenizer]:
    """Tokens and their types in a GGUF file, and the tokenizer.json that they come from."""
    letters = ["\u2581", *"hello"[:3], "o", "S"]
    spelled = [*letters, *(merge.replace(" ", "") for merge in PHI3_MERGES)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *spelled, *list(PHI3_TOKENS)[3:]]
    kinds = {"<unk>": 2, "</s>": 4} | {f"<0x{byte:02X}>": 6 for byte in range(256)}
    types = [kinds.get(token, 3 if token in PHI3_TOKENS else 1) for token in tokens]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in PHI3_MERGES)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    for token, (special, rstrip) in PHI3_TOKENS.items():
        added = AddedToken(token, special=special, rstrip=rstrip, normalized=False)
        (own.add_special_tokens if special else own.add_tokens)([added])
    return tokens, types, own


@pytest.mark.parametrize(
    ("name", "architecture", "eats"),
    [
        ("Phi-3 mini", "phi3", True),
        ("phi3", "llama", True),
        ("my finetune", "phi3", True),
        ("my finetune", "llama", False),
    ],
)
def test_phi_3s_special_tokens_eat_the_white_space_after_them(
    tmp_path: Path, name: str, architecture: str, eats: bool
) -> None:
    tokens, types, own = phi3_vocabulary()
    spelled = [merge.replace(" ", "") for merge in PHI3_MERGES]
    scores = [-float(spelled.index(token)) if token in spelled else -1e6 for token in tokens]
    found = written(
        tmp_path / "t.gguf", "llama", tokens, types, architecture=architecture, name=name, scores=scores,
        bos_token_id=1, eos_token_id=tokens.index("<|endoftext|>"), unknown_token_id=0,
    )  # fmt: skip
    tokenizer = Tokenizer.from_str(found.json)
    for text in PHI3_TEXTS[:-1]:
        same = tokenizer.encode(text, add_special_tokens=False).ids == own.encode(text, add_special_tokens=False).ids
        assert same is eats, text
    assert tokenizer.encode(PHI3_TEXTS[-1]).ids == own.encode(PHI3_TEXTS[-1]).ids


def test_phi_4_has_no_such_tokens(tmp_path: Path) -> None:
    tokens = ["<|im_end|>", *sorted(ByteLevel.alphabet())]
    found = written(
        tmp_path / "t.gguf", "gpt2", tokens, [3] + [1] * 256, architecture="phi3", name="Phi 4", merges=[], pre="dbrx"
    )
    assert Tokenizer.from_str(found.json).encode("a<|im_end|>\nb").tokens == ["a", "<|im_end|>", "\u010a", "b"]


class TestRefusals:
    """One sentence for a vocabulary that cannot be used."""

    def test_a_kind_that_is_not_known(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="tokenizer of kind 'rwkv'; known in GGUF files are: gpt2, llama"):
            written(tmp_path / "t.gguf", "rwkv", ["a"], [1])

    def test_a_splitting_rule_that_is_not_known(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="splits text by the rule 'kimi-k2'"):
            written(tmp_path / "t.gguf", "gpt2", ["a"], [1], merges=["a a"], pre="kimi-k2")

    def test_a_special_token_beyond_the_vocabulary(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="eos_token_id is 7, and the vocabulary has 1 tokens"):
            written(tmp_path / "t.gguf", "gpt2", ["a"], [1], pre="gpt-2", eos_token_id=7)

    def test_a_file_without_a_vocabulary(self, tmp_path: Path) -> None:
        writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(CheckpointError, match="holds no tokenizer"):
            gguf_tokenizer.tokenizer_of(GGUFHeader(tmp_path / "t.gguf"))


SMOLLM2 = catalog.local(catalog.resolve("smollm2-135m-instruct"))  # in the user's cache, before tests get their own
LLAMA_CPP = {  # what llama.cpp makes of the same file
    "In 1997, 3.14 of them don't.": [788, 216, 33, 41, 41, 39, 28, 216, 35, 30, 33, 36, 282, 601, 1326, 982, 30],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    "def f(x):\n    return x**2  # square\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 5222, 198],
    "😀 你好世界。": [10813, 242, 218, 216, 18645, 250, 48392, 138, 7906, 240, 178, 239, 230, 19076],
    "  two  spaces\t\n\n": [216, 827, 216, 5600, 197, 1116],
}


@pytest.mark.slow
@pytest.mark.skipif(SMOLLM2 is None or SMOLLM2.suffix != ".gguf", reason="the GGUF of SmolLM2 is not in the cache")
def test_smollm2_encodes_as_llama_cpp_does() -> None:
    tokenizer = Tokenizer.from_str(open_checkpoint(str(SMOLLM2)).tokenizer.json)
    for text, ids in LLAMA_CPP.items():
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
