"""What each rule does to a row of scores, in a file that the tests of both hosts read.

    python tests/android/rules_corpus.py tests/android/rules.jsonl

One JSON object a line. `rule`: whose line it is. `options`: of an answer, under Python's names. `bundle`, `speech`:
parts of a manifest. `ends`: the tokens that end a text. `text`: the tokens so far, of which the first `begin` were not
generated; `most`: maximum tokens of it. `source`: what it may repeat. `last`: the timestamp at which a sound ends.
`scores`: of what may follow; `changed`: the same after all rules that change scores, null for a forbidden token.
`left`: the tokens that are allowed, or drawn from. `token`: the one that is taken, or the first that is drawn with the
seed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge.manifest import Generation, Speech
from edge.runtime.decode import rules
from edge.runtime.decode.rules.rule import RuleSettings
from edge.runtime.decode.sampling import Categorical, greedy, make_chooser
from edge.runtime.decode.text2text_options import Text2TextOptions

Line = dict[str, Any]
VOCABULARY = 24
END, START, ZERO = 9, 11, 13
BUNDLE = {"suppress": [8], "begin_suppress": [2, END]}
SPEECH = BUNDLE | {
    "sample_rate": 16_000,
    "window_samples": 480_000,
    "start": START,
    "no_timestamps": 12,
    "timestamp_begin": ZERO,
    "max_initial_timestamp_index": 3,
}
TEXT = [1, 5, 3, 5, 3, 2]
WORDS = [*range(5)]
# The rule, and what is not as usual in its line.
CASES: list[tuple[str, Line]] = [
    ("repetition-penalty", {"options": {"repetition_penalty": 1.3}, "text": TEXT}),
    ("repetition-penalty", {"options": {"repetition_penalty": 0.5}, "text": TEXT}),
    ("repetition-penalty", {"bundle": {"repetition_penalty": 2.0}, "text": TEXT}),
    ("repetition-penalty", {"bundle": {"repetition_penalty": 2.0}, "options": {"repetition_penalty": 1}, "text": TEXT}),
    ("no-repeat-ngram", {"options": {"no_repeat_ngram": 1}, "text": TEXT}),
    ("no-repeat-ngram", {"options": {"no_repeat_ngram": 2}, "text": [1, 5, 3, 7, 5, 3, 2, 5]}),
    ("no-repeat-ngram", {"bundle": {"no_repeat_ngram_size": 3}, "text": [1, 5, 3, 7, 0, 5, 3]}),
    ("no-repeat-ngram", {"bundle": {"no_repeat_ngram_size": 3}, "text": [5]}),
    ("bad-words", {"bundle": {"bad_words": [[4], [3, 2], [5, 3, 2], [3, 6]]}, "text": [1, 5, 3]}),
    ("min-length", {"options": {"min_tokens": 3}, "text": [START, 1, 5], "ends": [4, END]}),
    ("min-length", {"options": {"min_tokens": 3}, "text": [START, 1, 5, 6], "ends": [4, END]}),
    ("min-length", {"bundle": {"min_length": 3}, "text": [START, 1]}),
    ("min-length", {"bundle": {"min_length": 3}, "text": [START, 1, 5]}),
    ("min-length", {"bundle": {"min_length": 9}, "options": {"min_tokens": 0}, "text": [START, 1, 5]}),
    ("forced-end", {"bundle": {"forced_eos": END}, "text": TEXT, "most": 7}),
    ("forced-end", {"bundle": {"forced_eos": END}, "text": TEXT, "most": 8}),
    ("suppress", {"bundle": {"suppress": [0, 3, 17]}}),
    ("begin-suppress", {"bundle": {"begin_suppress": [0, 3, 17]}, "text": [START, 12], "begin": 2}),
    ("begin-suppress", {"bundle": {"begin_suppress": [0, 3, 17]}, "text": [START, 12, 5], "begin": 2}),
    *(
        ("timestamps", {"bundle": BUNDLE, "speech": SPEECH, "text": [START, *said], "last": last})
        for said in (
            [],
            [ZERO],
            [ZERO, 1, 5],
            [ZERO, 1, ZERO + 2],
            [ZERO, 1, ZERO + 2, ZERO + 2],
            [ZERO + 1, 1, ZERO + 3, ZERO + 3, 7],
        )
        for last in (None, 6)
    ),
    ("circles", {"text": [START, *(WORDS * 9)]}),
    ("circles", {"text": [START, *(WORDS * 3)]}),
    ("circles", {"text": [START, *(WORDS * 9)], "source": WORDS * 8}),
    ("circles", {"text": [START, *(WORDS * 9)], "options": {"circles": "allow"}}),
    ("circles", {"text": [START, *(WORDS * 9)], "options": {"temperature": 1.0}}),
    *(("temperature", {"options": {"temperature": value}}) for value in (1e-300, 0.2, 0.7, 1.0, 3.0)),
    *(("top-k", {"options": {"temperature": 1.5, "top_k": count}}) for count in (1, 4, 23, 24, 500)),
    ("top-k", {"options": {"temperature": 1.5, "top_k": 3}, "equal": True}),
    *(("top-p", {"options": {"temperature": 1.5, "top_p": share}}) for share in (0.05, 0.5, 0.9, 0.999)),
    ("top-p", {"options": {"temperature": 1.5, "top_p": 0.6}, "equal": True}),
    *(("min-p", {"options": {"temperature": 1.5, "min_p": share}}) for share in (0.01, 0.2, 1.0)),
    ("min-p", {"options": {"temperature": 1.5, "min_p": 0.2, "top_p": 0.4}}),
    ("min-p", {"options": {"temperature": 1.5, "min_p": 0.3, "top_p": 0.95, "top_k": 9, "repetition_penalty": 1.4}}),
]


def lines() -> Iterator[Line]:
    """Every case with scores of its own, and what the rules make of these."""
    random = np.random.default_rng(5)
    for place, (name, given) in enumerate(CASES):
        scores = np.round(random.normal(0, 2, VOCABULARY), 3)
        line: Line = {"rule": name, "options": {"seed": place}, "text": [START], "begin": 1, "most": 99, "ends": [END]}
        equal = given.get("equal", False)
        line |= {key: value for key, value in given.items() if key != "equal" and value is not None}
        line["options"] = {"seed": place} | line["options"]
        line["scores"] = (np.round(scores) if equal else scores).tolist()
        yield line | made(line)


def made(line: Line) -> Line:
    """What the rules make of a line's scores."""
    settings = RuleSettings(
        Text2TextOptions(**line["options"]),
        Generation(**line.get("bundle", {})),
        ends=line["ends"],
        begin=line["begin"],
        most=line["most"],
        source=line.get("source", []),
        speech=Speech(**line["speech"]) if "speech" in line else None,
        last=line.get("last"),
    )
    scores = np.array([line["scores"]], np.float32)
    for process in rules.make_processors(settings):
        process(np.array([line["text"]]), scores)
    row = scores[0]
    if (lowering := rules.make_lowering(settings)) is not None:
        for token in line["text"][line["begin"] :]:
            lowering.push(token)
        for token, loss in lowering.losses.items():
            row[token] -= np.float32(loss)
    changed = [float(score) if np.isfinite(score) else None for score in row]
    left, token = np.flatnonzero(np.isfinite(row)), greedy(row)
    sampler = make_chooser(settings)
    if isinstance(sampler, Categorical):
        weights, tokens = sampler.left(row, float(row.max()), None)
        left, token = (np.arange(len(row)) if tokens is None else tokens)[weights > 0], sampler(row)
    return {"changed": changed, "left": left.tolist(), "token": token}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(line)}\n" for line in lines()), "utf-8")
