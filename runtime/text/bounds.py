"""Bounds on a stranger's `tokenizer.json`: on memory, where texts grow, and on time.

The tokenizers library does what the file says. A chain of replacements can make gigabytes of a word, so what it may
make is computed before a text is given to it. Some parts take years for a page: regular expressions that go back and
try again, WordPiece where words have no end, pieces as long as the text. Those that take time in proportion to the text
are listed here, as far as checkpoints use them; all others run in a thread that is not waited for beyond a limit.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from edge.errors import BundleError

T = TypeVar("T")

LARGEST = 1 << 27  # bytes of a tokenizer.json; the largest known have a quarter
MOST = 1 << 26  # characters that may be made of a text
OF_TOKEN = 1 << 16  # characters of a token
ASSUMED = 64  # characters of a token whose text is not known yet
CALM_S = 10.0  # that a text may take, and for each character
CHARACTER_S = 1e-5

MOST_PARTS = 16  # of a tokenizer that is known: those of checkpoints have half
MOST_OPTION = 64  # characters of what is put before or after each piece
WORD = 200  # characters of a word that WordPiece looks up in all ways: checkpoints have 100

# Most characters that one becomes.
GROWTH = {
    **{"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 3, "ByteLevel": 4},
    **{"Metaspace": 2, "BPEDecoder": 2, "CTC": 2},
}
# Parts that take time in proportion to the text. A Unigram model is none: its pieces may be as long as the text.
LINEAR = frozenset(
    {
        *(None, "Sequence", "Replace", "Strip", "Metaspace", "ByteLevel", "Split"),
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "StripAccents"),
        *("BertPreTokenizer", "CharDelimiterSplit", "Digits", "Punctuation", "UnicodeScripts", "Whitespace"),
        "WhitespaceSplit",
        *("BPEDecoder", "ByteFallback", "CTC", "Fuse", "WordPiece"),
    }
)
# Of well-known families; each is done with a text in about the time that reading it takes.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KNOWN = frozenset(
    [
        *(r"\s+", r" {2,}", r"\s", r"\d", r"[0-9]", r"\n", r"[\r\n]", r"\p{N}", r"\p{N}{1,3}", "[0-9][0-9][0-9]"),
        *("[一-龥぀-ゟ゠-ヿ]+", " ?[^(\\s|[.,!?…。，、।۔،])]+"),  # noqa: RUF001
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_END}",  # Llama 3
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_END}",  # Qwen 2
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"  # OLMo 2
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?" + f"{_UPPER}*{_LOWER}+{_SHORT}?"  # GPT-4o
        r"|[^\r\n\p{L}\p{N}]?" + f"{_UPPER}+{_LOWER}*{_SHORT}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"  # DeepSeek
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)  # fmt: skip


def parts_of(tokenizer: Any) -> list[dict[str, Any]]:
    """The normalizer and the decoder of a library's tokenizer as its file has them, then the parts that split its
    texts."""
    parts = (tokenizer.normalizer, tokenizer.decoder, tokenizer.pre_tokenizer)
    return [{"type": None} if part is None else json.loads(part.__getstate__()) for part in parts]


def growth(part: dict[str, Any]) -> float:
    """Maximum characters that a part makes of one."""
    kind = part["type"]
    if kind == "Sequence":
        product = 1.0
        for inner in _inner(part):
            product *= growth(inner)
        return product
    if kind == "Replace":
        found = part["pattern"].get("String")
        return max(1.0, len(part["content"]) / len(found)) if found else 1.0 + len(part["content"])
    if kind == "Prepend":
        return 1.0 + len(part["prepend"])
    if kind == "Precompiled":
        blob = base64.b64decode(part["precompiled_charsmap"])
        return max([1.0, *(float(len(text)) for text in blob[4 + int.from_bytes(blob[:4], "little") :].split(b"\0"))])
    return float(GROWTH.get(kind, 1))


def is_known(parts: list[dict[str, Any]]) -> bool:
    """True if these parts, and all regular expressions in them, are known to take time in proportion to a text."""
    every = [inner for part in parts for inner in flat(part)]
    if len(every) > MOST_PARTS or any(part["type"] not in LINEAR for part in every):
        return False
    patterns = [part["pattern"] for part in every if isinstance(part.get("pattern"), dict)]
    return all(pattern["Regex"] in KNOWN for pattern in patterns if "Regex" in pattern)


def is_known_model(model: Any) -> bool:
    """True if a library's model is known to take time in proportion to a text that nothing splits."""
    kind = type(model).__name__
    if kind == "WordLevel":
        return True
    if kind not in ("BPE", "WordPiece") or getattr(model, "dropout", None) is not None:
        return False
    names = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    short = all(len(getattr(model, name, None) or "") <= MOST_OPTION for name in names)
    return short and getattr(model, "max_input_chars_per_word", 0) <= WORD


def are_known_tokens(added: Iterable[Any], normalizer: dict[str, Any]) -> bool:
    """True if added tokens are known to take time in proportion to a text. Those that take the spaces around them may
    not be spaces: each would go through all the others."""
    taking = [token for token in added if token.lstrip or token.rstrip]
    plain = normalizer["type"] is None
    return all(
        token.content and (plain or not token.normalized) and not any(map(str.isspace, token.content))
        for token in taking
    )


def flat(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A part and all parts in it."""
    yield part
    for inner in _inner(part):
        yield from flat(inner)


def _inner(part: dict[str, Any]) -> list[dict[str, Any]]:
    return next((part[name] for name in ("normalizers", "decoders", "pretokenizers") if name in part), [])


def check_lengths(splitter: dict[str, Any]) -> None:
    """Raise ValueError where texts would be split into parts of no length: the library ends a thread instead."""
    if any(part["type"] == "FixedLength" and part["length"] < 1 for part in flat(splitter)):
        raise ValueError("it splits texts into parts of no length")


def check_made(characters: float, what: str) -> None:
    """Raise BundleError where more than `MOST` characters may be made. what: the source of these characters, for the
    message."""
    if characters > MOST:
        raise BundleError(
            f"The bundle's tokenizer may make more than {MOST:,} characters of {what}; shorten the text, or use "
            "another bundle."
        )


def in_time(work: Callable[[], T], characters: int) -> T:
    """Return the result of `work`, which lets other threads run; BundleError where it takes longer than any text of so
    many characters. It then goes on until the process ends, which does not wait for it."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as e:  # Rust's panics are no Exceptions
            failed.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(CALM_S + CHARACTER_S * characters)
    if failed:
        raise failed[0]
    if not done:
        raise BundleError(
            f"The bundle's tokenizer has not come to an end of {characters:,} characters in "
            f"{CALM_S + CHARACTER_S * characters:.0f} s; use another bundle."
        )
    return done[0]
