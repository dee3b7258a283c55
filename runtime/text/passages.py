"""Texts in passages, for models that were trained on sentences, or that read no line breaks.

NLLB, M2M100 and Marian translate the first sentence of several and leave out others; SentencePiece makes spaces of line
breaks. So a text is split into passages, and their outputs are joined by the text between the passages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.text.tokenizer import Text

OF_SENTENCES = frozenset({"marian", "m2m_100", "mbart"})  # families trained on sentences, where they translate
OF_LINES = frozenset({"t5", "umt5"})
# Of T5: tasks whose output is the text in other words, line by line, and tasks about a text as a whole.
OF_TEXT = ("translat", "grammar", "gec", "correct", "fix", "paraphras", "simplif", "rewrit", "spell", "punctuat")
ABOUT = (
    *("summar", "question", "context", "answer", "generat", "headline", "title", "classif", "sentiment", "extract"),
    *("cola", "sst2", "mnli", "qnli", "qqp", "mrpc", "stsb", "rte", "copa", "boolq", "multirc", "record", "wic", "wsc"),
)
WHOLE = ("flan", "instruct", "summ", "headline", "title", "tldr", "cnn", "question", "-qa", "qa-", "chat")  # in names

_STOPS = r"[.!?\u2026\u061f\u06d4\u0589\u0964\u0965\u1362\u1367\u104b\u17d4\u17d5]"
_WIDE = r"[\u3002\uff01\uff1f\uff61]++"  # after which no space follows
_CLOSING = r"[\"'\u201d\u2019\u00bb\u203a)\]\u300d\u300f\uff09]*+"
_OPENING = "\"'\u201c\u2018\u00ab\u2039([\u300c\u300e\u00bf\u00a1\u201e"
_BORDER = re.compile(rf"(?:(?<!{_STOPS}){_STOPS}++{_CLOSING}(?=[ \t\u00a0])|{_WIDE}{_CLOSING})")
_BEFORE_WORDS = frozenset("([\"'\u2019-")
_LONG = 40  # characters of a word that are looked at
_SHORT = (  # after which a full stop ends no sentence
    " mr mrs ms dr prof sr jr st mt ft vs etc eg ie no nos vol fig figs art ch sec pp ed eds inc ltd co corp dept gen "
    "col lt sgt capt rev hon pres gov sen rep jan feb mar apr jun jul aug sep sept oct nov dec nr bzw ca usw bspw evtl "
    "ggf inkl max min tel str abs hr fr mme mlle mm sra srta dra av ave blvd rd approx cf al "
)
_TASK = re.compile(r"\s*([^\n:]{1,80}):[ \t]+")
_TARGET = re.compile(r"\s*(>>[\w-]+<<|<2[\w-]+>)[ \t]*")


class Passages(NamedTuple):
    """A text in parts. gaps: the text before the first of them, between them, and after the last."""

    texts: list[str]
    gaps: list[str]


Split = Callable[[str], Passages | None]
"""Takes a text apart; None where it is one passage."""


def splitter(manifest: Manifest, text: Text) -> Split | None:
    """Return the function that splits texts for a model into passages; None where it reads each text as a whole."""
    family, form = manifest.family, manifest.text
    if family in OF_SENTENCES and (family != "mbart" or (form is not None and form.languages)):
        return _sentences
    if form is not None and form.target_in_source:  # MADLAD
        return _sentences
    names = f"{manifest.name} {manifest.source.name}".lower()
    if family not in OF_LINES or any(word in names for word in WHOLE):
        return None
    return None if text.reads_lines else _lines


def _sentences(text: str) -> Passages | None:
    lead = _TARGET.match(text)
    begins = "" if lead is None else lead[0]
    return _passages(text[len(begins) :], begins, sentences)


def _lines(text: str) -> Passages | None:
    task = _TASK.match(text)
    if task is None:
        return _passages(text, "", _one)
    words = task[1].lower()
    if any(word in words for word in OF_TEXT):
        return _passages(text[task.end() :], task[0].lstrip(), _one)
    return None if any(word in words for word in ABOUT) else _passages(text, "", _one)


def _one(line: str) -> list[str]:
    return [line]


def _passages(text: str, lead: str, split: Callable[[str], list[str]]) -> Passages | None:
    """The parts of each line of a text, each after `lead`; None where it is one."""
    texts, gaps = list[str](), [list[str]()]
    for piece in re.split(r"([\r\n]+)", text):
        for part in split(piece):
            said = part.strip()
            if not any(map(str.isalnum, said)):  # nothing to answer: it stays as it is
                gaps[-1].append(part)
                continue
            at = part.index(said)
            gaps[-1].append(part[:at])
            texts.append(lead + said)
            gaps.append([part[at + len(said) :]])
    return Passages(texts, ["".join(gap) for gap in gaps]) if len(texts) > 1 else None


def sentences(line: str) -> list[str]:
    """The sentences of a line, with the white space after each."""
    found, start = list[str](), 0
    for border in _BORDER.finditer(line):
        end = border.end()
        while end < len(line) and line[end].isspace():
            end += 1
        if end < len(line) and _ends(line, start, border, end):
            found.append(line[start:end])
            start = end
    return [*found, line[start:]]


def _ends(line: str, start: int, border: re.Match[str], after: int) -> bool:
    """True if a sentence ends at a border, and another begins `after` it."""
    while after < len(line) and line[after] in _OPENING:
        after += 1
    if line[after : after + 1].islower():
        return False
    if border[0][:1] != "." or border[0][:2] == "..":
        return True
    begins, least = border.start(), max(start, border.start() - _LONG)
    while begins > least and not line[begins - 1].isspace() and line[begins - 1] not in _BEFORE_WORDS:
        begins -= 1
    word = line[begins : border.start()]
    if len(word) == 1 and word.isalpha() and ord(word) < 0x250:  # an initial
        return False
    return not ("." in word or f" {word.lower()} " in _SHORT or (word.isdigit() and len(word) < 3))
