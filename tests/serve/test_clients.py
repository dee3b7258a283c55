"""Clients that people use, at a server of the tiny model: what each asks by itself is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import running, templated
from sounds import tone, write_wave
from tiny_encoder_decoders import whisper_bundle

import edge
from edge.bundle import Bundle

openai = pytest.importorskip("openai")
ollama = pytest.importorskip("ollama")
pydantic = pytest.importorskip("pydantic")
pytest.importorskip("llguidance")

PROMPT = [{"role": "user", "content": "The moon shines"}]
# As Hermes's, short.
TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}assistant: "
)


class Answer(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    """An answer."""

    model_config = pydantic.ConfigDict(extra="forbid")
    yes: bool


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return whisper_bundle(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def http(
    pristine_tiny_bundle: Bundle, listener: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    talker = templated(pristine_tiny_bundle, tmp_path_factory.mktemp("clients"), TEMPLATE)
    with running(talker, listener) as client:
        yield client


@pytest.fixture
def of_openai(http: httpx.Client) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def of_ollama(http: httpx.Client) -> Any:
    return ollama.Client(host=str(http.base_url))


def test_openai_chats_whole_and_in_streams(of_openai: Any) -> None:
    asked = {"model": "tiny", "messages": PROMPT, "max_tokens": 12, "temperature": 0}
    said = of_openai.chat.completions.create(**asked).choices[0].message.content
    stream = of_openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert said and "".join(each.choices[0].delta.content or "" for each in stream if each.choices) == said
    short = {"grammar": 'start: "yes" | "no"'}  # its own streams refuse an answer that was cut
    with of_openai.chat.completions.stream(**asked, extra_body=short) as events:
        assert events.get_final_completion().choices[0].message.content in ("yes", "no")
    assert next(each.id for each in of_openai.models.list()) == "tiny"
    with pytest.raises(openai.BadRequestError, match="does not know 'wishes'"):
        of_openai.chat.completions.create(**asked, extra_body={"wishes": 3})


def test_openai_parses_answers_and_calls(of_openai: Any) -> None:
    asked = {"model": "tiny", "messages": PROMPT, "max_tokens": 200, "temperature": 0}
    found = of_openai.chat.completions.parse(**asked, response_format=Answer).choices[0].message.parsed
    assert isinstance(found, Answer)
    tools = {"tools": [openai.pydantic_function_tool(Answer)], "tool_choice": "required", "parallel_tool_calls": False}
    message = of_openai.chat.completions.parse(**asked, **tools).choices[0].message
    (call,) = message.tool_calls
    assert isinstance(call.function.parsed_arguments, Answer)
    with of_openai.chat.completions.stream(**asked, **tools) as events:
        (streamed,) = events.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    talk = [*PROMPT, message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "so"}]
    assert of_openai.chat.completions.create(**asked | {"messages": talk}, tools=tools["tools"]).choices


def test_openai_transcribes_whole_and_in_a_stream(of_openai: Any, listener: Bundle, tmp_path: Path) -> None:
    wave = write_wave(tmp_path / "tone.wav", tone(2.0))
    alone = edge.load(listener.root, kind=edge.Transcriber).transcribe(wave).text.strip()
    ask = of_openai.audio.transcriptions.create
    assert ask(model=listener.root.stem, file=wave).text == alone
    told = ask(model=listener.root.stem, file=wave, response_format="verbose_json")
    assert told.text == alone and told.duration == pytest.approx(2.0, abs=0.01)
    events = [*ask(model=listener.root.stem, file=wave, stream=True)]
    assert events[-1].type == "transcript.text.done" and events[-1].text == alone
    assert "".join(each.delta for each in events[:-1]).strip() == alone


def test_ollama_chats_calls_and_generates(of_ollama: Any) -> None:
    asked = {"model": "tiny", "options": {"num_predict": 12, "temperature": 0}}
    said = of_ollama.chat(**asked, messages=PROMPT).message.content
    assert (
        said and "".join(each.message.content for each in of_ollama.chat(**asked, messages=PROMPT, stream=True)) == said
    )
    assert of_ollama.generate(**asked, prompt=PROMPT[0]["content"]).response == said
    form = of_ollama.chat(model="tiny", messages=PROMPT, format=Answer.model_json_schema()).message.content
    assert isinstance(json.loads(form)["yes"], bool)

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    call = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    talk = [*PROMPT, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "add", "content": "3"}]
    assert of_ollama.chat(**asked, messages=talk, tools=[add]).done
    assert of_ollama.list().models[0].model == "tiny" and "tools" in of_ollama.show("tiny").capabilities
