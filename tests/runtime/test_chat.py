"""Chats keep their KV cache: only new tokens are run, whatever ended the answer before."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_engine import END, FakeEngine, fake_model, says, tokens_in

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.chat import Chat
from edge.runtime.decode.answer import answer, collect
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.load import load


def chat_that_says(
    folder: Path, *answers: str, system: str | None = None, **options: object
) -> tuple[Chat, FakeEngine]:
    model, engine = fake_model(folder, says(*answers), **options)  # type: ignore[arg-type]
    return model.chat(system=system), engine


def new_tokens(engine: FakeEngine) -> list[int]:
    """What was run since the last call."""
    tokens = tokens_in(engine.steps)
    engine.steps.clear()
    return tokens


def rendered(chat: Chat, text: str) -> list[int]:
    return chat._model.text.encode(text)


def test_a_second_turn_runs_only_what_is_new(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello you.", "Fine.")
    assert chat.generate("hi").text == "Hello you."
    assert new_tokens(engine) == rendered(chat, "<bos><start>user\nhi<end>\n<start>assistant\nHello you.")
    second = chat.generate("how?")
    assert second.text == "Fine."
    assert new_tokens(engine) == rendered(chat, "<end>\n<start>user\nhow?<end>\n<start>assistant\nFine.")
    whole = rendered(chat, "<bos><start>user\nhi<end>\n<start>assistant\nHello you.<end>\n<start>user\nhow?<end>\n")
    assert second.prompt_tokens == len(whole) + len(rendered(chat, "<start>assistant\n"))
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "user", "assistant"]
    assert [m["content"] for m in chat.messages] == ["hi", "Hello you.", "how?", "Fine."]


def test_figures_tell_cached_tokens_from_new_ones(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello.", "Fine.")
    chat.generate("hi")
    cached = chat.cached_tokens
    assert cached == len(new_tokens(engine))
    timings = list(chat.stream("how?"))[-1].timings
    assert timings.cached_tokens == cached
    assert timings.prompt_tokens - cached == len(rendered(chat, "<end>\n<start>user\nhow?<end>\n<start>assistant\n"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GenerateOptions(max_tokens=4), "Hell"),
        (GenerateOptions(max_tokens=1), "H"),
        (GenerateOptions(stop=["lo y"]), "Hel"),
        (GenerateOptions(stop=["."]), "Hello you"),
    ],
    ids=["length", "one token", "stop string", "stop string at the end"],
)
def test_an_answer_cut_short_is_remembered_as_it_was_shown(tmp_path: Path, options: GenerateOptions, said: str) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello you.", "Fine.")
    assert chat.generate("hi", options).text == said
    before = new_tokens(engine)
    assert chat.generate("how?").text == "Fine."
    first = f"<bos><start>user\nhi<end>\n<start>assistant\n{said}<end>\n"
    expected = rendered(chat, first + "<start>user\nhow?<end>\n<start>assistant\nFine.")
    run = new_tokens(engine)
    assert run == expected[len(expected) - len(run) :]
    kept = len(expected) - len(run)
    assert expected[:kept] == before[:kept] and kept >= len(before) - len("lo y"), "most of the cache was kept"
    assert chat._cached == expected, "the cache holds what the conversation says"


def test_an_interrupted_answer_is_remembered_as_far_as_it_was_shown(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello you.", "Fine.")
    shown: list[str] = []
    for piece in chat.stream("hi", GenerateOptions(interrupted=lambda: len(shown) == 5)):
        shown.append(piece.text)
    assert "".join(shown) == "Hello" and piece.finish_reason == "interrupted"
    assert chat.messages[-1] == {"role": "assistant", "content": "Hello"}
    new_tokens(engine)
    assert chat.generate("how?").text == "Fine."
    assert new_tokens(engine)[0] in (END, ord("o"))


def test_a_stream_that_is_dropped_halfway_leaves_the_chat_usable(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello you.", "Fine.")
    for piece in chat.stream("hi"):
        if piece.text == "o":
            break
    del piece
    assert chat.messages[-1]["content"] == "Hello"
    new_tokens(engine)
    assert chat.generate("how?").text == "Fine."
    assert len(new_tokens(engine)) < 60


def test_a_stream_that_never_starts_changes_nothing(tmp_path: Path) -> None:
    chat, _ = chat_that_says(tmp_path, "Hello.", "Fine.")
    chat.generate("hi")
    kept = list(chat.messages)
    chat.stream("forget it")
    assert chat.messages == kept
    assert chat.generate("how?").text == "Fine."


def test_reset_forgets_all_but_the_system_message(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello.", system="Be brief.")
    chat.generate("hi")
    first = new_tokens(engine)
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "Be brief."}] and chat.cached_tokens == 0
    chat.generate("hi")
    assert new_tokens(engine) == first


def test_a_chat_that_outgrows_the_context_ends_with_context_and_then_a_sentence(tmp_path: Path) -> None:
    chat, _ = chat_that_says(tmp_path, "Hello you, this is long.", "Fine.", context=40)
    result = chat.generate("hi")
    assert result.finish_reason == "context" and result.text == "Hello you, this is long."[: len(result.text)]
    kept = list(chat.messages)
    with pytest.raises(InputError, match="context holds 40 .*start the conversation over"):
        chat.generate("and now?")
    assert chat.messages == kept, "a message that was refused is not part of the conversation"
    chat.reset()
    assert chat.generate("hi").finish_reason == "context"


def test_answers_keep_the_tokens_they_were_said_with(tmp_path: Path) -> None:
    """A model may spell a word otherwise than the tokenizer would: its spelling stays in the cache."""
    chat, engine = chat_that_says(tmp_path, "Hello.", "Fine.")
    text = chat._model.text
    encode = text.encode
    text.encode = lambda s: [t for t in encode(s) if t != ord("l")]  # type: ignore[method-assign]
    chat.generate("hi")
    new_tokens(engine)
    chat.generate("how?")
    assert new_tokens(engine)[0] == END, "nothing of the first turn was run again"


def test_what_follows_an_answer_is_encoded_apart_only_from_a_special_token_on(tmp_path: Path) -> None:
    """A SentencePiece tokenizer puts a space before whatever it encodes; in the middle of a text that is wrong."""
    turns = "{% for m in messages %}<start>{{ m.role }}\n{{ m.content }} .<end>{% endfor %}"
    template = "{{ bos_token }}" + turns + "{{ '<start>assistant\n' }}"
    chat, engine = chat_that_says(tmp_path, "Hello", "Fine", template=template)
    text = chat._model.text
    encode = text.encode
    text.encode = lambda s: encode("_" + s)  # type: ignore[method-assign]
    chat.generate("hi")
    new_tokens(engine)
    chat.generate("how?")
    assert new_tokens(engine) == encode(" .<end><start>user\nhow? .<end><start>assistant\nFine")


def test_a_template_that_trims_answers_costs_only_what_differs(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<start>{{ m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
        "{{ '<start>assistant\n' }}"
    )
    chat, engine = chat_that_says(tmp_path, "Hello. ", "Fine.", template=template)
    chat.generate("hi")
    new_tokens(engine)
    assert chat.generate("how?").text == "Fine."
    assert new_tokens(engine)[0] == END


def test_a_chat_without_a_template_goes_on_raw(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, lambda history: END if history[-1] == ord("a") else ord("a"), template=None)
    chat = model.chat()
    assert chat.generate("hi").text == "a"
    new_tokens(engine)
    chat.generate("so")
    assert new_tokens(engine) == [*b"\nso\n", ord("a")]
    with pytest.raises(InputError, match="no chat template"):
        model.chat(system="Be brief.")


def test_an_empty_message_is_refused(tmp_path: Path) -> None:
    chat, _ = chat_that_says(tmp_path, "Hello.")
    with pytest.raises(InputError, match="prompt is empty"):
        chat.stream(" ")


def test_a_real_bundle_answers_a_second_turn_as_if_it_had_read_all_at_once(tiny_bundle: Bundle) -> None:
    model = load(tiny_bundle.root)
    options = GenerateOptions(max_tokens=10)
    chat = model.chat()
    chat.generate("The moon changes", options)
    first_turn = chat.cached_tokens
    second = chat.generate("A train leaves", options)
    prompt = chat._said[len(chat.messages)].tokens[: second.prompt_tokens]
    assert len(prompt) > first_turn > 0
    cache = model.engine.new_cache()
    alone = collect(answer(model.engine, model.text, cache, prompt, options, chunk=512, started_ns=0))
    assert alone.token_ids == second.token_ids


def test_undo_takes_back_a_turn_and_what_was_said_before_stays_in_the_cache(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello you.", "Fine.")
    chat.generate("hi")
    kept = list(chat.messages)
    chat.generate("how?")
    assert chat.undo() == "how?"
    assert chat.messages == kept
    new_tokens(engine)
    assert chat.generate("who?").text == "Fine."
    assert new_tokens(engine) == rendered(chat, "who?<end>\n<start>assistant\nFine."), "only what differs is run"
    chat.undo()
    chat.undo()
    assert chat.messages == []
    with pytest.raises(InputError, match="Nothing was said yet"):
        chat.undo()


def test_after_undo_answers_keep_the_tokens_they_were_said_with(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello.", "Fine.")
    text = chat._model.text
    encode = text.encode
    text.encode = lambda s: [t for t in encode(s) if t != ord("l")]  # type: ignore[method-assign]
    chat.generate("hi")
    chat.generate("how?")
    chat.undo()
    new_tokens(engine)
    chat.generate("so?")
    assert new_tokens(engine)[:3] == encode("so?"), "nothing of the first turn was run again"


def test_another_answer_replaces_the_last_one(tmp_path: Path) -> None:
    chat, engine = chat_that_says(tmp_path, "Hello you.", "Fine.", system="Be brief.")
    chat.generate("hi")
    chat.generate("how?", max_tokens=2)
    assert chat.messages[-1]["content"] == "Fi"
    new_tokens(engine)
    assert chat.regenerate().text == "Fine."
    assert [m["content"] for m in chat.messages] == ["Be brief.", "hi", "Hello you.", "how?", "Fine."]
    assert new_tokens(engine) == [ord("\n"), *b"Fine."], "the prompt was in the cache but for its last token"
    stream = chat.stream_again()
    assert chat.messages[-1]["content"] == "Fine.", "a stream of which no piece was taken changes nothing"
    assert next(stream).text == "F"
    with pytest.raises(InputError, match="still under way"):
        chat.undo()
    stream.close()
    assert chat.messages[-1]["content"] == "F"
    with pytest.raises(InputError, match="Nothing was said yet"):
        chat._model.chat().regenerate()


def test_a_conversation_goes_on_from_messages(tmp_path: Path) -> None:
    chat, _ = chat_that_says(tmp_path, "Hello you.", "Fine.", system="Be brief.")
    chat.generate("hi")
    other = chat._model.chat(messages=chat.messages)
    assert other.system == "Be brief." and other.messages == chat.messages and other.cached_tokens == 0
    assert other.generate("how?").text == chat.generate("how?").text == "Fine."
    other.reset()
    assert other.messages == [{"role": "system", "content": "Be brief."}]
    other.reset([{"role": "system", "content": "Be long."}])
    assert other.system == "Be long." and len(other.messages) == 1
    other.reset([])
    assert other.system is None and other.messages == []
    other.reset(chat.messages)
    assert other.undo() == "how?" and other.undo() == "hi"


USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "c"}


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([USER], "ends with a message that has no answer"),
        ([ASSISTANT], "Message 0 of the conversation is by assistant, where one by system should be"),
        ([USER, USER], "Message 1 of the conversation is by user, where one by assistant"),
        ([USER, ASSISTANT, SYSTEM], "Message 2 of the conversation is by system, where one by user"),
        ([SYSTEM, ASSISTANT], "Message 1 of the conversation is by assistant, where one by user"),
        ([{"role": "tool", "content": "x"}], "by 'tool', and not by user or assistant"),
        ([{"role": "user"}], "needs a text under 'role' and under 'content'"),
        ([{"role": "user", "content": 3}], "needs a text"),
        (["hi"], "needs a text"),
        ([USER, {"role": "assistant", "content": "x" * 5000}], "fit into the context|context holds"),
        ([USER, {"role": "assistant", "content": "\udcff"}], "not valid Unicode"),
        ("hi", "A conversation is a list of messages, and not 'hi'"),
        (7, "A conversation is a list of messages, and not 7"),
    ],
)
def test_messages_that_are_no_conversation_are_refused_and_change_nothing(
    tmp_path: Path, messages: object, sentence: str
) -> None:
    chat, _ = chat_that_says(tmp_path, "Hello.", "Fine.")
    chat.generate("hi")
    kept = list(chat.messages)
    for use in (chat.reset, lambda given: chat._model.chat(messages=given)):
        with pytest.raises(InputError, match=sentence):
            use(messages)
    assert chat.messages == kept and chat.generate("how?").text == "Fine."


def test_a_given_conversation_has_its_own_system_message(tmp_path: Path) -> None:
    chat, _ = chat_that_says(tmp_path, "Hello.")
    with pytest.raises(InputError, match="leave out the other"):
        chat._model.chat(system="Be brief.", messages=[])


def test_another_answer_of_a_real_bundle_is_the_same_text_bit_for_bit(tiny_bundle: Bundle) -> None:
    chat = load(tiny_bundle.root).chat()
    chat.generate("The moon changes", max_tokens=10)
    second = chat.generate("A train leaves", max_tokens=10)
    assert chat.regenerate(max_tokens=10).token_ids == second.token_ids
    chat.undo()
    assert chat.generate("A train leaves", max_tokens=10).token_ids == second.token_ids
