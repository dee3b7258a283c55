"""What follows an answer in the chat template ends answers, whatever the manifest says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_engine import BOS, END, START, TEMPLATE, FakeEngine, byte_bundle, says, with_tokens

from edge.export.manifest.chat_format import chat_format
from edge.runtime.model import Model
from edge.runtime.text.tokenizer import Text

ENDS = {
    "at once": TEMPLATE,
    "after a space": TEMPLATE.replace("{{ m.content }}<end>", "{{ m.content }} \n<end>"),
    "not the last": TEMPLATE.replace("<end>\n", "{% if not loop.last or m.role == 'user' %}<end>\n{% endif %}"),
    "in parts": TEMPLATE.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}"),
    "trimmed": TEMPLATE.replace("{{ m.content }}", "{{ m.content | trim }}"),
    "dated": "{{ strftime_now('%d %b %Y') }}" + TEMPLATE,
}


def model_of(folder: Path, template: str, *, formatted: bool) -> tuple[Model, FakeEngine]:
    """A model whose manifest names another end token than its template writes."""
    bundle = with_tokens(byte_bundle(folder, template), eos=[BOS])
    if formatted:
        chat = chat_format(template, {"bos_token": "<bos>"})
        bundle = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, chat_format=chat))
    engine = FakeEngine(bundle, says("Hello.", "Fine."))
    return Model(bundle, engine, Text(bundle), speculate="off"), engine  # type: ignore[arg-type]


@pytest.mark.parametrize("formatted", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_an_answer_ends_with_the_token_that_follows_it_in_the_template(
    tmp_path: Path, name: str, formatted: bool
) -> None:
    model, _ = model_of(tmp_path, ENDS[name], formatted=formatted)
    result = model.generate("hi", max_tokens=20)
    assert (result.text, result.finish_reason, result.token_ids[-1]) == ("Hello.", "stop", END)
    chat = model.chat()
    assert [chat.generate(say, max_tokens=20).text for say in ("hi", "how?")] == ["Hello.", "Fine."]
    assert model.text.eos == {BOS, END}


@pytest.mark.parametrize("formatted", [False, True])
def test_a_raw_prompts_answer_ends_so_whether_or_not_a_chat_came_before(tmp_path: Path, formatted: bool) -> None:
    model, _ = model_of(tmp_path, TEMPLATE, formatted=formatted)
    for _ in range(2):
        result = model.generate("<bos><start>user\nhi<end>\n<start>assistant\n", raw=True, max_tokens=20)
        assert (result.text, result.finish_reason) == ("Hello.", "stop")
        model.generate("hi", max_tokens=20)


@pytest.mark.parametrize(
    "after", ["\n\n### ", "<unknown>", "{{ raise_exception('no') if m.role == 'assistant' else '' }}"]
)
def test_where_no_token_follows_the_manifests_ends_are_all(tmp_path: Path, after: str) -> None:
    model, _ = model_of(tmp_path, TEMPLATE.replace("<end>", after), formatted=False)
    model.prompt_ids("hi")
    assert model.text.eos == {BOS}


def test_what_begins_the_next_turn_ends_an_answer_that_nothing_else_ends(tmp_path: Path) -> None:
    model, _ = model_of(tmp_path, TEMPLATE.replace("<end>\n", "\n"), formatted=False)
    model.prompt_ids("hi")
    assert model.text.eos == {BOS, START}
