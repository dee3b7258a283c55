"""File formats of a transcription: plain text, text with times, SubRip, WebVTT, JSON.

Each format gives text for the beginning, for every segment as it comes, and for the end.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from edge.runtime.speech.segments import Segment
from edge.runtime.speech.transcribe import Transcript


class Format:
    """Plain text, one line per segment: `begin`, then `segment` for each, counted from 1, then `end`, whose transcript
    has its segments where `needs_segments` is true. `more` has further fields by name, which only JSON writes."""

    needs_segments = False

    def begin(self) -> str:
        return ""

    def segment(self, number: int, segment: Segment) -> str:
        return f"{_line(segment)}\n"

    def end(self, transcript: Transcript, more: Mapping[str, Any]) -> str:
        return ""


class _Times(Format):
    """One line per segment, with when it begins and ends."""

    def segment(self, number: int, segment: Segment) -> str:
        return f"[{clock(segment.start)} --> {clock(segment.end)}] {_line(segment)}\n"


class _Srt(Format):
    """SubRip: hours always, a comma before milliseconds."""

    def segment(self, number: int, segment: Segment) -> str:
        start, end = clock(segment.start, hours=True, mark=","), clock(segment.end, hours=True, mark=",")
        return f"{number}\n{start} --> {end}\n{_subtitle(segment)}\n\n"


class _Vtt(Format):
    """WebVTT (W3C)."""

    def begin(self) -> str:
        return "WEBVTT\n\n"

    def segment(self, number: int, segment: Segment) -> str:
        escaped = _subtitle(segment).replace("&", "&amp;").replace("<", "&lt;")
        return f"{clock(segment.start)} --> {clock(segment.end)}\n{escaped}\n\n"


class _Json(Format):
    """One object: `segments` with everything known about each, then `text`, `language`, `duration`, `complete`."""

    needs_segments = True

    def begin(self) -> str:
        return '{"segments": ['

    def segment(self, number: int, segment: Segment) -> str:
        values = dataclasses.asdict(segment)
        values.update(start=round(segment.start, 3), end=round(segment.end, 3))
        return f"{',' if number > 1 else ''}\n{json.dumps(values, ensure_ascii=False)}"

    def end(self, transcript: Transcript, more: Mapping[str, Any]) -> str:
        rest = {
            "text": transcript.text,
            "language": transcript.language,
            "duration": round(transcript.duration, 3),
            "complete": transcript.complete,
            **more,
        }
        return f"\n], {json.dumps(rest, ensure_ascii=False)[1:]}\n"


FORMATS: dict[str, Format] = {"text": Format(), "times": _Times(), "srt": _Srt(), "vtt": _Vtt(), "json": _Json()}


def clock(seconds: float, *, hours: bool = False, mark: str = ".") -> str:
    """A time such as 01:02.345, with hours where there are any or `hours` asks for them."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    hour, minutes = divmod(minutes, 60)
    return (f"{hour:02}:" if hour or hours else "") + f"{minutes:02}:{whole:02}{mark}{milliseconds:03}"


def _line(segment: Segment) -> str:
    return " ".join(segment.text.split())


def _subtitle(segment: Segment) -> str:
    return _line(segment).replace("-->", "->")  # which would end the times' line
