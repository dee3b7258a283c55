"""Writes what the Kotlin tokenizer is compared with: tokenizers of all kinds, texts, what the library makes of them.

`write(folder, lines, seed)` makes a folder for each tokenizer with its `tokenizer.json` and `cases.jsonl`, of which
each line has a text with its ids and their text, or ids with their text, or a stream of ids with the detokenizer's
pieces; the first has what the vocabulary is. `patterns.jsonl` has regular expressions with the parts that they split.
"""

# ruff: noqa: RUF001 (patterns of real tokenizers have characters that look like others)

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from odd_texts import SENTENCES, odd_texts
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from unigram_tokenizers import trained_pieces

from edge.runtime.text.tokenizer import Detokenizer

LEARNT = [*SENTENCES[:12], SENTENCES[39]]  # for vocabularies that lack most scripts
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
OLMO = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
PATTERNS = [
    LLAMA3, OLMO, O200K, DEEPSEEK, BLOOM, r"\w+|[^\w\s]+", r"[\w-]+|\W", r"\s+", " {2,}", r"\d",
    r"\D+", r"[^\S\n]+", ".+", "^", "$", r"\Aa|\n\z", "[一-龥぀-ゟ゠-ヿ]+", r"(?:ab|a)+b?", "a{2}",
    "a{,2}b", "a{1,}?", "(?>a|ab)c", "a++b", "x*", "(?=b)",
    "(?!a)[a-c]", r"[]a-c-]+", r"[\]\\\-a]+", r"\p{^L}+", r"\P{Lu}+", r"(?i)[a-k]+|S", "(?i:k|s)+", r"\h+",
    r"[^a-z&]+", r"\x{1F600}|\u00e9|\x41", r"\p{P}|\p{Zs}|\p{Sc}", r"(a|b)+?c", "a{", r"\p{L}+['’]?(?:[a-z]+)?", "",
]  # fmt: skip


def bpe(split: Any, normalizer: Any = None, **options: Any) -> Tokenizer:
    """Byte-pair encoding in bytes, trained on a few sentences."""
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = split
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        min_frequency=1,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 2, trainer)
    return tokenizer


def byte_level(*before: Any, **options: Any) -> Any:
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not before, **options)
    return pre_tokenizers.Sequence([*before, last]) if before else last


