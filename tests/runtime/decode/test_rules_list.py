"""The list of rules: its order, what each rule does, line by line, and that a new one is one file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_speech import END, SPEECH, VOCABULARY
from places import DOCS, ROOT
from rules_corpus import lines, made

from edge.registry import Registry
from edge.runtime.decode import rules
from edge.runtime.decode.rules.circles import Circles
from edge.runtime.decode.rules.rule import Joined, RuleSettings
from edge.runtime.decode.sampling import Categorical, SamplingOptions, make_sampler
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.engine.candidates import Candidates
from edge.runtime.speech.rules import speech_rules

ORDER = [
    "repetition-penalty", "no-repeat-ngram", "bad-words", "min-length", "forced-end", "suppress", "begin-suppress",
    "timestamps", "circles", "top-k", "temperature", "top-p", "min-p",
]  # fmt: skip
CORPUS = [json.loads(line) for line in (ROOT / "tests/android/rules.jsonl").read_text("utf-8").splitlines()]


def test_rules_apply_in_this_order() -> None:
    assert [entry.name for entry in rules.in_order()] == ORDER
    table = (DOCS / "reference/hosts.md").read_text("utf-8").partition("## Choosing a token")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(.+?)`", table, re.MULTILINE) == ORDER


@pytest.mark.parametrize("line", CORPUS, ids=lambda line: f"{line['rule']}-{line['options']['seed']}")
def test_a_rule_does_what_its_lines_say(line: dict[str, object]) -> None:
    found = made(line)
    assert (found["left"], found["token"]) == (line["left"], line["token"])
    as_numbers = (np.array(each["changed"], np.float64) for each in (found, line))  # None: no number
    np.testing.assert_allclose(*as_numbers, rtol=1e-6)


def test_every_rule_has_lines_and_the_writer_gives_these() -> None:
    assert {line["rule"] for line in CORPUS} == set(ORDER)
    given = ("rule", "options", "scores", "text")
    assert [[line[key] for key in given] for line in lines()] == [[line[key] for key in given] for line in CORPUS]


AddRule = Callable[[str, str], None]


@pytest.fixture
def add_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddRule]:
    """Puts one file into the folder of rules."""

    def add(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
        monkeypatch.setattr(rules, "RULES", Registry(rules.__name__, "rule"))
        rules._of.cache_clear()

    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    yield add
    rules._of.cache_clear()


EVEN = """
NAME = "even"
HELP = "forbids tokens with odd ids"
TRAITS = {"stage": "scores", "order": 25}

def rule(settings):
    def forbid(texts, scores):
        scores[:, 1::2] = float("-inf")
    return forbid
"""
AGAIN = """
NAME = "again"
HELP = "forbids a token that was the last one"
TRAITS = {"stage": "losses", "order": 20}

def rule(settings):
    return Again() if settings.option("temperature", 0.0) == 0 else None

class Again:
    losses = {}

    def push(self, token):
        self.losses = {token: float("inf")}

    def copy(self):
        other = Again()
        other.losses = self.losses
        return other
"""
HALF = """
NAME = "half"
HELP = "leaves tokens at least half as likely as the likeliest"
TRAITS = {"stage": "weights", "order": 30}

def rule(settings):
    return Half()

class Half:
    def __call__(self, weights):
        return 0.5

    def decides(self, best):
        return bool(best[-1] < 0.5)
"""


def test_a_rule_is_one_file_for_answers_of_all_kinds(add_rule: AddRule) -> None:
    add_rule("even", EVEN)
    assert [entry.name for entry in rules.in_order()] == [*ORDER[:2], "even", *ORDER[2:]]
    row = np.arange(VOCABULARY, dtype=np.float32)
    best = VOCABULARY - 1 - (VOCABULARY - 1) % 2
    for options in (SamplingOptions(), SamplingOptions(temperature=0.01), Text2TextOptions(no_repeat_ngram=2)):
        assert make_sampler(options, [1])(row) == best
    scores = np.zeros((1, VOCABULARY), np.float32)
    for process in speech_rules(SPEECH, END, 1):
        process(np.zeros((1, 2), np.int64), scores)
    assert not np.isfinite(scores[0, 1::2]).any() and np.isfinite(scores[0, ::2]).any()


def test_a_rule_that_knows_before_the_logits_joins_the_one_against_circles(add_rule: AddRule) -> None:
    assert isinstance(rules.make_lowering(RuleSettings(SamplingOptions())), Circles)
    add_rule("again", AGAIN)
    assert isinstance(rules.make_lowering(RuleSettings(SamplingOptions())), Joined)
    sampler, row = make_sampler(SamplingOptions()), np.array([0.0, 3.0, 2.0], np.float32)
    assert [sampler(row) for _ in range(4)] == [1, 2, 1, 2]
    found = rules.make_lowering(RuleSettings(SamplingOptions()))
    assert found is not None
    found.push(2)
    other = found.copy()
    found.push(0)
    assert (dict(found.losses), dict(other.losses)) == ({0: np.inf}, {2: np.inf})


def test_a_rule_of_draws_goes_for_the_candidates_of_a_device_too(add_rule: AddRule) -> None:
    add_rule("half", HALF)
    sampler = make_sampler(SamplingOptions(temperature=1.0, seed=0))
    assert isinstance(sampler, Categorical)
    row = np.linspace(0, 10, 100, dtype=np.float32)
    assert {sampler(row) for _ in range(300)} == set(range(93, 100)), "of less than half the weight are those below"
    order = np.argsort(-row)[:16]
    candidates = Candidates(order, row[order], lambda: pytest.fail("the candidates decide"))
    assert {sampler.among(candidates) for _ in range(300)} == set(range(93, 100))
