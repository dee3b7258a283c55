"""The page of a server of models that hear, in a real browser with a microphone that plays a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import browser
import httpx
import numpy as np
import pytest
from browser import Browser
from page_helpers import DESK, PHONE, SAID, STICKING_OUT, until
from running_server import running
from sounds import tone, write_wave
from tiny_encoder_decoders import whisper_bundle

import edge
from edge.bundle import Bundle

MICROPHONE = "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"
DONE = "!document.getElementById('record').hidden && document.querySelector('article .said') !== null"


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return whisper_bundle(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wave(tmp_path_factory.mktemp("sound") / "tone.wav", tone(2.0))


@pytest.fixture(scope="module")
def client(listener: Bundle, pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(listener, pristine_tiny_bundle) as client:
        yield client


def opened(client: httpx.Client, home: Path, *flags: str) -> Browser:
    chromium = browser.installed()
    if chromium is None:
        pytest.skip("the page is looked at with Chromium, and none is installed")
    found = Browser(chromium, home, flags)
    found.server = str(client.base_url)
    found.open(str(client.base_url), *DESK)
    until(found, "document.getElementById('model').options.length === 2")
    return found


@pytest.fixture(scope="module")
def window(client: httpx.Client, wave: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    home = tmp_path_factory.mktemp("chromium")
    with opened(client, home, *MICROPHONE, f"--use-file-for-fake-audio-capture={wave}") as found:
        yield found


@pytest.fixture
def seen(window: Browser) -> Iterator[Browser]:
    window.errors.clear()
    window.run("document.getElementById('new').click()")
    yield window
    assert window.errors == []


def test_what_the_microphone_hears_is_transcribed(seen: Browser) -> None:
    assert seen.run("document.getElementById('message').hidden && document.getElementById('send').hidden")
    seen.run("document.getElementById('record').click()")
    until(seen, "document.getElementById('record').textContent === 'Stop recording'")
    seen.run("new Promise(done => setTimeout(() => done(true), 1500))")
    seen.run("document.getElementById('record').click()")
    until(seen, DONE)
    assert seen.run(SAID)[0].strip()
    heard = float(seen.run("document.querySelector('.figures').textContent").split()[0])
    assert 0.5 < heard < 15


def test_a_file_is_transcribed_as_the_model_hears_it(seen: Browser, listener: Bundle, wave: Path) -> None:
    seen.choose_file("file", wave)
    until(seen, DONE)
    alone = edge.load(listener.root, kind=edge.Transcriber).transcribe(wave)
    assert seen.run(SAID) == [alone.text.strip()]
    assert seen.run("document.querySelector('.figures').textContent") == "2.0 s of sound"


def test_two_channels_at_another_rate_are_made_one(seen: Browser, tmp_path: Path) -> None:
    both = np.stack([tone(1.0, 44_100), tone(1.0, 44_100)], axis=1)
    seen.choose_file("file", write_wave(tmp_path / "both.wav", both, 44_100))
    until(seen, DONE)
    assert seen.run("document.querySelector('.figures').textContent") == "1.0 s of sound"


def test_a_file_without_sound_is_told_of(seen: Browser, tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_bytes(b"no sound at all")
    seen.choose_file("file", tmp_path / "x.wav")
    assert until(seen, "document.getElementById('state').textContent") == "This browser finds no sound in that."


def test_a_transcript_can_be_copied(seen: Browser, wave: Path) -> None:
    seen.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    seen.choose_file("file", wave)
    until(seen, DONE)
    seen.run("document.querySelector('.copy').click()")
    until(seen, "document.querySelector('.copy').textContent === 'Copied'")
    assert seen.run("window.copied") == seen.run(SAID)[0]


def test_a_chat_and_a_transcript_have_each_their_own_controls(seen: Browser, wave: Path) -> None:
    controls = "[...document.querySelectorAll('button, textarea, input, select')]"
    shown = f"{controls}.filter(each => each.checkVisibility()).map(each => each.id)"
    seen.run("document.getElementById('settings').open = true")
    try:
        assert {"record", "file", "language"} <= {*seen.run(shown)} and "message" not in seen.run(shown)
        choose = "(m => {{ m.value = {!r}; m.dispatchEvent(new Event('change')); }})(document.getElementById('model'))"
        name = seen.run("document.getElementById('model').value")
        seen.run(choose.format("tiny"))
        assert {"message", "send", "system"} <= {*seen.run(shown)} and not {"record", "file"} & {*seen.run(shown)}
        seen.run(choose.format(name))
    finally:
        seen.run("document.getElementById('settings').open = false")


def test_it_fits_a_phone_and_a_screen_reader_finds_everything(seen: Browser, client: httpx.Client, wave: Path) -> None:
    seen.open(str(client.base_url), *PHONE, phone=True)
    until(seen, "document.getElementById('model').options.length === 2")
    seen.choose_file("file", wave)
    until(seen, DONE)
    assert seen.run(STICKING_OUT) == [] and seen.run("document.documentElement.scrollWidth") == PHONE[0]
    nodes = seen.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"].lower(), node.get("name", {}).get("value", "").strip()) for node in nodes]
    assert {("button", "Record"), ("button", "Copy"), ("heading", "Transcript")} <= {*named}
    assert any(name.startswith("Sound file") for _, name in named)
    assert [role for role, name in named if role in ("button", "textbox", "combobox") and not name] == []


def test_without_a_microphone_a_file_can_be_chosen(client: httpx.Client, wave: Path, tmp_path: Path) -> None:
    with opened(client, tmp_path) as window:
        window.run("document.getElementById('record').click()")
        told = until(window, "document.getElementById('state').textContent")
        assert told.endswith("choose a sound file instead.")
        window.choose_file("file", wave)
        until(window, DONE)
        assert window.run(SAID)[0].strip()
