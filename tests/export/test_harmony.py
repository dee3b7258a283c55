"""gpt-oss's answers come without their thoughts, by the command, in chats and side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_templates import KNOWN
from harmony import ANSWER, CLOSE, MARKS, OPEN, SPECIAL, START, TEMPLATE, says_by_word, tiny_harmony
from thinking_models import OPENS, tiny_thinker

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import BundleError, InputError
from edge.export.manifest.thinking import channels, thinking
from edge.manifest import parse, sealed
from edge.runtime.text.template import ChatTemplate, Message

SAID = {
    "moon": f"{OPEN}round?<|end|>{START}{ANSWER}It is round.<|return|>",
    "sun": f"{ANSWER}It is hot.<|return|>",
    "stars": f"{OPEN}{'many ' * 40}<|end|>{START}{ANSWER}Many.<|return|>",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("harmony")
    tiny_harmony(folder / "tiny")
    return edge.export(folder / "tiny", folder / "tiny.edge", weights="int8", check=False)


def prompt(model: edge.Model, words: str, **options: object) -> str:
    ids = model.prompt_ids(words, **options)  # type: ignore[arg-type]
    return "".join(model.text.token(i) or "" for i in ids).replace("\u0120", " ").replace("\u010a", "\n")


def test_channels_and_ends_are_found(bundle: Bundle) -> None:
    assert thinking(TEMPLATE, {}, SPECIAL) == MARKS == bundle.manifest.thinking
    ends = [SPECIAL.index(token) for token in ("<|return|>", "<|call|>", CLOSE)]
    assert bundle.manifest.tokens.eos == ends, "the configuration names the first one alone"
    assert thinking(TEMPLATE, {}, [token for token in SPECIAL if token != "<|message|>"]) is None


@pytest.mark.parametrize("name", KNOWN)
def test_other_templates_have_no_channels(name: str) -> None:
    template = ChatTemplate(KNOWN[name].text, KNOWN[name].special)
    assert channels(template, [*SPECIAL, "<|im_start|>", "<|im_end|>"]) is None


def test_a_host_that_knows_no_channels_asks_for_the_final_one_or_refuses(bundle: Bundle) -> None:
    """Kotlin's reads the format. An edge that knows no channels has this check, and shows nothing wrong."""
    form = bundle.manifest.chat_format
    assert form is not None and form.generation.endswith(START + ANSWER)
    fields = json.loads((bundle.root / "edge.json").read_text())
    del fields["thinking"]["answer"]
    with pytest.raises(BundleError, match=r"thinking\.after"):
        parse(sealed(fields), "edge.json")
    fields["thinking"] |= {"answer": "<|channel|>else<|message|>"}
    with pytest.raises(BundleError, match=r"thinking\.answer"):
        parse(sealed(fields), "edge.json")


def test_prompts_open_the_channel_that_is_asked_for_and_tell_the_effort(bundle: Bundle) -> None:
    with edge.load(bundle.root, kind=edge.Model) as model:
        plain = prompt(model, "Hi")
        assert plain.endswith(f"Hi<|end|>{START}") and "Reasoning: medium" in plain
        assert prompt(model, "Hi", think=False) == plain + ANSWER
        assert prompt(model, "Hi", think=True) == plain + OPEN
        assert prompt(model, "Hi", effort="high") == plain.replace("medium", "high")


def test_thoughts_are_apart_alone_and_side_by_side(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    says_by_word(monkeypatch, bundle, SAID)
    asked = ["the moon", "the sun", "the stars"]
    found = []
    for speculate in ("off", "lookup"):
        with edge.load(bundle.root, kind=edge.Model, speculate=speculate, exact=True) as model:
            found.append([model.generate(each) for each in asked])
            if speculate == "off":
                found.append(model.generate_all(asked, width=2))
            short = model.generate("the stars", think_tokens=5)
            assert (short.thoughts or "").startswith("many") and len(short.thoughts or "") < 40
    for results in found:
        assert [each.text for each in results] == ["It is round.", "It is hot.", "Many."]
        assert [each.thoughts for each in results] == ["round?", None, "many " * 40]
        assert [each.finish_reason for each in results] == ["stop"] * 3


def test_without_a_script_a_limit_gives_the_same_answer_side_by_side(bundle: Bundle) -> None:
    options = edge.GenerateOptions(max_tokens=40, think=True, think_tokens=9)
    prompts = ["1 2 1 2 1 2", "The moon"]
    with edge.load(bundle.root, kind=edge.Model, speculate="off", exact=True) as model:
        alone = [model.generate(each, options) for each in prompts]
        together = model.generate_all(prompts, options, width=2)
    for one, other in zip(alone, together, strict=True):
        assert (one.token_ids, one.text, one.thoughts) == (other.token_ids, other.text, other.thoughts)
    assert all(each.thoughts for each in alone) and any(each.text for each in alone)


def test_a_chat_reads_earlier_answers_without_thoughts(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    says_by_word(monkeypatch, bundle, SAID)
    for think in (None, False):
        with edge.load(bundle.root, kind=edge.Model) as model:
            chat = model.chat()
            asked = {"the moon": "moon", "the sun": "sun"}
            if think is False:  # the prompt opens the channel
                says_by_word(monkeypatch, bundle, {"moon": "It is round.<|end|>", "sun": "It is hot.<|return|>"})
            first, second = (chat.generate(each, think=think) for each in asked)
            assert (first.text, first.thoughts) == ("It is round.", None if think is False else "round?")
            assert (second.text, second.thoughts, second.finish_reason) == ("It is hot.", None, "stop")
            talk: list[Message] = [
                {"role": "user", "content": "the moon"},
                {"role": "assistant", "content": "It is round."},
                {"role": "user", "content": "the sun"},
            ]
            read = model.prompt_ids(talk, think=think)
            assert chat._cached[: len(read)] == read, "what the template renders, and no thoughts"


def test_the_command_shows_answers_alone(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    says_by_word(monkeypatch, bundle, SAID)
    command = ["run", str(bundle.root)]
    assert main([*command, "the moon"]) == 0
    assert capsys.readouterr().out == "It is round.\n"
    assert main([*command, "the moon", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["thoughts"]) == ("It is round.", "round?")
    (tmp_path / "lines.txt").write_text("the moon\nthe sun\n")
    lines = ["--lines", str(tmp_path / "lines.txt"), "--output", str(tmp_path / "out.txt"), "--effort", "low"]
    assert main([*command, *lines]) == 0
    assert (tmp_path / "out.txt").read_text() == "It is round.\nIt is hot.\n"
    capsys.readouterr()
    assert main(["inspect", str(bundle.root)]) == 0
    assert f"between {OPEN} and {CLOSE}" in " ".join(capsys.readouterr().out.split())


def test_an_effort_is_refused_where_the_template_knows_none(bundle: Bundle, tmp_path: Path) -> None:
    tiny_thinker(tmp_path / "tiny", OPENS)
    other = edge.export(tmp_path / "tiny", tmp_path / "tiny.edge", weights="fp32", check=False)
    with edge.load(other.root, kind=edge.Model) as model, pytest.raises(InputError, match="leave the effort out"):
        model.generate("hi", effort="low")
    with edge.load(bundle.root, kind=edge.Model) as model:
        with pytest.raises(InputError, match="low, medium or high"):
            model.generate("hi", effort="huge")
        with pytest.raises(InputError, match="a raw prompt has none"):
            model.generate("hi", effort="low", raw=True)
