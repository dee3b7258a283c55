"""The corpus that another host's transcriber is held to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_speech import Script, fake_transcriber, said

from edge.runtime.check import conformance_speech
from edge.runtime.check.conformance import count, emit


def test_what_is_heard_in_each_sound_is_written_with_the_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = fake_transcriber(tmp_path / "bundle", Script(said(0.0, " Hello.", 1.0)))
    monkeypatch.setattr(conformance_speech, "load", lambda *args, **options: model)
    progressed: list[int] = []
    made = emit(model.bundle, tmp_path / "corpus", progress=progressed.append)
    lines = [json.loads(line) for line in (tmp_path / "corpus" / "speech.jsonl").read_text("utf-8").splitlines()]
    assert made == len(lines) == len(progressed) == count(model.bundle)
    for line in lines:
        samples = np.fromfile(tmp_path / "corpus" / line["sound"], "<f4")
        again = model.transcribe(samples, **line["options"]).segments
        assert [(each.start, each.text) for each in again] == [(s["start"], s["text"]) for s in line["segments"]]
    texts = {line["sound"]: "".join(s["text"] for s in line["segments"]) for line in lines if not line["options"]}
    assert texts["silence.pcm"] == "" and texts["gap.pcm"] == 2 * " Hello."
    assert texts["long.pcm"] == 3 * " Hello."


def test_a_corpus_has_a_sound_longer_than_two_windows_and_shorter_ones() -> None:
    sounds = conformance_speech.make_sounds(16_000, 480_000)
    assert tuple(sounds) == conformance_speech.SOUNDS
    assert len(sounds["long"]) > 2 * 480_000  # the third window is given what was said in both
    assert max(len(sounds[name]) for name in ("command", "sentence", "gap")) < 480_000
    assert np.array_equal(sounds["long"], conformance_speech.make_sounds(16_000, 480_000)["long"])
