"""A server of models that turn one text into another, and of models that hear."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running_server import running
from sounds import tone, write_wave
from tiny_encoder_decoders import t5_bundle, whisper_bundle

import edge
from edge.bundle import Bundle
from edge.errors import InputError


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return t5_bundle(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return whisper_bundle(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def client(translator: Bundle, listener: Bundle, pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(translator, listener, pristine_tiny_bundle) as client:
        yield client


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wave(tmp_path_factory.mktemp("sound") / "tone.wav", tone(2.0))


def heard(client: httpx.Client, model: str, wave: Path, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    with wave.open("rb") as file:
        return client.post(f"/v1/audio/{path}", data={"model": model} | fields, files={"file": ("../../x", file)})


def test_texts_are_turned_into_others(client: httpx.Client, translator: Bundle) -> None:
    texts = ["A man rides a bicycle.", "Two dogs play."]
    alone = [edge.load(translator.root, kind=edge.Text2Text).generate(text, max_tokens=8).text for text in texts]
    body = {"model": translator.root.stem, "prompt": texts, "max_tokens": 8}
    found = client.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in found["choices"]] == alone
    assert found["usage"]["completion_tokens"] > 0
    with_beams = client.post("/v1/completions", json=body | {"beams": 2, "prompt": texts[0]}).json()
    assert len(with_beams["choices"]) == 1


def test_a_transcript_comes_in_every_form(client: httpx.Client, listener: Bundle, wave: Path) -> None:
    name = listener.root.stem
    whole = edge.load(listener.root, kind=edge.Transcriber).transcribe(wave)
    assert heard(client, name, wave).json() == {"text": whole.text.strip()}
    told = heard(client, name, wave, response_format="verbose_json").json()
    assert told["duration"] == pytest.approx(whole.duration, abs=0.01) and told["text"] == whole.text.strip()
    assert len(told["segments"]) == len(whole.segments)
    assert heard(client, name, wave, response_format="vtt").text.startswith("WEBVTT")
    for form in ("srt", "text"):
        response = heard(client, name, wave, response_format=form)
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")


def test_a_transcript_comes_as_it_is_understood(client: httpx.Client, listener: Bundle, tmp_path: Path) -> None:
    long = write_wave(tmp_path / "long.wav", np.tile(tone(1.0), 45))
    alone = edge.load(listener.root, kind=edge.Transcriber).transcribe(long)
    response = heard(client, listener.root.stem, long, stream="true")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line]
    assert [each["type"] for each in events] == ["transcript.text.delta"] * len(alone.segments) + [
        "transcript.text.done"
    ]
    assert len(alone.segments) > 1 and "".join(each["delta"] for each in events[:-1]).strip() == alone.text.strip()
    assert events[-1]["text"] == alone.text.strip()
    assert heard(client, listener.root.stem, long, stream="false").json() == {"text": alone.text.strip()}


def test_a_stream_of_what_is_no_sound_is_refused_with_a_status(
    client: httpx.Client, listener: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"no sound at all")
    response = heard(client, listener.root.stem, tmp_path / "x", stream="true")
    assert response.status_code == 400 and "edge-sound-" not in response.text


def test_others_are_answered_while_many_wait_for_a_model(
    listener: Bundle, pristine_tiny_bundle: Bundle, wave: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there are threads in the pool that reads requests."""
    hold = threading.Event()

    def slowly(self: edge.Transcriber, *given: Any, **more: Any) -> Any:
        hold.wait(60)
        raise InputError("It was held for long enough.")

    monkeypatch.setattr(edge.Transcriber, "transcribe_stream", slowly)
    with running(listener, pristine_tiny_bundle) as client:
        threads = [threading.Thread(target=heard, args=(client, listener.root.stem, wave)) for _ in range(50)]
        for thread in threads:
            thread.start()
        try:
            until = time.monotonic() + 30
            while "edge_waiting_answers" not in (text := client.get("/metrics").text) or not any(
                float(line.split()[-1]) >= 45 for line in text.splitlines() if line.startswith("edge_waiting_answers{")
            ):
                assert time.monotonic() < until
            body = {"model": "tiny", "prompt": "The moon", "max_tokens": 3}
            assert client.post("/v1/completions", json=body, timeout=30).status_code == 200
        finally:
            hold.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"response_format": "poem"}, "poem"),
        ({"temperature": "hot"}, "must be a number"),
        ({"temperature": "3"}, "from 0 to 1"),
        ({"language": "xx"}, "xx"),
        ({"prompt": "names"}, "prompt is not served"),
        ({"wish": "1"}, "does not know 'wish'"),
        ({"timestamp_granularities[]": "word"}, "those of segments"),
        ({"stream": "perhaps"}, "true or false"),
        ({"stream": "true", "response_format": "srt"}, "has the response_format json"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(
    client: httpx.Client, listener: Bundle, wave: Path, fields: dict[str, str], sentence: str
) -> None:
    response = heard(client, listener.root.stem, wave, **fields)
    assert response.status_code == 400 and sentence in response.json()["error"]["message"]


def test_what_is_no_sound_is_refused_without_a_path(client: httpx.Client, listener: Bundle, tmp_path: Path) -> None:
    for content in (b"", b"no sound at all", b"RIFF\0\0\0\0WAVE"):
        (tmp_path / "x").write_bytes(content)
        response = heard(client, listener.root.stem, tmp_path / "x")
        message = response.json()["error"]["message"]
        assert response.status_code == 400 and "edge-sound-" not in message and "tmp" not in message
    url = "/v1/audio/transcriptions"
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    assert client.post(url, content=b"--b\r\nbroken", headers=form).status_code == 400
    assert client.post(url, content=b"x", headers={"Content-Type": "multipart/form-data"}).status_code == 400
    assert client.post(url, json={}).status_code == 400
    assert client.post(url, data={"model": listener.root.stem}, files={"other": b"x"}).status_code == 400


def test_each_address_is_for_its_kind_of_model(
    client: httpx.Client, translator: Bundle, listener: Bundle, pristine_tiny_bundle: Bundle, wave: Path
) -> None:
    talk = [{"role": "user", "content": "x"}]
    for bundle, address in ((translator, "/v1/completions"), (listener, "/v1/audio/transcriptions")):
        response = client.post("/v1/chat/completions", json={"model": bundle.root.stem, "messages": talk})
        assert response.status_code == 400 and address in response.json()["error"]["message"]
    response = heard(client, pristine_tiny_bundle.root.stem, wave)
    assert response.status_code == 400 and "/v1/chat/completions" in response.json()["error"]["message"]


def test_one_thing_at_a_time_and_too_many_are_sent_away(
    listener: Bundle, wave: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    refused, transcribe_stream = threading.Event(), edge.Transcriber.transcribe_stream

    def held(self: edge.Transcriber, *given: Any, **more: Any) -> Any:
        refused.wait(60)
        return transcribe_stream(self, *given, **more)

    with running(listener, queue=1) as client:
        assert heard(client, listener.root.stem, wave).status_code == 200
        monkeypatch.setattr(edge.Transcriber, "transcribe_stream", held)

        def ask() -> None:
            statuses.append(heard(client, listener.root.stem, wave).status_code)
            if statuses[-1] == 429:
                refused.set()

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200, 429} and statuses.count(200) >= 2


def test_a_sound_that_does_not_come_is_refused(listener: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
        time.sleep(2)
        yield b"x\r\n--b--\r\n"

    with running(listener) as client:
        monkeypatch.setattr("edge.serve.audio.SOUND_S", 0.2)
        form = {"Content-Type": "multipart/form-data; boundary=b"}
        response = client.post("/v1/audio/transcriptions", content=slowly(), headers=form)
        assert response.status_code == 408 and "not here after" in response.json()["error"]["message"]
