"""Windows over a stream of sound, pauses, silence, and sound that is being recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_speech import RATE, Script, fake_transcriber, noise, said

from edge.errors import InputError
from edge.runtime.speech import live
from edge.runtime.speech.audio import Audio
from edge.runtime.speech.live import AHEAD_S, recording
from edge.runtime.speech.windows import Windows, ends_in_pause, silence_to_skip, sound_before_gap


def blocks(*sizes: int) -> Iterator[np.ndarray]:
    """Blocks that count on: the value of each sample is its place."""
    start = 0
    for size in sizes:
        yield np.arange(start, start + size, dtype=np.float32)
        start += size


def test_a_window_moves_over_blocks_of_any_size() -> None:
    random = np.random.default_rng(1)
    windows = Windows(blocks(*random.integers(0, 70, 200).tolist()), 50)
    total = int(np.random.default_rng(1).integers(0, 70, 200).sum())
    while len(window := windows.peek()):
        assert window[0] == windows.position
        assert np.array_equal(window, np.arange(windows.position, windows.position + len(window)))
        assert len(window) == min(50, total - windows.position)
        windows.advance(int(random.integers(1, 51)))
    assert windows.position == total and windows.ended


def test_a_window_moves_no_further_than_it_has_heard() -> None:
    windows = Windows(blocks(30), 50)
    windows.peek()
    windows.advance(1000)
    assert windows.position == 30


def test_no_block_is_read_before_it_is_needed() -> None:
    read = []

    def reading() -> Iterator[np.ndarray]:
        for block in blocks(50, 50, 50):
            read.append(len(block))
            yield block

    windows = Windows(reading(), 50)
    windows.peek()
    windows.peek()
    assert read == [50]


def test_damage_ends_the_sound_and_is_raised_when_all_before_it_was_used() -> None:
    def damaged() -> Iterator[np.ndarray]:
        yield np.ones(30, np.float32)
        raise InputError("damaged")

    windows = Windows(damaged(), 50)
    assert len(windows.peek()) == 30 and windows.ended
    with pytest.raises(InputError, match="damaged"):
        windows.close()


def test_a_sound_ends_shortly_behind_its_last_sample_before_a_long_gap() -> None:
    quiet = np.zeros(6 * RATE, np.float32)
    sounds = [noise(3), quiet, noise(2), quiet]
    for parts, seconds in (
        (sounds, 3.2),
        (sounds[2:], 2.2),
        (sounds[:1], 3),
        ([noise(3), quiet[: 4 * RATE], noise(1)], 8),
    ):
        assert sound_before_gap(np.concatenate(parts), RATE, 320) == pytest.approx(seconds * RATE, abs=320)
    click = np.concatenate([noise(0.1), quiet, noise(2)])
    assert sound_before_gap(click, RATE, 320) == len(click), "a click is no window"


def test_long_silence_is_skipped_up_to_shortly_before_a_sound() -> None:
    def skipped(silence: float, level: float = 0.0) -> float:
        quiet = noise(silence, level) if level else np.zeros(round(silence * RATE), np.float32)
        return silence_to_skip(np.concatenate([quiet, noise(1)]), RATE, 320) / RATE

    assert skipped(5.0) == 4.8
    assert skipped(5.0, level=1e-5) == 4.8
    assert skipped(5.0, level=1e-3) == 0, "a quiet room is not silence"
    assert skipped(0.9) == 0
    assert silence_to_skip(np.zeros(700, np.float32), RATE, 320) == 700
    assert silence_to_skip(noise(1), RATE, 320) == 0


def test_a_pause_is_heard_after_speech_and_in_noise_that_is_much_quieter() -> None:
    speech, room = noise(3), noise(1, 0.003)
    assert ends_in_pause(np.concatenate([speech, room]), RATE)
    assert not ends_in_pause(np.concatenate([speech, room[: RATE // 3]]), RATE), "too short a pause"
    assert not ends_in_pause(np.concatenate([speech, noise(1, 0.03)]), RATE), "the room is too loud to tell"
    assert not ends_in_pause(speech, RATE) and not ends_in_pause(noise(5, 0.003), RATE), "nobody paused"
    assert not ends_in_pause(np.concatenate([speech[: RATE // 2], room]), RATE), "too little was said"
    assert not ends_in_pause(np.zeros(5 * RATE, np.float32), RATE)


def test_a_recording_is_transcribed_at_its_pauses_and_each_sound_once(tmp_path: Path) -> None:
    sound = [noise(3), noise(1, 0.003), noise(4), noise(1, 0.003), noise(2)]
    heard = threading.Semaphore(0)

    def speaking() -> Iterator[np.ndarray]:
        for i, part in enumerate(sound):
            yield part
            if i in (1, 3):
                heard.acquire(timeout=20)  # nothing more is said before the pause was noticed

    model, engine = fake_transcriber(tmp_path, Script(said(0.0, " Said.", 3.0)))
    texts = []
    for segment in model.transcribe_stream(recording(Audio(speaking(), None), RATE, lambda: False)):
        texts.append((segment.start, segment.end))
        heard.release()
    assert texts == [(0.0, 3.0), (4.0, 7.0), (9.0, 12.0)]
    assert [len(window) / RATE for window in engine.windows] == [4.0, 5.0, 2.0]


def test_nothing_of_a_recording_reaches_into_the_next_window(tmp_path: Path) -> None:
    said_on = threading.Event()

    def speaking() -> Iterator[np.ndarray]:
        yield np.concatenate([noise(3), noise(1, 0.003)])
        said_on.wait(20)
        yield noise(3)

    model, _ = fake_transcriber(tmp_path, Script(said(0.0, " One.", 9.0)), Script(said(0.0, " Two.", 1.0)))
    ends = []
    for segment in model.transcribe_stream(recording(Audio(speaking(), None), RATE, lambda: False)):
        ends.append(segment.end)
        said_on.set()
    assert ends == [4.0, 5.0]


def test_sound_that_waits_already_fills_whole_windows(tmp_path: Path) -> None:
    read = threading.Event()

    def piped() -> Iterator[np.ndarray]:
        yield from [noise(3), noise(1, 0.003)] * 10
        read.set()

    model, engine = fake_transcriber(tmp_path, Script(said(0.0, " Said.", 30.0, 30.0)))
    audio = recording(Audio(piped(), None), RATE, lambda: False)
    next(audio.blocks)
    assert read.wait(60)
    list(model.transcribe_stream(audio))
    assert len(engine.windows[0]) == 30 * RATE


def test_a_recording_is_read_on_while_the_model_computes() -> None:
    read = threading.Event()

    def speaking() -> Iterator[np.ndarray]:
        yield from (noise(1) for _ in range(20))
        read.set()

    audio = recording(Audio(speaking(), None), RATE, lambda: False)
    next(audio.blocks)
    assert read.wait(60), "a pipe that nobody reads loses sound"


def test_a_stop_ends_a_recording_with_what_was_said_until_then() -> None:
    stop, taken, later = threading.Event(), threading.Event(), threading.Event()

    def speaking() -> Iterator[np.ndarray]:
        yield from (noise(1) for _ in range(3))
        taken.set()
        later.wait(60)
        yield noise(1)

    audio = recording(Audio(speaking(), None), RATE, stop.is_set)
    heard = [next(audio.blocks)]
    assert taken.wait(60)
    stop.set()
    heard += audio.blocks
    assert len(heard) == 3, "what is said after the stop is not waited for"
    later.set()


@pytest.mark.parametrize("seconds", [2.0, 0.1])
def test_a_source_of_any_speed_is_read_ten_minutes_ahead_and_no_further_after_a_stop(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, full, block, read = threading.Event(), threading.Event(), noise(seconds), 0

    def flood() -> Iterator[np.ndarray]:
        nonlocal read
        for _ in range(round(3 * AHEAD_S / seconds)):
            read += 1
            yield block

    def settled() -> int:
        before = -1
        while before != read:
            before = read
            time.sleep(0.3)
        return read

    def rest(pause: float) -> None:
        full.set()
        time.sleep(pause)

    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=rest))
    audio = recording(Audio(flood(), None), RATE, stop.is_set)
    next(audio.blocks)
    assert full.wait(60)
    ahead = settled()
    assert AHEAD_S <= ahead * seconds <= AHEAD_S + 2 * seconds, "blocks of any size are so much sound"
    stop.set()
    assert sum(map(len, audio.blocks)) == (ahead - 1) * len(block), "what waited was heard"
    assert settled() == ahead


def test_what_goes_wrong_while_recording_is_raised() -> None:
    def broken() -> Iterator[np.ndarray]:
        yield noise(1)
        raise InputError("The microphone broke.")

    audio = recording(Audio(broken(), None), RATE, lambda: False)
    next(audio.blocks)
    with pytest.raises(InputError, match="microphone broke"):
        next(audio.blocks)
