"""Whether a model thinks is read from its template and its vocabulary; its golden answers and drafts are without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import KNOWN
from thinking_models import OPENS, PLAIN, TEMPLATES, tiny_thinker

import edge
from edge.cli.main import main
from edge.export.manifest.chat_format import chat_format
from edge.export.manifest.chat_format import render as render_format
from edge.export.manifest.thinking import thinking
from edge.manifest import Thinking, parse
from edge.runtime.text.template import ChatTemplate, Message
from edge.runtime.text.thinking import render

THINK = ("<think>", "</think>")
FOUND = {
    "qwen3": Thinking(*THINK, variable="enable_thinking"),
    "smollm3": Thinking(*THINK, after="\n", variable="enable_thinking"),
    "words": Thinking(*THINK, after="\n", words=["/think", "/no_think"]),
    "opens": Thinking(*THINK),
    "silent": Thinking(*THINK),
    "off at first": Thinking(*THINK, variable="enable_thinking", default=False),
    "asks": Thinking(*THINK, variable="thinking", default=False),
}
ASKED: list[Message] = [{"role": "user", "content": "Is it?"}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_marks_and_switch_are_found(name: str) -> None:
    whole = [] if name == "asks" else THINK
    assert thinking(TEMPLATES[name], {}, whole) == FOUND[name]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        *(("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"), ("<|think|>", "<|/think|>")),
        *(("<seed:think>", "</seed:think>"), ("<|START_THINKING|>", "<|END_THINKING|>")),
        *(("<|begin_of_thought|>", "<|end_of_thought|>"), ("<reasoning>", "</reasoning>"), ("<thought>", "</thought>")),
    ],
)
@pytest.mark.parametrize("name", ["qwen3", "opens", "silent", "off at first"])
def test_marks_may_have_any_form(opening: str, closing: str, name: str) -> None:
    source = TEMPLATES[name].replace("</think>", closing).replace("<think>", opening)
    assert thinking(source, {}, [opening, closing]) == dataclasses.replace(FOUND[name], open=opening, close=closing)


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in ("Qwen3", "DeepSeek-R1")])
def test_models_without_marks_do_not_think(name: str) -> None:
    assert thinking(KNOWN[name].text, KNOWN[name].special, ["<|im_start|>", "<tool_call>", "</tool_call>"]) is None


def test_marks_of_the_vocabulary_alone_are_told_and_never_forced() -> None:
    marks = thinking(PLAIN, {}, THINK)
    assert marks == Thinking(*THINK, default=False)
    template = ChatTemplate(PLAIN, {})
    assert render(template, marks, ASKED, think=False) == template.render(ASKED)
    assert render(template, marks, ASKED, think=True) == template.render(ASKED) + "<think>\n"


def test_a_template_that_is_none_has_no_thoughts() -> None:
    assert thinking("{% if", {}, THINK) is None
    assert thinking("{{ raise_exception('no') }}<think></think>", {}, THINK) is None
    assert thinking(None, {}, THINK) is None


EMPTY = {"qwen3": "\n\n", "smollm3": "\n", "words": "\n", "opens": "\n\n", "silent": "\n\n", "off at first": "\n\n"}


@pytest.mark.parametrize("name", EMPTY)
def test_not_to_think_ends_the_prompt_with_an_empty_block(name: str) -> None:
    template, marks = ChatTemplate(TEMPLATES[name], {}), FOUND[name]
    off = render(template, marks, ASKED, think=False)
    on = render(template, marks, ASKED, think=True)
    assert off.endswith(f"assistant\n<think>\n\n</think>{EMPTY[name]}")
    assert on.endswith("assistant\n<think>\n" if name in ("opens", "silent", "off at first") else "assistant\n")
    default = off if name == "off at first" else on.removesuffix("<think>\n") if name == "silent" else on
    assert template.render(ASKED) == default


@pytest.mark.parametrize("name", ["smollm3", "words"])
def test_a_system_message_of_ones_own_stays(name: str) -> None:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, *ASKED]
    for think, mode in ((True, "/think"), (False, "/no_think")):
        prompt = render(ChatTemplate(TEMPLATES[name], {}), FOUND[name], messages, think)
        assert f"Reasoning Mode: {mode}\nBe brief.<|im_end|>" in prompt


@pytest.mark.parametrize("name", ["qwen3", "opens", "silent", "off at first"])  # SmolLM3's has no format
def test_a_host_that_reads_the_format_alone_asks_for_answers_without_thoughts(name: str) -> None:
    found = chat_format(TEMPLATES[name], {}, FOUND[name])
    assert found is not None
    assert render_format(found, ASKED) == render(ChatTemplate(TEMPLATES[name], {}), FOUND[name], ASKED, think=False)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model whose prompts open a block of thoughts, with special tokens as marks."""
    folder = tmp_path_factory.mktemp("opens")
    tiny_thinker(folder / "tiny", OPENS, special=True)
    return edge.export(folder / "tiny", folder / "tiny.edge", weights="int8", check=False, draft_text=600).root


