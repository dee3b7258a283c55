"""Scores of answers against references: exact match and F1, ROUGE-L, BLEU."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from edge.errors import MissingExtraError
from edge.extras import install

References = Sequence[Sequence[str]]
"""For each answer one reference or more."""


def question_answering(answers: Sequence[str], references: References) -> dict[str, float]:
    """Exact match and F1 over words, in percent, with the best reference of each, normalised as SQuAD's evaluation does
    (Rajpurkar et al. 2016): in lower case, without punctuation and articles."""
    exact = f1 = 0.0
    for answer, own in zip(answers, references, strict=True):
        exact += max(float(_words(answer) == _words(reference)) for reference in own)
        f1 += max(_overlap(_words(answer), _words(reference)) for reference in own)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * f1 / len(answers)}


def summarization(answers: Sequence[str], references: References) -> dict[str, float]:
    """ROUGE-L (F-measure, with stemming) in percent, with the best reference of each (Lin 2004)."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise _missing("rouge-score", "ROUGE-L") from None
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    best = [
        max(scorer.score(reference, answer)["rougeL"].fmeasure for reference in own)
        for answer, own in zip(answers, references, strict=True)
    ]
    return {"rouge_l": 100 * sum(best) / len(best)}


def translation(answers: Sequence[str], references: References) -> dict[str, float]:
    """BLEU of the corpus as sacrebleu counts it (Post 2018)."""
    try:
        from sacrebleu import corpus_bleu
    except ModuleNotFoundError:
        raise _missing("sacrebleu", "BLEU") from None
    count = max(map(len, references))
    streams = [[own[min(i, len(own) - 1)] for own in references] for i in range(count)]  # the last one again: no matter
    return {"bleu": float(corpus_bleu(list(answers), streams).score)}


Score = Callable[[Sequence[str], References], dict[str, float]]


def _words(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _overlap(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))


def _missing(package: str, score: str) -> MissingExtraError:
    return MissingExtraError(f"{score} needs {package}; install it with: {install('eval')}")
