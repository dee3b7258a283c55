"""Thoughts in answers, streams, batches and chats: apart from what is said, and out of what the model reads again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import END, START, FakeEngine, byte_bundle, tokens_in

from edge.errors import InputError
from edge.manifest import Thinking
from edge.runtime.decode.answer import ends_of
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.model import Model
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

TURNS = (
    "{%- for m in messages %}{{- '<start>' + m.role + '\\n' }}"
    "{{- m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}{{- '<end>\\n' }}{%- endfor %}"
)
OPENING = "{%- if add_generation_prompt %}{{- '<start>assistant\\n' }}{%- endif %}"
SWITCH = "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
QWEN = TURNS + OPENING + SWITCH  # leaves thoughts out of earlier turns
KEEPS = QWEN.replace(
    "{{- m.content.split",
    "{{- '<think>' + m.reasoning_content + '</think>' if m.reasoning_content }}{{- m.content.split",
)
MARKS = Thinking("<think>", "</think>", variable="enable_thinking")
ASSISTANT = [START, *b"assistant\n"]


def thinks(*answers: tuple[str, str]) -> Callable[[list[int]], int]:
    """A model that thinks and answers so, in turn; after an empty block it answers at once."""

    def next_token(history: list[int]) -> int:
        begins = [i + len(ASSISTANT) for i in range(len(history)) if history[i : i + len(ASSISTANT)] == ASSISTANT]
        if not begins:
            return END
        thought, said = answers[len(begins) - 1]
        so_far = bytes(t for t in history[begins[-1] :] if t < 256).decode(errors="ignore")
        closed = so_far.find("</think>")
        whole = f"<think>\n{thought}\n</think>\n\n"
        if closed >= 0:  # by the model, the prompt or a limit
            rest = so_far[closed + len("</think>") :]
            whole = so_far[: closed + len("</think>")] + "\n\n" + (said if rest.startswith("\n\n") else "")
        else:
            whole += said
        left = whole.encode()[len(so_far.encode()) :]
        return left[0] if left else END

    return next_token


def thinker(
    folder: Path, *answers: tuple[str, str], template: str = QWEN, marks: Thinking | None = MARKS, context: int = 1000
) -> tuple[Model, FakeEngine]:
    bundle = byte_bundle(folder, template, add_bos=False)
    bundle = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, thinking=marks))
    engine = FakeEngine(bundle, thinks(*answers), context)
    return Model(bundle, engine, Text(bundle), prefill_chunk=512, speculate="off"), engine  # type: ignore[arg-type]


def test_thoughts_are_apart_from_the_answer(tmp_path: Path) -> None:
    model, _ = thinker(tmp_path, ("hm, well", "Yes."))
    result = model.generate("is it?")
    assert (result.text, result.thoughts, result.finish_reason) == ("Yes.", "hm, well", "stop")
    assert model.text.decode(result.token_ids) == "<think>\nhm, well\n</think>\n\nYes."


def test_each_piece_says_whether_it_is_a_thought(tmp_path: Path) -> None:
    model, _ = thinker(tmp_path, ("hm </thin", "A <think> b"))
    pieces = list(model.stream("is it?"))
    assert "".join(piece.text for piece in pieces) == "A <think> b"
    assert "".join(piece.thoughts or "" for piece in pieces) == "hm </thin"
    of_thoughts = [piece.thoughts is not None for piece in pieces]
    first, last = of_thoughts.index(True), len(of_thoughts) - of_thoughts[::-1].index(True)
    assert all(of_thoughts[first:last]) and not any(piece.text for piece in pieces[:last])


def test_without_thoughts_the_prompt_closes_the_block_and_none_are_reported(tmp_path: Path) -> None:
    model, engine = thinker(tmp_path, ("hm", "Yes."))
    result = model.generate("is it?", think=False)
    assert (result.text, result.thoughts) == ("Yes.", None)
    assert bytes(t for t in tokens_in(engine.steps) if t < 256).endswith(b"<think>\n\n</think>\n\nYes.")


def test_stop_strings_end_answers_and_not_thoughts(tmp_path: Path) -> None:
    model, _ = thinker(tmp_path, ("one\n\ntwo", "three\n\nfour"))
    result = model.generate("count", stop=["\n\n"])
    assert (result.text, result.thoughts) == ("three", "one\n\ntwo")


@pytest.mark.parametrize("limit", [0, 1, 7, 30])
def test_thoughts_are_closed_after_as_many_tokens_as_wanted_and_the_answer_comes(tmp_path: Path, limit: int) -> None:
    model, _ = thinker(tmp_path, ("x" * 900, "Yes."))
    result = model.generate("is it?", think_tokens=limit, circles="allow")
    assert result.text == "Yes."
    assert result.thoughts == ("x" * max(0, limit - 1)), "a line end comes first"


def test_with_no_limit_at_all_thoughts_leave_room_for_an_answer(tmp_path: Path) -> None:
    model, _ = thinker(tmp_path, ("x" * 5000, "Yes."))
    result = model.generate("is it?")
    assert result.text == "Yes." and result.thoughts is not None and 600 < len(result.thoughts) < 1000
    long_winded = model.generate("is it?", max_tokens=50)
    assert (long_winded.text, long_winded.generated_tokens, long_winded.finish_reason) == ("", 50, "length")


def test_max_tokens_are_counted_without_thoughts_where_nobody_names_them(tmp_path: Path) -> None:
    model, _ = thinker(tmp_path, ("x" * 200, "y" * 900), context=1400)
    result = model.generate("is it?")
    assert result.finish_reason == "length" and 500 <= len(result.text) <= 512


def test_a_chat_remembers_thoughts_and_reads_only_what_the_template_renders(tmp_path: Path) -> None:
    model, engine = thinker(tmp_path, ("hm", "Yes."), ("so", "No."))
    chat = model.chat()
    assert chat.generate("is it?").thoughts == "hm"
    engine.steps.clear()
    assert chat.generate("and this?").text == "No."
    run = bytes(t if t < 256 else 0x21 for t in tokens_in(engine.steps)).decode()
    assert run == "Yes.!\n!user\nand this?!\n!assistant\n<think>\nso\n</think>\n\nNo."
    assert [message.get("reasoning_content") for message in chat.messages] == [None, "hm", None, "so"]
    assert [message["content"] for message in chat.messages] == ["is it?", "Yes.", "and this?", "No."]


@pytest.mark.parametrize("template", [QWEN, KEEPS], ids=["leaves out", "keeps"])
@pytest.mark.parametrize("turns", [[None, None, None], [False, True, False], [True, False, None]], ids=str)
def test_the_cache_holds_what_a_fresh_model_would_read(tmp_path: Path, template: str, turns: list[bool | None]) -> None:
    answers = [("hm", "Yes."), ("so be it", "No."), ("z", "Perhaps.")]
    model, _ = thinker(tmp_path / "one", *answers, template=template)
    chat = model.chat()
    for number, think in enumerate(turns):
        before = [*chat.messages]
        found = chat.generate(f"question {number}", think=think)
        fresh, engine = thinker(tmp_path / f"other {number}", *answers, template=template)
        alone = fresh.generate([*before, {"role": "user", "content": f"question {number}"}], think=think)
        assert (found.token_ids, found.text, found.thoughts) == (alone.token_ids, alone.text, alone.thoughts)
        assert chat._cached == tokens_in(engine.steps)


def test_thoughts_that_are_cut_short_are_remembered_as_such(tmp_path: Path) -> None:
    model, _ = thinker(tmp_path, ("hm, well", "Yes."), ("so", "No."))
    chat = model.chat()
    stream = chat.stream("is it?")
    for piece in stream:
        if piece.thoughts == " w":
            break
    stream.close()
    assert chat.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "hm, w"}
    assert chat.generate("and this?").text == "No."


@pytest.mark.parametrize("option", [{"think": True}, {"think_tokens": 5}])
def test_a_model_that_cannot_think_refuses_to(tmp_path: Path, option: dict) -> None:  # type: ignore[type-arg]
    model, _ = thinker(tmp_path, ("", ""), marks=None)
    for ask in (model.generate, model.chat().generate, lambda *a, **k: model.generate_all([*a], **k)):
        with pytest.raises(InputError, match="no marks for them"):
            ask("hi", **option)
    assert model.prompt_ids("hi", think=False) == model.prompt_ids("hi")


@pytest.mark.parametrize("option", [{"think": True}, {"think_tokens": 5}])
def test_a_raw_prompt_has_no_thoughts(tmp_path: Path, option: dict) -> None:  # type: ignore[type-arg]
    model, _ = thinker(tmp_path, ("hm", "Yes."))
    with pytest.raises(InputError, match="a raw prompt has none"):
        model.generate("hi", raw=True, **option)
    assert model.generate("hi", GenerateOptions(max_tokens=3, think=False), raw=True).thoughts is None


def test_thoughts_are_as_long_in_a_cache_of_its_own_as_in_the_whole_context() -> None:
    """A chat has the whole context; `generate` a cache for as many tokens as come of it."""
    draw, options = random.Random(52), GenerateOptions()
    for _ in range(2000):
        context = draw.randint(64, 9000)
        prompt, block = draw.randint(1, context - 1), Block(MARKS, begun=True, closed=False)
        in_chat = ends_of(options, context - prompt + 1, block)
        cache = min(context, prompt + ends_of(options, context, block).most)
        alone = ends_of(options, cache - prompt + 1, block)
        assert (alone.closes, min(alone.most, alone.room)) == (in_chat.closes, min(in_chat.most, in_chat.room))