@pytest.mark.parametrize(
    ("name", "family"), [("qwen3", "qwen3"), ("smollm3", "smollm3"), ("silent", "qwen3"), ("asks", "granite")]
)
def test_an_export_records_the_marks_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, family: str
) -> None:
    marks = None if name == "asks" else THINK
    tiny_thinker(tmp_path / "tiny", TEMPLATES[name], family=family, marks=marks)
    target = tmp_path / "tiny.edge"
    assert main(["export", str(tmp_path / "tiny"), "-o", str(target), "--weights", "fp32", "--no-check"]) == 0
    assert "thinks before it answers" in (said := capsys.readouterr().err) or "may think before" in said
    manifest = edge.open_bundle(target).manifest
    assert manifest.thinking == FOUND[name]
    assert main(["inspect", str(target)]) == 0
    assert "between <think> and </think>" in capsys.readouterr().out
    model = edge.load(target, kind=edge.Model)
    (golden, *_) = json.loads((target / "golden.json").read_text())["cases"]
    prompt = "Why does the moon change its shape in the sky?"
    assert golden["prompt_ids"] == model.prompt_ids(prompt, think=False)


def test_drafts_text_is_made_without_thoughts(opened: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.export.drafts.successors import own_answers

    model = edge.load(opened, kind=edge.Model, speculate="off")
    asked: list[Any] = []
    generate = edge.Model.generate_all

    def watched(self: edge.Model, prompts: Any, options: Any, **others: Any) -> Any:
        asked.append((options, others))
        return generate(self, prompts, options, **others)

    monkeypatch.setattr(edge.Model, "generate_all", watched)
    next(own_answers(model))
    options = [each for each, others in asked if not others["raw"]]
    assert options and all((each.think, each.temperature) == (False, 0) for each in options)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_limit_on_thoughts_gives_the_same_answer_with_drafts_and_side_by_side(
    opened: Path, temperature: float
) -> None:
    options = edge.GenerateOptions(max_tokens=40, think_tokens=9, temperature=temperature)
    prompts = ["1 2 1 2 1 2", "The moon"]
    found = []
    for speculate in ("off", "lookup", "auto"):
        with edge.load(opened, kind=edge.Model, speculate=speculate) as model:
            found.append([model.generate(prompt, options) for prompt in prompts])
            if speculate == "off":
                found.append(model.generate_all(prompts, options, width=2))
    for results in found:
        assert [each.text for each in results] == [each.text for each in found[0]]
        assert [each.token_ids for each in results] == [each.token_ids for each in found[0]]
        assert [each.thoughts for each in results] == [each.thoughts for each in found[0]]
        assert all(each.thoughts and each.text for each in results)


def test_the_command_keeps_thoughts_apart(opened: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["run", str(opened), "The moon", "--max-tokens", "30"]
    assert main([*command, "--think-tokens", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["thoughts"] and found["text"] and "think>" not in found["text"] + found["thoughts"]
    assert main([*command, "--think-tokens", "8"]) == 0
    assert capsys.readouterr().out == found["text"] + "\n", "no thoughts where nobody sits at a terminal"
    assert main([*command, "--no-think", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["thoughts"] is None
    assert main(command) == 0
    assert "--think-tokens N closes its thoughts" in capsys.readouterr().err
    (tmp_path / "lines.txt").write_text("The moon\n\nA train\n")
    lines = ["--lines", str(tmp_path / "lines.txt"), "--output", str(tmp_path / "out.txt"), "--json"]
    assert main(["run", str(opened), *lines, "--max-tokens", "30", "--think-tokens", "8"]) == 0
    first = json.loads((tmp_path / "out.txt").read_text().splitlines()[0])
    assert (first["text"], first["thoughts"]) == (found["text"], found["thoughts"])


def test_older_manifests_and_later_readers_agree(opened: Path) -> None:
    text = json.loads((opened / "edge.json").read_text())
    del text["thinking"], text["crc32"]
    for name in ("do_sample", "temperature", "top_k", "top_p", "min_p"):
        if text["generation"] is not None:
            del text["generation"][name]
    assert parse(json.dumps(text), "edge.json").thinking is None
