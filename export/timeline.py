"""How long an export still takes, all of it: the stages' shares are known, and the time that they took here so far says
how fast this machine is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from edge.export.quantize.base import Progress

RECENT_S = 20.0  # from which the speed is taken: what was kept from an interrupted export says nothing of it
LEAST_S = 5.0  # below which nothing is said

Stages = Sequence[tuple[str, float]]  # texts of the stages in their order, each with its share, in any unit

_CHECK, _BEFORE = "running Torch on the check's text", "running the calibration text"
_SOLVING, _TRYING, _CHOOSING = "quantizing to 4 bits", "trying 4 bits", "measuring what bits bring"
_TUNING = "tuning scales"
_OWN, _CANDIDATES = "writing text to calibrate on", "collecting candidates for drafts"
# Seconds of exports to int4, of SmolLM2-135M on two cores of an Intel processor with AMX (model 167).
OF_INT4: dict[str, Stages] = {
    "quick": [(_SOLVING, 15), ("recording golden answers", 2)],
    "normal": [
        *((_CHECK, 2), (_OWN, 25), (_BEFORE, 22), (_TRYING, 34), (_CHOOSING, 29)),
        *((_SOLVING, 94), (_CANDIDATES, 17)),
    ],
    "best": [
        *((_CHECK, 2), (_OWN, 70), (_BEFORE, 40), (_TRYING, 34), (_CHOOSING, 29)),
        *((_SOLVING, 180), (_TUNING, 360), (_CANDIDATES, 17)),
    ],
}
DRAFTS = ("writing text to draft from", 75)


class Timeline:
    """A `Progress` that adds the remaining time to what it hands on. Stages that are not named take no time."""

    def __init__(self, report: Progress, stages: Stages, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._stages = stages
        self._clock = clock
        self._whole = sum(share for _, share in stages)
        self._at = 0  # the stage
        self._trail = deque[tuple[float, float]]()  # times, and the work that was done by then
        self._left = ""

    def __call__(self, done: int, total: int, text: str) -> None:
        names = [name for name, _ in self._stages]
        if text in names[self._at :]:
            at = names.index(text, self._at)
            if at > self._at + 1:  # stages were left out, which says nothing of the speed
                self._trail.clear()
            self._at = at
            before = sum(share for _, share in self._stages[: self._at])
            self._trail.append((self._clock(), before + self._stages[self._at][1] * (done / total if total else 0)))
            self._left = self._remaining() or self._left
        self._report(done, total, text + self._left)

    def _remaining(self) -> str:
        now, work = self._trail[-1]
        while len(self._trail) > 2 and now - self._trail[1][0] >= RECENT_S:
            self._trail.popleft()
        start, first = self._trail[0]
        if work <= first or now - start < LEAST_S:
            return ""
        seconds = (now - start) / (work - first) * (self._whole - work)
        if seconds < 90:
            return f" · about {max(10, round(seconds, -1)):.0f} s left"
        return f" · about {round(seconds / 60)} min left"
