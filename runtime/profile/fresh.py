"""Measurements that need a fresh process: how long a bundle takes to load, and the memory of one answer.

The parent calls `load_ms` and `memory`; a child runs `_load` and `_memory`. Large imports stand inside functions, so
that the child measures what they take.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from edge.children import Child, ChildEnded
from edge.runtime.memory.process import held, private_bytes, repeated

if TYPE_CHECKING:
    from edge.runtime.costs.record import Memory
    from edge.runtime.model import Model
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.text2text import Text2Text

INTERVAL_S = 0.01  # between two samples, each of which takes 0.02 ms
FILES = "files"
PRIVATE = ("floor", "session", "kv", "cross")  # kinds of private bytes
LONGEST_S = 600


@dataclass(frozen=True)
class Settings:
    """The settings with which the child opens the bundle."""

    bundle: str
    context: int
    threads: int | None
    provider: str
    strict: bool | None = None


class ChildFailed(Exception):
    """Raised where the fresh process ended without a result; the message tells why."""


def load_ms(settings: Settings) -> float:
    """Measure the milliseconds that `edge.load` takes in a fresh process which has imported all that it needs."""
    return float(_child(_load, settings)["ms"])


def memory(settings: Settings, prompt: int, tokens: int) -> Memory:
    """Measure the memory of a fresh process that loads the bundle, reads an input of `prompt` tokens and generates
    `tokens`."""
    from edge.runtime.costs.record import Memory
    from edge.typed_json import typed

    return typed(_child(_memory, settings, prompt, tokens), Memory, "the measurement of memory")


def _child(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    try:
        with Child(work, *given, said=Child.QUIET) as other:
            return cast("dict[str, Any]", other.result(LONGEST_S))
    except ChildEnded as e:
        raise ChildFailed(str(e)) from None
    except Exception as e:
        raise ChildFailed(f"{type(e).__name__}: {e}") from None


def _open(how: Settings) -> Model | Text2Text | Transcriber:
    from edge.runtime.load import load

    found = load(how.bundle, context=how.context, threads=how.threads, provider=how.provider, strict=how.strict)
    return cast("Model | Text2Text | Transcriber", found)  # no other is profiled


def _load(settings: Settings) -> dict[str, Any]:
    import edge.runtime.load  # noqa: F401 (importing it is not measured)

    start = time.perf_counter()
    _open(settings)
    return {"ms": (time.perf_counter() - start) * 1e3}


def _memory(settings: Settings, prompt: int, tokens: int) -> dict[str, Any]:
    watch = _Watch()
    watch.sample("start")
    import edge.runtime.load  # noqa: F401 (a phase of its own)
    from edge.runtime.profile.subject import Subject

    watch.sample("import")
    watch.floor = private_bytes()
    with watch.during("load"):
        model = _open(settings)
    with watch.during("prefill"):
        watch.subject = subject = Subject(model.engine, settings.context)
        subject.first_token(prompt)
    with watch.during("decode"):
        subject.decode(subject.length, tokens)
    last = held()
    return {
        "peak_bytes": None if last is None else last.peak_rss,
        "peak_private_bytes": None if last is None else last.peak_private,
        "steady_bytes": watch.median("decode", *PRIVATE, FILES),
        "steady_private_bytes": watch.median("decode", *PRIVATE),
        "prompt_tokens": prompt,
        "capacity": settings.context,
        "samples": watch.samples,
    }


class _Watch:
    """Resident bytes by kind (docs/reference/profile-format.md); no samples where the system does not tell.

    session: the private memory that belongs to no other kind, which is ONNX Runtime's and the tokenizer's.
    """

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.subject: Any = None
        self.floor = 0  # private bytes after the imports
        self._start = time.perf_counter()

    def sample(self, phase: str) -> None:
        """Take one sample."""
        found = held()
        if found is None:
            return
        kv = cross = 0
        if self.subject is not None:
            kv, cross = self.subject.kv_bytes(mmap.PAGESIZE), self.subject.cross_bytes
        floor = min(found.private, self.floor) if self.floor else found.private
        session = max(0, found.private - floor - kv - cross)
        kinds = {"floor": floor, "session": session, "kv": kv, "cross": cross, FILES: max(0, found.rss - found.private)}
        second = round(time.perf_counter() - self._start, 4)
        self.samples.append({"second": second, "phase": phase, "kinds": {k: v for k, v in kinds.items() if v}})

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Takes samples in a thread of its own, and one more at the end."""
        try:
            with repeated(lambda: self.sample(phase), INTERVAL_S):
                yield
        finally:
            self.sample(phase)

    def median(self, phase: str, *of: str) -> int | None:
        """The median of the bytes of these kinds in a phase."""
        kinds = [each["kinds"] for each in self.samples if each["phase"] == phase]
        totals = sorted(sum(found.get(kind, 0) for kind in of) for found in kinds)
        return totals[len(totals) // 2] if totals else None
