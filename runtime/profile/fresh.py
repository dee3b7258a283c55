"""What must be measured in a fresh process: how long a bundle takes to load, and the memory of one answer.

The parent's side is `load_ms` and `memory`; the child runs `main`, which prints one JSON object.
Above the functions nothing large is imported, so that the child sees what the others take.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.runtime.memory.process import held, private_bytes

if TYPE_CHECKING:
    from edge.runtime.profile.record import Memory

INTERVAL_S = 0.01  # between two looks at the memory, each of which takes 0.02 ms
FILES = "files"
LONGEST_S = 600


@dataclass(frozen=True)
class Settings:
    """How the child opens the bundle."""

    bundle: str
    context: int
    threads: int | None


def load_ms(settings: Settings) -> float:
    """Milliseconds that `edge.load` takes in a fresh process which has imported all that it needs."""
    return float(_child("load", settings)["ms"])


def memory(settings: Settings, prompt: int, tokens: int) -> Memory:
    """Memory of a fresh process that loads the bundle, takes an input of `prompt` tokens and generates
    `tokens` more."""
    from edge.runtime.profile.record import Memory
    from edge.typed_json import typed

    return typed(_child("memory", settings, prompt, tokens), Memory, "the measurement of memory")


class ChildFailed(Exception):
    """The fresh process ended without a result; the last line that it said tells why."""


def _child(what: str, settings: Settings, *numbers: int) -> dict[str, Any]:
    given = [settings.bundle, str(settings.context), str(settings.threads or 0), *map(str, numbers)]
    # The same `edge` as this process's: by itself Python looks into the current folder first, whatever is there.
    code = f"import sys; sys.path[:] = {[*map(str, sys.path)]}; from {__name__} import main; main(sys.argv[1:])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, what, *given],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LONGEST_S,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ChildFailed(str(e)) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ChildFailed(said[-1] if said else f"it ended with status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _load(bundle: str, context: int, threads: int | None) -> dict[str, Any]:
    from edge.runtime.load import load

    start = time.perf_counter()
    load(bundle, context=context, threads=threads)
    return {"ms": (time.perf_counter() - start) * 1e3}


def _memory(bundle: str, context: int, threads: int | None, prompt: int, tokens: int) -> dict[str, Any]:
    watch = _Watch()
    watch.look("start")
    from edge.runtime.load import load
    from edge.runtime.profile.subject import Subject

    watch.imported()
    with watch.during("load"):
        model = load(bundle, context=context, threads=threads)
        engine = model.engine
    with watch.during("prefill"):
        watch.subject = subject = Subject(engine, context)
        subject.first_token(prompt)
    with watch.during("decode"):
        subject.decode(subject.length, tokens)
    last = held()
    return {
        "peak_bytes": None if last is None else last.peak_rss,
        "peak_private_bytes": None if last is None else last.peak_private,
        "steady_bytes": watch.steady("decode", FILES),
        "steady_private_bytes": watch.steady("decode"),
        "prompt_tokens": prompt,
        "capacity": context,
        "samples": watch.samples,
    }


class _Watch:
    """Resident bytes by kind; nothing where the system does not tell.

    floor: what the interpreter and all libraries hold once they are imported; kv: rows of the KV cache that were
    written; cross: what an encoder handed to the decoder; session: the rest of the private memory, which is ONNX
    Runtime's (packed weights, activations, logits) and the tokenizer's; files: pages of files, code and mapped weights,
    which the system can take back.
    """

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.subject: Any = None
        self._floor = 0  # private bytes after the imports
        self._start = time.perf_counter()

    def look(self, phase: str) -> None:
        """Take one sample."""
        found = held()
        if found is None:
            return
        kv = cross = 0
        if self.subject is not None:
            kv, cross = self.subject.kv_bytes(mmap.PAGESIZE), self.subject.cross_bytes
        floor = min(found.private, self._floor) if self._floor else found.private
        session = max(0, found.private - floor - kv - cross)
        files = max(0, found.rss - found.private)
        kinds = {"floor": floor, "session": session, "kv": kv, "cross": cross, FILES: files}
        second = round(time.perf_counter() - self._start, 4)
        self.samples.append({"second": second, "phase": phase, "kinds": {k: v for k, v in kinds.items() if v}})

    def imported(self) -> None:
        """Whatever is there by now belongs to the floor."""
        self.look("import")
        self._floor = private_bytes()

    def during(self, phase: str) -> _During:
        """While entered, samples are taken in a thread of their own; at the end one more."""
        return _During(self, phase)

    def steady(self, phase: str, *also: str) -> int | None:
        """The median of the private bytes in a phase, and of those of other kinds."""
        private = ("floor", "session", "kv", "cross", *also)
        kinds = [each["kinds"] for each in self.samples if each["phase"] == phase]
        totals = sorted(sum(found.get(kind, 0) for kind in private) for found in kinds)
        return totals[len(totals) // 2] if totals else None


class _During:
    def __init__(self, watch: _Watch, phase: str) -> None:
        self._watch, self._phase = watch, phase
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self._watch.look(self._phase)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._watch.look(self._phase)


def main(args: list[str]) -> None:
    """What the child does."""
    what, bundle, (context, threads, *numbers) = args[0], args[1], map(int, args[2:])
    if what == "load":
        answer = _load(bundle, context, threads or None)
    else:
        answer = _memory(bundle, context, threads or None, *numbers)
    print(json.dumps(answer))
