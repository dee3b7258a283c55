"""From the tokens of one window to segments with times, and to the place where the next window begins.

The rules are those of the reference implementation (openai/whisper, transcribe.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edge.manifest import Speech


@dataclass(frozen=True)
class Segment:
    """A piece of speech from `start` to `end`, in seconds.

    Joined, the texts are the whole transcript: most begin with a space. `avg_logprob` (per token), `compression_ratio`,
    `no_speech_prob` (None without such a token) and `temperature` are those of its window.
    """

    start: float
    end: float
    text: str
    tokens: list[int] = field(repr=False)
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None
    temperature: float


@dataclass(frozen=True)
class Span:
    """A part of a window: where it begins and ends, in samples from the window's begin, and its tokens."""

    start: int
    end: int
    tokens: list[int]


def split(tokens: Sequence[int], speech: Speech, window: int) -> tuple[list[Span], int]:
    """The segments among `tokens` of a window of `window` samples, and by how many samples to go on.

    Two timestamps in a row end one segment and begin the next. What follows the last pair is dropped, and heard again
    in the next window, which begins there; unless a single timestamp ends the text, after which nothing was said.
    """
    tick = speech.sample_rate // speech.frames_per_second  # samples from one timestamp to the next
    begin = speech.timestamp_begin
    is_time = [token >= begin for token in tokens]
    closed = is_time[-2:] == [False, True]
    cuts = [i for i in range(1, len(tokens)) if is_time[i - 1] and is_time[i]]
    if not cuts:
        last = next((token for token in reversed(tokens) if token >= begin), begin)
        end = window if last == begin else (last - begin) * tick
        return [Span(0, end, list(tokens))], window
    if closed:
        cuts.append(len(tokens))
    spans = []
    for start, end in zip([0, *cuts], cuts, strict=False):
        part = list(tokens[start:end])
        spans.append(Span((part[0] - begin) * tick, (part[-1] - begin) * tick, part))
    # No timestamp of a pair can be 0.00 by the rules; a window must never be heard twice all the same.
    return spans, window if closed or spans[-1].end <= 0 else min(spans[-1].end, window)
