"""Writes UnicodeTables.kt: what the `tokenizers` library knows about characters.

Phones know other versions of Unicode than the library does, and the library's parts know three versions among
themselves. These tables are what each part of the library says, so that a text has the same tokens on every phone. Run
this file when a release of the library knows a newer Unicode: it takes a minute, and prints what it wrote.
It needs the package regex, which comes with transformers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import regex
from tokenizers import Regex, normalizers, pre_tokenizers

TARGET = Path(__file__).parent / "src/main/kotlin/dev/edgelm/text/UnicodeTables.kt"
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
TEXT = "".join(map(chr, CODES))
CATEGORIES = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
    "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn",
]  # fmt: skip
CLUSTERS = [  # later ones win
    ("Control", r"[\p{GCB=Control}\p{GCB=CR}\p{GCB=LF}]"),
    ("Extend", r"\p{GCB=Extend}"),
    ("SpacingMark", r"\p{GCB=SpacingMark}"),
    ("Prepend", r"\p{GCB=Prepend}"),
    ("Regional", r"\p{GCB=Regional_Indicator}"),
    ("L", r"\p{GCB=L}"),
    ("V", r"\p{GCB=V}"),
    ("T", r"\p{GCB=T}"),
    ("Pictograph", r"\p{Extended_Pictographic}"),
    ("Consonant", r"\p{InCB=Consonant}"),
    ("Linker", r"\p{InCB=Linker}"),
]


def removed_by(splitter: pre_tokenizers.PreTokenizer) -> set[int]:
    """The characters that a pre-tokenizer takes away."""
    kept = {ord(character) for piece, _ in splitter.pre_tokenize_str(TEXT) for character in piece}
    return set(CODES) - kept


def matched(pattern: str) -> set[int]:
    """The characters that a pattern of the library matches."""
    return removed_by(pre_tokenizers.Split(Regex(f"{pattern}+"), "removed"))


def base32(number: int) -> str:
    """A number in digits 0 to 9 and a to v."""
    digits = "0123456789abcdefghijklmnopqrstuv"
    text = ""
    while number or not text:
        number, digit = divmod(number, 32)
        text = digits[digit] + text
    return text


def runs(of: Callable[[int], int]) -> str:
    """The value of every code point as a letter, each with the length of its run."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZwxyz"  # no digits of base 32
    grouped = itertools.groupby(map(of, range(0x110000)))
    return "".join(letters[value] + base32(sum(1 for _ in run)) for value, run in grouped)


def ranges(codes: Iterable[int]) -> str:
    """A set as the distances between the starts and ends of its ranges."""
    edges: list[int] = []
    for code in sorted(codes):
        if edges and edges[-1] == code:
            edges[-1] = code + 1
        else:
            edges += [code, code + 1]
    return " ".join(base32(b - a) for a, b in itertools.pairwise([0, *edges]))


def lowered() -> Iterator[tuple[int, int, int, int]]:
    """Ranges of characters with lower-case forms: the first, how many, the step between them, the distance."""
    lower = normalizers.Lowercase()
    pairs = [(code, lower.normalize_str(chr(code))) for code in CODES]
    changed = {code: ord(text) - code for code, text in pairs if len(text) == 1 and ord(text) != code}
    assert [code for code, text in pairs if len(text) > 1] == [0x130], "İ alone has two characters"
    while changed:
        first = min(changed)
        distance = changed[first]
        step = 1 if changed.get(first + 1) == distance else 2
        count = 1
        while changed.get(first + count * step) == distance:
            count += 1
        for each in range(count):
            del changed[first + each * step]
        yield first, count, step, distance


def inert() -> set[int]:
    """Characters that a newer Unicode decomposes, reorders or composes and the library does not."""
    active = regex.findall(r"[\P{dt=None}\P{ccc=0}\p{NFC_QC=Maybe}]", TEXT)
    assert len(active) > 10_000, "the module knows these properties"
    nfd, nfc, nfkd = normalizers.NFD(), normalizers.NFC(), normalizers.NFKD()
    second = {character for code in CODES for character in nfd.normalize_str(chr(code))[1:]}

    def known(character: str) -> bool:
        return (
            nfkd.normalize_str(character) != character
            or nfd.normalize_str(f"{character}\u0334") != f"{character}\u0334"
            or nfd.normalize_str(f"\u0327{character}") != f"\u0327{character}"
            or nfc.normalize_str(character) != character
            or character in second
            or "\u1161" <= character <= "\u11c2"  # vowels and finals of Hangul
        )

    return {ord(character) for character in active if not known(character)}


def lines(text: str) -> str:
    """A Kotlin string over some lines of source."""
    parts = [text[at : at + 100] for at in range(0, len(text), 100)]
    return " +\n".join(f'        "{part}"' for part in parts)


def main() -> None:
    category = {code: place for place, name in enumerate(CATEGORIES) for code in matched(rf"\p{{{name}}}")}
    unassigned = CATEGORIES.index("Cn")
    names = {code: CATEGORIES[category[code]] for code in CODES}
    cluster: dict[int, int] = {}
    for place, (_, pattern) in enumerate(CLUSTERS, start=1):
        cluster.update(dict.fromkeys(map(ord, regex.findall(pattern, TEXT)), place))
    numbers = {piece for piece, _ in pre_tokenizers.Digits(True).pre_tokenize_str("".join(f"a{c}a" for c in TEXT))}
    is_number = {code for code in CODES if chr(code) in numbers and chr(code) != "a"}
    is_mark = {code for code in CODES if normalizers.StripAccents().normalize_str(chr(code)) == ""}
    punctuation = removed_by(pre_tokenizers.Punctuation("removed"))
    tables = {
        "CATEGORIES": ("general categories, in the order of `Category`", runs(lambda c: category.get(c, unassigned))),
        "CLUSTERS": ("what joins characters into one, in the order of `Joins`", runs(lambda c: cluster.get(c, 0))),
        "NUMBERS": ("numbers beyond the category's", ranges(is_number - {c for c in CODES if names[c][0] == "N"})),
        "PUNCTUATION": (
            "punctuation that is not in the category, or in the category and none",
            ranges(punctuation ^ {c for c in CODES if names[c][0] == "P"}),
        ),
        "MARKS": (
            "marks that are not in the category, or in the category and none",
            ranges(is_mark ^ {c for c in CODES if names[c][0] == "M"}),
        ),
        "WORDS": (
            "word characters that are neither letters, marks, digits nor connectors",
            ranges(c for c in matched(r"[\w]") if names[c][0] not in "LM" and names[c] not in ("Nd", "Nl", "Pc")),
        ),
        "INERT": ("characters that newer versions of Unicode normalize, and the library does not", ranges(inert())),
        "LOWER": (
            "lower-case forms: first, count, step, distance",
            " ".join(
                f"{base32(first)} {base32(count)} {step} {'-' * (distance < 0)}{base32(abs(distance))}"
                for first, count, step, distance in lowered()
            ),
        ),
    }
    text = "package dev.edgelm.text\n\n/** Written by unicode_tables.py; numbers have base 32. */\n"
    text += "internal object UnicodeTables {\n"
    text += "\n\n".join(
        f"    /** {about[0].upper()}{about[1:]}. */\n    const val {name} =\n{lines(table)}"
        for name, (about, table) in tables.items()
    )
    TARGET.write_text(text + "\n}\n")
    print(f"{TARGET}: " + ", ".join(f"{name} {len(table):,}" for name, (_, table) in tables.items()))


if __name__ == "__main__":
    main()
