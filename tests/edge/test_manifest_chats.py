"""What a manifest says of its chats, settings and thoughts, is read back, and refused where no export writes it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from changes import changed

from edge.errors import BundleError
from edge.manifest import Generation, Manifest, Thinking, parse, sealed

SETTINGS = Generation(do_sample=True, temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, repetition_penalty=1.1)
MARKS = Thinking("<think>", "</think>", "\n", None, ["/think", "/no_think"])


@pytest.fixture
def chats(manifest: Manifest) -> Manifest:
    return dataclasses.replace(manifest, generation=SETTINGS, thinking=MARKS)


def test_settings_and_thoughts_survive_their_json(chats: Manifest) -> None:
    assert parse(chats.to_json(), "edge.json") == chats


def test_a_manifest_of_before_has_neither(manifest: Manifest) -> None:
    text = changed(manifest.to_json(), "thinking", ...)
    assert parse(sealed(text), "edge.json").thinking is None


@pytest.mark.parametrize("number", range(24))
def test_settings_out_of_their_range_are_refused(chats: Manifest, number: int) -> None:
    draw = random.Random(number)
    wrong = {
        "temperature": [-0.5, 101.0, 1e30],
        "top_k": [-1, 1 << 40],
        "top_p": [0.0, -1.0, 1.5],
        "min_p": [-0.1, 1.1],
        "repetition_penalty": [0.0, -2.0, 33.0],
    }
    name, values = draw.choice(list(wrong.items()))
    value = draw.choice(values)
    text = sealed(changed(chats.to_json(), f"generation.{name}", value))
    with pytest.raises(BundleError, match=rf"generation\.{name} is .*, and it is from"):
        parse(text, "edge.json")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        *[(name, value, f"thinking.{name} has") for name in ("open", "close") for value in ("", "  \n", "x" * 61)],
        ("close", "<think>", "thinking.open and thinking.close are both"),
        ("after", "so", "thinking.after is"),
        ("after", "\n" * 61, "thinking.after is"),
        *[("variable", value, "no name of a variable") for value in ("", "a b", "x" * 61, "{{x}}", "1a")],
        *[("words", value, "thinking.words has") for value in (["a"], ["a", "b", "c"], ["a", ""], ["a", "b" * 61])],
        *[(name, 3, "must be a string") for name in ("open", "close", "after", "variable")],
        ("words", "ab", "must be a list"),
        ("default", "yes", "must be true or false"),
    ],
)
def test_thoughts_that_no_export_writes_are_refused(chats: Manifest, field: str, value: Any, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        parse(sealed(changed(chats.to_json(), f"thinking.{field}", value)), "edge.json")


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "tools"])
def test_a_variable_of_the_templates_own_changes_nothing(name: str) -> None:
    from edge.runtime.text.template import ChatTemplate, Message
    from edge.runtime.text.thinking import render

    template = ChatTemplate("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", {"bos_token": "<s>"})
    asked: list[Message] = [{"role": "user", "content": "hi"}]
    marks = Thinking("<think>", "</think>", variable=name)
    assert render(template, marks, asked, think=True) == template.render(asked) == "<s>hi"