def split(pattern: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def fallback(normalizer: Any, splitter: Any, **options: Any) -> Tokenizer:
    """Byte-pair encoding of characters, with bytes for those that it lacks, as SentencePiece models have it."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=pieces, show_progress=False)
    trained.train_from_iterator(LEARNT, trainer)
    content = json.loads(trained.to_str())
    content["model"] |= {"byte_fallback": True, "fuse_unk": True, **options}
    content["added_tokens"] = [each for each in content["added_tokens"] if each["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if splitter is None:
        content["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(content))
    else:
        tokenizer.pre_tokenizer = splitter
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def unigram(normalizer: Any, splitter: Any, decoder: Any, byte_fallback: bool = False) -> Tokenizer:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(LEARNT * 5, trainer)
    pieces = json.loads(trained.to_str())["model"]["vocab"]  # of equal ones the trainer's order is another each time
    learnt = sorted({(piece, round(score, 2)) for piece, score in pieces[3:]}, key=lambda each: (-each[1], each[0]))
    if byte_fallback:
        learnt += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram([*((each, 0.0) for each in special), *learnt], 2, byte_fallback))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(special)
    return tokenizer


def precompiled() -> Any:
    return normalizers.Precompiled(trained_pieces()[1])


def whisper() -> Tokenizer:
    tokenizer = bpe(byte_level())
    tokenizer.add_special_tokens(["<|startoftranscript|>", "<|en|>", "<|de|>", "<|notimestamps|>"])
    tokenizer.add_tokens([AddedToken(f"<|{each * 0.02:.2f}|>", normalized=False) for each in range(100)])
    return tokenizer


def added() -> Tokenizer:
    """Added tokens with each option, after normalization and before."""
    tokenizer = bpe(byte_level(), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    tokenizer.add_special_tokens(
        [
            AddedToken("<LEFT>", lstrip=True),
            AddedToken("<Right>", rstrip=True),
            AddedToken("<both>", lstrip=True, rstrip=True),
            AddedToken("<norm>", normalized=True),
            AddedToken("<Norm2>", normalized=True, lstrip=True),
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken("word", single_word=True),
            AddedToken("Größe", single_word=True, normalized=True),
            AddedToken("ab", normalized=False),
            AddedToken("abc", normalized=False),
            AddedToken("bcd", normalized=False, rstrip=True),
            AddedToken("  ", normalized=False),
            AddedToken("ＡＢＣ", normalized=True),
            AddedToken("👍", normalized=False, single_word=True),
        ]
    )
    return tokenizer


def gemma() -> Tokenizer:
    spaced = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer = fallback(normalizers.Replace(" ", "▁"), spaced)
    tokenizer.add_special_tokens(["<bos>", "<start_of_turn>", "<end_of_turn>"])
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in ("\n\n", "▁▁", "▁▁▁", "\t\t", "<h1>")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def phi3() -> Tokenizer:
    tokenizer = fallback(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None)
    tokenizer.add_special_tokens([AddedToken(f"<|{each}|>", rstrip=True) for each in ("user", "end", "assistant")])
    return tokenizer


def plain_bpe() -> Tokenizer:
    """Without bytes: unknown characters, each a token, or lost; and no decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    parts = [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(parts)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(LEARNT, trainer)
    return tokenizer


def without_unknown() -> Tokenizer:
    content = json.loads(plain_bpe().to_str())
    content["model"]["unk_token"] = None
    content["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    return Tokenizer.from_str(json.dumps(content))


def behaviors() -> Tokenizer:
    """Each way to split, one after the other."""
    parts = [
        split(r"[\r\n]+", "merged_with_previous"),
        split("[aeiou]", "merged_with_next"),
        pre_tokenizers.Split("- ", "removed"),
        split(r"\p{L}+|\s", "contiguous"),
        split(r"[\p{L}\p{N}]{1,4}", "isolated", invert=True),
        split("[b-f]", "merged_with_previous", invert=True),
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.Digits(individual_digits=False),
    ]
    return bpe(byte_level(*parts))


def starts() -> Tokenizer:
    """A mark at the start of a text only, where normalizers move that."""
    parts = [normalizers.Strip(True, False), normalizers.Replace(Regex("^(<|  )"), "«»"), normalizers.NFKC()]
    splitters = [pre_tokenizers.Digits(True), pre_tokenizers.Metaspace(prepend_scheme="first")]
    decoder = decoders.Metaspace(prepend_scheme="first")
    return unigram(normalizers.Sequence(parts), pre_tokenizers.Sequence(splitters), decoder)


def metaspace(**options: Any) -> Any:
    return pre_tokenizers.Metaspace(**options)


RUN = Regex(" {2,}")
LLAMA2 = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: bpe(byte_level()),
    "gpt2-spaced": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "smollm2": lambda: bpe(byte_level(pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "llama3": lambda: bpe(byte_level(split(LLAMA3)), ignore_merges=True),
    "qwen2": lambda: bpe(byte_level(split(LLAMA3.replace("{1,3}", ""))), normalizers.NFC()),
    "olmo2": lambda: bpe(byte_level(split(OLMO))),
    "gpt-4o": lambda: bpe(byte_level(split(O200K))),
    "deepseek": lambda: bpe(byte_level(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK))),
    "bloom": lambda: bpe(byte_level(split(BLOOM))),
    "falcon": lambda: bpe(
        byte_level(pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(), split("[0-9][0-9][0-9]"))
    ),
    "whisper": whisper,
    "added": added,
    "behaviors": behaviors,
    "bytes-normalized": lambda: bpe(split(r"Ġ?[^Ġ]+"), normalizers.ByteLevel()),
    "llama2": lambda: fallback(LLAMA2, None),
    "mistral": lambda: fallback(normalizers.NFKD(), metaspace(prepend_scheme="first", split=False)),
    "gemma": gemma,
    "phi3": phi3,
    "no-fusing": lambda: fallback(normalizers.NFC(), metaspace(prepend_scheme="always"), fuse_unk=False),
    "plain-bpe": plain_bpe,
    "without-unknown": without_unknown,
    "t5": lambda: unigram(
        normalizers.Sequence([precompiled(), normalizers.Strip(False, True), normalizers.Replace(RUN, "▁")]),
        metaspace(),
        decoders.Metaspace(),
    ),
    "nllb": lambda: unigram(
        normalizers.Sequence([precompiled(), normalizers.Replace(RUN, " ")]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()]),
        decoders.Metaspace(),
    ),
    "marian": lambda: unigram(precompiled(), metaspace(prepend_scheme="never", split=False), decoders.Metaspace()),
    "unigram-bytes": lambda: unigram(
        normalizers.NFKC(),
        metaspace(prepend_scheme="first"),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")]),
        byte_fallback=True,
    ),
    "starts": starts,
}


def old_form(content: dict[str, Any]) -> dict[str, Any]:
    """As old files are: merges as texts, no type of the model."""
    model = content["model"]
    merges = [" ".join(merge) for merge in model.pop("merges")]
    del model["type"]
    return content | {"model": model | {"continuing_subword_prefix": "", "end_of_word_suffix": "", "merges": merges}}


def cases(tokenizer: Tokenizer, lines: int, seed: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    vocabulary = tokenizer.get_vocab_size()
    tokens = tokenizer.get_added_tokens_decoder()
    special = {place for place, token in tokens.items() if token.special}
    ids = [*range(40), *chance.sample(range(vocabulary + 20), 60), *tokens]
    yield {"size": vocabulary, "special": sorted(special), "tokens": {i: tokenizer.id_to_token(i) for i in ids}}

    def decode(ids: Any) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=True)

    detokenizer = Detokenizer(decode, frozenset(special))
    contents = [token.content for token in tokens.values()][:16]
    for place, text in enumerate(itertools.islice(odd_texts(seed, contents), lines)):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        yield {"text": text, "ids": ids, "decoded": decode(ids)}
        if place % 10:
            continue
        some = [chance.randrange(vocabulary + 10) for _ in range(chance.randint(1, 30))]
        yield {"ids": some, "decoded": decode(some)}
        for stream in (some, ids[:200]):
            yield {"stream": stream, "pieces": [*map(detokenizer.push, stream), detokenizer.flush()]}


def write(folder: Path, lines: int, seed: int) -> None:
    """A folder for each tokenizer with `lines` texts, and the patterns with as many in all."""
    for place, (name, make) in enumerate(KINDS.items()):
        content = json.loads(make().to_str())
        if name == "gpt2-spaced":
            content = old_form(content)
        write_one(folder / name, content, lines, seed + place)
    with (folder / "patterns.jsonl").open("w") as file:
        for place, pattern in enumerate(PATTERNS):
            splitter = split(pattern)
            texts = odd_texts(seed + place, ["aab", "abac", "a1b2"])
            for text in itertools.islice(texts, max(60, lines // len(PATTERNS))):
                parts = [part for part, _ in splitter.pre_tokenize_str(text)]
                print(json.dumps({"pattern": pattern, "text": text, "parts": parts}), file=file)


def write_one(folder: Path, content: dict[str, Any], lines: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    tokenizer = Tokenizer.from_str(json.dumps(content))
    with (folder / "cases.jsonl").open("w") as file:
        for case in cases(tokenizer, lines, seed):
            print(json.dumps(case), file=file)


if __name__ == "__main__":  # FOLDER LINES SEED, and files of real tokenizers
    target, count, start = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    write(target, count, start)
    for number, path in enumerate(map(Path, sys.argv[4:])):
        write_one(target / f"real-{number}", json.loads(path.read_text()), count, start + number)
