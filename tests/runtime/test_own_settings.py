"""A model's own settings are its chats' default; what a caller gives goes before them, and a seed is fixed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import Generation
from edge.runtime.decode.answer import collect
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import UNSHAPED
from edge.runtime.load import load
from edge.runtime.model import Model

SET = Generation(do_sample=True, temperature=1.5, top_k=30, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
DRAWN = {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2}


def with_settings(bundle: Bundle, settings: Generation | None, **options: Any) -> Model:
    model = load(bundle.root, kind=Model, **options)
    model.bundle = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, generation=settings))
    return model


def said(model: Model, prompt: str = "The moon", **options: Any) -> list[int]:
    return model.generate(prompt, max_tokens=16, **options).token_ids


def test_a_prompt_and_a_chat_are_answered_by_the_models_settings(tiny_bundle: Bundle) -> None:
    plain, model = with_settings(tiny_bundle, None), with_settings(tiny_bundle, SET)
    drawn = said(model)
    assert drawn == said(plain, **DRAWN, seed=0) != said(plain)
    assert model.chat().generate("The moon", max_tokens=16).token_ids == drawn
    assert model.generate_all(["The moon"], max_tokens=16, width=2)[0].token_ids == drawn
    assert collect(model.stream("The moon", GenerateOptions(max_tokens=16))).token_ids == drawn


def test_the_same_call_gives_the_same_text_unless_the_seed_is_random(tiny_bundle: Bundle) -> None:
    model = with_settings(tiny_bundle, SET)
    assert len({tuple(said(model)) for _ in range(3)}) == 1
    assert said(model, seed=5) == said(model, seed=5) != said(model)
    assert len({tuple(said(model, seed="random")) for _ in range(4)}) > 1


def test_temperature_0_is_greedy_whatever_the_makers_set(tiny_bundle: Bundle) -> None:
    plain, model = with_settings(tiny_bundle, None), with_settings(tiny_bundle, SET)
    assert said(model, temperature=0) == said(plain)
    assert said(model, temperature=0, repetition_penalty=1.2) == said(plain, repetition_penalty=1.2)


def test_a_raw_prompt_and_one_without_a_template_are_greedy(tiny_bundle: Bundle) -> None:
    plain, model = with_settings(tiny_bundle, None), with_settings(tiny_bundle, SET)
    assert said(model, raw=True) == said(plain, raw=True)
    bare = dataclasses.replace(tiny_bundle.manifest, chat_template=None)
    without = with_settings(dataclasses.replace(tiny_bundle, manifest=bare), SET)
    assert said(without, "x") == said(plain, "x", raw=True)


def test_drafts_change_no_drawn_answer(tiny_bundle: Bundle) -> None:
    for seed in (0, 3):
        answers = {
            tuple(said(with_settings(tiny_bundle, SET, speculate=name), "1 2 1 2 1 2", seed=seed))
            for name in ("off", "lookup", "auto")
        }
        assert len(answers) == 1


@pytest.mark.parametrize("number", range(40))
def test_what_is_given_goes_before_what_is_set(number: int) -> None:
    draw = random.Random(number)
    values = {
        "temperature": [0.0, 0.3, 1.0, 2.0],
        "top_k": [0, 5],
        "top_p": [0.5, 1.0],
        "min_p": [0.0, 0.2],
        "repetition_penalty": [1.0, 1.3],
    }
    settings = Generation(do_sample=draw.random() < 0.7, **{name: draw.choice(each) for name, each in values.items()})
    given = {name: draw.choice(each) for name, each in values.items() if draw.random() < 0.4}
    drawn = given.get("temperature", settings.temperature if settings.do_sample else 0.0)
    try:
        found = GenerateOptions(**given).settled(settings)
    except InputError as e:
        assert drawn == 0 and "at temperature 0 none is drawn" in str(e)
        assert any(given.get(name, neutral) != neutral for name, neutral in (("top_k", 0), ("top_p", 1), ("min_p", 0)))
        return
    assert found.temperature == drawn
    for name in ("top_k", "top_p", "min_p"):
        expected = given.get(name, getattr(settings, name) if drawn else UNSHAPED[name])
        assert getattr(found, name) == expected
    penalty = 1.0 if given.get("temperature") == 0 else settings.repetition_penalty
    assert found.repetition_penalty == given.get("repetition_penalty", penalty)
    assert found.settled(settings) == found


@pytest.mark.parametrize("settings", [None, Generation(), Generation(temperature=0.7, top_k=5)], ids=str)
def test_without_do_sample_nothing_is_drawn(settings: Generation | None) -> None:
    assert GenerateOptions().settled(settings).temperature == 0


def test_settings_are_said_in_words() -> None:
    assert SET.sampling == "temperature 1.5, top-k 30, top-p 0.9, min-p 0.01, repetition penalty 1.2"
    assert Generation(do_sample=True).sampling == "temperature 1"
    assert Generation(temperature=0.7, repetition_penalty=1.1).sampling == "repetition penalty 1.1"
    assert Generation().sampling == ""
