"""What transcripts look like: text, text with times, SubRip, WebVTT, JSON."""

from __future__ import annotations

import json

import pytest

from edge.runtime.speech.formats import FORMATS, clock
from edge.runtime.speech.segments import Segment
from edge.runtime.speech.transcribe import Transcript

SEGMENTS = [
    Segment(0.0, 2.5, " Hello & <you>.", [1, 2], -0.1, 0.9, 0.02, 0.0),
    Segment(3723.04, 3725.999, " an arrow --> and\na line ü", [3], -0.2, 1.1, None, 0.2),
]
TRANSCRIPT = Transcript("Hello & <you>. an arrow", SEGMENTS, "en", 4000.0, True)


def written(name: str, segments: list[Segment] = SEGMENTS, transcript: Transcript = TRANSCRIPT) -> str:
    form = FORMATS[name]
    middle = [form.segment(number, segment) for number, segment in enumerate(segments, 1)]
    return "".join([form.begin(), *middle, form.end(transcript, {})])


def test_text_is_a_line_for_each_segment() -> None:
    assert written("text") == "Hello & <you>.\nan arrow --> and a line ü\n"


def test_times_stand_before_the_text() -> None:
    assert written("times") == (
        "[00:00.000 --> 00:02.500] Hello & <you>.\n[01:02:03.040 --> 01:02:05.999] an arrow --> and a line ü\n"
    )


def test_srt_numbers_its_subtitles() -> None:
    assert written("srt") == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello & <you>.\n\n"
        "2\n01:02:03,040 --> 01:02:05,999\nan arrow -> and a line ü\n\n"
    )


def test_vtt_has_its_heading_and_escapes() -> None:
    assert written("vtt") == (
        "WEBVTT\n\n00:00.000 --> 00:02.500\nHello &amp; &lt;you>.\n\n"
        "01:02:03.040 --> 01:02:05.999\nan arrow -> and a line ü\n\n"
    )


@pytest.mark.parametrize("segments", [SEGMENTS, []])
def test_json_is_one_object_with_everything(segments: list[Segment]) -> None:
    read = json.loads(written("json", segments))
    assert set(read) == {"segments", "text", "language", "duration", "complete"}
    assert (read["language"], read["duration"], read["complete"]) == ("en", 4000.0, True)
    assert len(read["segments"]) == len(segments)
    for found, segment in zip(read["segments"], segments, strict=True):
        assert found == vars(segment)


def test_what_was_written_before_the_end_is_of_use() -> None:
    form = FORMATS["json"]
    begun = form.begin() + form.segment(1, SEGMENTS[0])
    assert json.loads(begun + "]}")["segments"][0]["text"] == " Hello & <you>."


def test_a_clock_rounds_into_the_next_minute() -> None:
    assert clock(59.9996) == "01:00.000"
    assert clock(3599.9996, mark=",") == "01:00:00,000"
