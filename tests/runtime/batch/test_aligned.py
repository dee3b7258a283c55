"""Aligned sampling: of several answers in a form one is drawn as likely as the model finds it."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.manifest import Thinking
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.model import Model

pytest.importorskip("llguidance")

WORDS = "moon|tide|train|a[bc]d|xyz"
FORM: dict[str, Any] = {"regex": WORDS, "max_tokens": 20, "temperature": 1.0}


@pytest.fixture(scope="module")
def model(pristine_tiny_bundle: Bundle) -> Model:
    return edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")


def answers(model: Model, monkeypatch: pytest.MonkeyPatch, prompt: str, **options: Any) -> list[BatchAnswer]:
    """The answers of which one is drawn."""
    made: list[BatchAnswer] = []

    def kept(self: BatchAnswer, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        self.weighed = self.sampler
        made.append(self)

    init = BatchAnswer.__init__
    with monkeypatch.context() as patch:
        patch.setattr(BatchAnswer, "__init__", kept)
        model.generate(prompt, **{"grammar_sampling": "aligned"} | FORM | options)
    return made


def log_weight(model: Model, prompt: list[int], tokens: list[int], temperature: float, drawn: Any) -> float:
    """log p - log q of tokens after a prompt, by logits that are computed for them alone. drawn: of a row of logits and
    the allowed tokens, those that are drawn from."""
    from edge.runtime.decode.form import REGEX, Form
    from edge.runtime.decode.grammar import constrained

    seen: list[np.ndarray] = []

    def told(left: np.ndarray) -> int:
        seen.append(left.copy())
        return tokens[len(seen) - 1]

    sampler, total = constrained(told, model.text, Form(REGEX, WORDS)), 0.0
    for n in range(len(tokens)):
        cache = model.engine.new_cache(len(prompt) + n + 1)
        row = model.engine.step(cache, np.array([*prompt, *tokens[:n]], np.int64))[-1].astype(np.float64)
        sampler(row.astype(np.float32))
        p = np.exp((row - row.max()) / temperature)
        total += np.log(p[drawn(row, np.flatnonzero(seen[-1] > -np.inf))].sum() / p.sum())
    return total


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_weights_are_what_the_masks_left(model: Model, monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    prompt = model.prompt_ids("The moon")
    found = answers(model, monkeypatch, "The moon", temperature=temperature)
    assert len(found) == 8 and len({tuple(each.tokens) for each in found}) > 1
    for each in found:
        wanted = log_weight(model, prompt, each.tokens, temperature, lambda _, allowed: allowed)
        assert each.weighed.weight == pytest.approx(wanted, abs=1e-3)


def _best(row: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return allowed[np.argsort(-row[allowed])[:2]]


def _likely(row: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return allowed[row[allowed] >= row[allowed].max() + np.log(0.5)]


@pytest.mark.parametrize(("options", "best"), [({"top_k": 2}, _best), ({"min_p": 0.5}, _likely)])
def test_what_options_leave_out_counts_too(
    model: Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], best: Any
) -> None:
    prompt = model.prompt_ids("The moon")
    for each in answers(model, monkeypatch, "The moon", **options):
        assert each.weighed.weight == pytest.approx(log_weight(model, prompt, each.tokens, 1.0, best), abs=1e-3)


def test_texts_come_as_often_as_the_model_would_say_them(model: Model) -> None:
    """Exactly: all ways to write the texts of the form, by their probabilities."""
    prompt, probability = model.prompt_ids("The moon"), Counter[str]()

    @lru_cache(None)
    def row(tokens: tuple[int, ...]) -> np.ndarray:
        cache = model.engine.new_cache(len(prompt) + len(tokens) + 1)
        logits = model.engine.step(cache, np.array([*prompt, *tokens], np.int64))[-1].astype(np.float64)
        p = np.exp(logits - logits.max())
        return p / p.sum()

    from edge.runtime.decode.form import REGEX, Form
    from edge.runtime.decode.grammar import constrained

    def walk(tokens: tuple[int, ...], p: float) -> None:
        told, seen = iter([*tokens, next(iter(model.text.eos))]), []
        sampler = constrained(lambda left: seen.append(left.copy()) or next(told), model.text, Form(REGEX, WORDS))
        for _ in range(len(tokens) + 1):
            sampler(np.zeros(len(row(tokens)), np.float32))
        for token in np.flatnonzero(seen[-1] > -np.inf):
            if int(token) in model.text.eos:
                probability[model.text.decode([*tokens])] += p * row(tokens)[token]
            else:
                walk((*tokens, int(token)), p * row(tokens)[token])

    walk((), 1.0)
    total = sum(probability.values())
    assert set(probability) == {"moon", "tide", "train", "abd", "acd", "xyz"}

    def distance(how: str) -> float:
        drawn = Counter(model.generate("The moon", **FORM, seed=s, grammar_sampling=how).text for s in range(200))
        return sum(abs(drawn[text] / 200 - p / total) for text, p in probability.items()) / 2

    masks, nearer = distance("masks"), distance("aligned:16")
    assert nearer < 0.1 and nearer < masks / 2


def test_the_same_call_gives_the_same_answer_whatever_grows_in_parallel(pristine_tiny_bundle: Bundle) -> None:
    """Also where memory is planned for one at a time, and of answers to several prompts."""
    calls = [("The moon", 0), ("The moon", 1), ("A train", 2), ("A train", 3)]
    options = [GenerateOptions(**FORM, seed=seed, grammar_sampling="aligned") for _, seed in calls]
    found = []
    for about in ({}, {"memory": "8GB", "context": 64}):
        model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off", **about)
        found.append([model.generate(p, o).token_ids for (p, _), o in zip(calls, options, strict=True)])
    found.append([each.token_ids for each in model.generate_all([prompt for prompt, _ in calls], options)])
    assert found[0] == found[1] == found[2]


def test_answers_that_end_go_before_those_that_were_cut_off(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"regex": "(moon|tide|abcd )+!"}
    found = [
        model.generate("The moon", **FORM | form | {"max_tokens": 8}, seed=seed, grammar_sampling="aligned:32")
        for seed in range(8)
    ]
    ends = {each.finish_reason for each in found}
    assert "stop" in ends and all(each.text.endswith("!") for each in found if each.finish_reason == "stop")
    cut = model.generate("The moon", **FORM | {"regex": "[a-z]{90}", "max_tokens": 3}, grammar_sampling="aligned:2")
    assert cut.finish_reason == "length" and cut.generated_tokens == 3


def test_a_dead_end_is_an_answer_that_nobody_draws(model: Model) -> None:
    """A lexer does not see that no letter is two others at once before it is there."""
    form = {"grammar": 'start: "moon" X | "tide"\nX: /a/ & /b/', "regex": None}
    ends = set()
    for seed in range(8):
        try:
            ends.add(model.generate("The moon", **FORM | form, seed=seed).text)
        except InputError:
            ends.add("error")
    assert ends == {"tide", "error"}
    for seed in range(8):
        assert model.generate("The moon", **FORM | form, seed=seed, grammar_sampling="aligned:16").text == "tide"


def test_where_all_came_to_a_dead_end_it_is_said(model: Model) -> None:
    form = {"grammar": 'start: ("moon" | "tide") X\nX: /a/ & /b/', "regex": None}
    with pytest.raises(InputError, match="form that it is to have"):
        model.generate("The moon", **FORM | form, grammar_sampling="aligned")


@pytest.mark.parametrize(
    "marks",
    [
        Thinking("<think>", "</think>"),
        Thinking("<think>", "</think>", default=False),
        Thinking("<think>", "</think>", words=["/think", "/no_think"]),
        Thinking("<think>", "</think>", variable="enable_thinking"),
    ],
)
@pytest.mark.parametrize("how", ["masks", "aligned"])
def test_models_that_may_think_answer_in_the_form_at_once(
    pristine_tiny_bundle: Bundle, marks: Thinking, how: str
) -> None:
    manifest = dataclasses.replace(pristine_tiny_bundle.manifest, thinking=marks)
    model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")
    model.bundle = dataclasses.replace(model.bundle, manifest=manifest)
    for more in ({}, {"max_tokens": None}, {"think_tokens": 2}):
        found = model.generate("The moon", **FORM | more, grammar_sampling=how)
        assert found.finish_reason == "stop" and re.fullmatch(WORDS, found.text) and found.thoughts is None


def test_a_prompt_is_not_read_again_by_the_next_call(pristine_tiny_bundle: Bundle) -> None:
    model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")
    prompt, known = "The library opens at nine and the garden at ten. " * 3, []
    for seed in range(3):
        stream = model.stream(prompt, **FORM, seed=seed, grammar_sampling="aligned")
        known.append([*stream][-1].timings.cached_tokens)
    assert known == [0, *[len(model.prompt_ids(prompt)) - 1] * 2]


def test_an_interrupted_one_has_no_text(model: Model) -> None:
    asked = iter([False, False, True] + [True] * 99)
    found = model.generate("The moon", **FORM, grammar_sampling="aligned", interrupted=lambda: next(asked))
    assert found.finish_reason == "interrupted" and not found.text and not found.token_ids
    assert model.generate("The moon", **FORM).finish_reason == "stop"  # nothing is held


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": 0.0}, "at temperature 0 none is drawn"),
        ({"temperature": None}, "at temperature 0 none is drawn"),
        ({"regex": None}, "says how an answer in a given form is drawn"),
    ],
)
def test_where_nothing_is_drawn_it_is_refused(model: Model, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        model.generate("The moon", **FORM | options, grammar_sampling="aligned")


@pytest.mark.parametrize(
    "value",
    ["exact", "aligned:1", "aligned:65", "aligned:", "aligned:08", "aligned:0064999", "aligned:x", "masks:2", 3, None],
)
def test_other_ways_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="grammar sampling must be masks, aligned, or aligned:N"):
        GenerateOptions(grammar_sampling=value)


def test_a_chat_refuses_it(model: Model, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    why = "a chat goes on with the one that it says"
    for form in (FORM, {}):
        with pytest.raises(InputError, match=why):
            model.chat().stream("The moon", **form, grammar_sampling="aligned")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    drawn = ["--regex", WORDS, "--temperature", "1", "--grammar-sampling", "aligned"]
    assert main(["run", str(model.bundle.root), *drawn]) == 2
    assert why in capfd.readouterr().err


def test_the_command_draws_by_it(
    pristine_tiny_bundle: Bundle, model: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drawn = ["--regex", WORDS, "--temperature", "1", "--grammar-sampling", "aligned:4", "--seed", "5", "--json"]
    assert main(["run", str(pristine_tiny_bundle.root), "The moon", *drawn]) == 0
    said = json.loads(capfd.readouterr().out)
    wanted = model.generate("The moon", **FORM | {"max_tokens": None}, seed=5, grammar_sampling="aligned:4")
    assert said["text"] == wanted.text and said["decode_tokens_per_s"] is None
    assert main(["run", str(pristine_tiny_bundle.root), "The moon", "--grammar-sampling", "aligned"]) == 2
    assert "says how an answer in a given form is drawn" in capfd.readouterr().err
