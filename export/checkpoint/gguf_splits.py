"""How byte-level vocabularies in GGUF files split text before they merge: the rules that `tokenizer.ggml.pre` names.

The names are llama.cpp's; the rules are those of the tokenizers' own tokenizer.json files, which llama.cpp follows as
far as its regular expressions can. What a pattern finds stands alone, and the next one looks within all pieces.
"""
# ruff: noqa: RUF001 - characters that look like others are what rules are about

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(numbers: str, endings: str = "") -> str:
    """Words that begin in upper case, or are in it as a whole. endings: that belong to a word."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{endings}|{first}{_UPPER}+{_LOWER}*{endings}"
    return words + f"|{numbers}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES


_GPT4O = _cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES,
)
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True)
class Split:
    """A rule for splitting text.

    patterns: regular expressions, applied one after the other. ignore_merges: a piece that is in the vocabulary is one
    token, even if no merges lead to it. nfc: text is normalized to NFC first. add_bos: texts begin with the token bos,
    unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        if self.patterns == (_GPT2,):
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )


GPT2 = Split((_GPT2,))
_RULES = {
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
    "jina-v2-code roberta-bpe exaone4 mpt olmo jais trillion granite-docling": GPT2,
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Split((r"\p{N}", _GPT2)),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Split(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": Split((_LLAMA3,)),
    "qwen2 deepseek-r1-qwen megrez": Split((_QWEN2,), nfc=True),
    "stablelm2 hunyuan solar-open kormo f2llmv2 grok-2": Split((_QWEN2,)),
    "qwen35": Split((_QWEN35,), nfc=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Split((_GPT4O,)),
    "granite-embed-multi-97m": Split((_GPT4O,), ignore_merges=True),
    "tekken": Split((_cased(r"\p{N}"),), ignore_merges=True, add_bos=True),
    "deepseek-llm": Split(
        (
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",  # which the file lists one by one
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-\ud7ff]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm": Split(_DEEPSEEK3),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "poro-chat bloom gpt3-finnish": Split((_WORDS,)),
    "viking": Split((_WORDS, r"\p{N}")),
    "bailingmoe bailingmoe2 llada-moe": Split(
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
    ),
    "seed-coder": Split(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES,),
    ),
    "exaone-moe": Split(
        (
            _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "minicpm5": Split((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), ignore_merges=True),
    "laguna": Split((r"[^\n]+|[\n]+", _QWEN2)),
    "jais-2": Split(
        (
            _LLAMA3.removesuffix(r"\s+(?!\S)|\s+")
            + "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
            + r"\s{1}",
        )
    ),
}


def _by_name() -> Iterator[tuple[str, Split]]:
    for names, rule in _RULES.items():
        for name in names.split():
            yield name, rule


SPLITS = dict(_by_name())

# Tokens that eat the white space after them, which no key of a file says: llama.cpp knows it by the model's name. Its
# other such tokens eat what is before them and belong to encoders (Jina's and ModernBERT's mask).
_PHI3 = ("phi-3", "phi3")
_PHI3_EATS_NONE = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def eats_space(token: str, name: str, architecture: str | None, *, sentencepiece: bool) -> bool:
    """True for a special token that eats the white space after it (`rstrip` in tokenizer.json): Phi-3's, but for three.

    name: the model's. A file may call it something else: an architecture `phi3` with a SentencePiece vocabulary is
    Phi-3's or Phi-3.5's, where Phi-4 has a byte-level one.
    """
    phi3 = any(part in name.lower() for part in _PHI3) or (architecture == "phi3" and sentencepiece)
    return phi3 and token not in _PHI3_EATS_NONE


UNSAID = (None, "", "default")  # by files that are older than the names, or whose converter did not know
# What they have, by architecture and, of Llama's, the size of the vocabulary.
_LLAMA3_TOKENS = (128_256, 128_258)
_BY_ARCHITECTURE = {
    "qwen2": "qwen2",
    "starcoder2": "starcoder",
    "gpt2": "gpt-2",
    "phi2": "phi-2",
    "command-r": "command-r",
}


def guessed(architecture: str | None, vocabulary: int) -> str | None:
    """The name of the rule of a file that names none, by its architecture and the size of its vocabulary; None where
    these do not say."""
    if architecture == "llama" and vocabulary in _LLAMA3_TOKENS:
        return "llama-bpe"
    return _BY_ARCHITECTURE.get(architecture or "")
