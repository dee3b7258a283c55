"""From a window's tokens to segments, and to where the next window begins."""

from __future__ import annotations

from fake_speech import RATE, SPEECH, ZERO, said

from edge.runtime.speech.segments import Span, split

WINDOW = 30 * RATE


def spans(*parts: float | str, window: int = WINDOW) -> tuple[list[tuple[float, float]], float]:
    """Begin and end of each segment in seconds, and how many seconds were heard."""
    found, heard = split(said(*parts), SPEECH, window)
    return [(span.start / RATE, span.end / RATE) for span in found], heard / RATE


def test_a_pair_of_timestamps_cuts_and_what_follows_the_last_pair_is_heard_again() -> None:
    assert spans(0.0, " a", 2.5, 2.5, " b", 6.0, 6.5, " cut o") == ([(0.0, 2.5), (2.5, 6.0)], 6.0)


def test_a_pair_that_ends_the_text_ends_what_was_heard() -> None:
    assert spans(0.0, " a", 2.5, 3.0, " b", 29.0, 29.0) == ([(0.0, 2.5), (3.0, 29.0)], 29.0)


def test_after_a_single_timestamp_nothing_was_said() -> None:
    assert spans(0.0, " a", 2.5, 2.5, " b", 6.0) == ([(0.0, 2.5), (2.5, 6.0)], 30.0)
    assert spans(0.0, " a", 2.5) == ([(0.0, 2.5)], 30.0)


def test_without_a_timestamp_that_ends_it_a_text_fills_the_window() -> None:
    assert spans(0.0, " a", window=5 * RATE) == ([(0.0, 5.0)], 5.0)
    assert spans(" a", window=5 * RATE) == ([(0.0, 5.0)], 5.0)
    assert spans(window=5 * RATE) == ([(0.0, 5.0)], 5.0)


def test_tokens_stay_with_their_segment() -> None:
    found, _ = split(said(0.0, " a", 2.0, 2.0, " b", 4.0, 4.0), SPEECH, WINDOW)
    assert found == [Span(0, 2 * RATE, said(0.0, " a", 2.0)), Span(2 * RATE, 4 * RATE, said(2.0, " b", 4.0))]


def test_a_window_is_never_heard_twice() -> None:
    assert spans(0.0, 0.0)[1] == 30.0
    assert spans(0.0, " a", 6.0, 6.0, window=5 * RATE)[1] == 5.0
    assert split([ZERO, ZERO, ZERO], SPEECH, 1000)[1] == 1000
