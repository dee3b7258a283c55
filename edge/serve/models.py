"""The models of a server: loaded when they are first asked; with a memory limit as many as have room."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from edge.embedding_format import EMBEDDER, RERANKER
from edge.runtime.load import OF_EMBEDDERS, check_loads, open_embedder, start
from edge.runtime.load_options import LoadOptions
from edge.runtime.options import DECODER, SPEECH, TEXT, kind_of
from edge.serve.hold import Hold
from edge.serve.refusal import BAD, UNKNOWN, Refusal, WorkerClosed
from edge.serve.rooms import Rooms
from edge.serve.single import Single
from edge.serve.worker import Worker

if TYPE_CHECKING:
    from edge.bundle import Bundle

T = TypeVar("T")
DOES = {
    DECODER: "answers prompts; ask it at /v1/chat/completions",
    TEXT: "turns one text into another; ask it at /v1/completions",
    SPEECH: "hears speech; ask it at /v1/audio/transcriptions",
    EMBEDDER: "makes vectors of texts; ask it at /v1/embeddings",
    RERANKER: "ranks documents; ask it at /v1/rerank",
}
LATEST = ":latest"  # what Ollama's clients add to a name
WAIT_S = 0.05
CLOSING = "The server is closing."


class Models:
    """Models by the names that requests call them by.

    Args:
        bundles: of any kind.
        options: how they are loaded. Where another one would need more than `memory`, those that were not asked for
            the longest time are closed before, each as soon as it has answered.
        parallel, queue: see `Worker`.
    """

    def __init__(self, bundles: Mapping[str, Bundle], options: LoadOptions, *, parallel: int, queue: int) -> None:
        self.bundles, self._options, self._parallel, self._queue = dict(bundles), options, parallel, queue
        self._workers: dict[str, Worker | Single] = {}
        self._lock = threading.Lock()  # while a model is loaded or closed
        self._leaving: set[str] = set()  # models that are being closed to make room
        self._rooms = None if options.memory is None else Rooms(self.bundles, options.memory, self._options_of)
        self._asked: dict[str, float] = {}  # when each model was asked for last
        self._closed = False

    def name(self, asked: str | None) -> str:
        """The name of the model that a request means; without one it is the only one. Refusal where there is none."""
        if asked is None and len(self.bundles) == 1:
            return next(iter(self.bundles))
        known = ", ".join(self.bundles)
        if asked is None:
            raise Refusal(UNKNOWN, f"The request names no model; there are {known}.", field="model")
        found = asked if asked in self.bundles else asked.removesuffix(LATEST)
        if found not in self.bundles:
            raise Refusal(UNKNOWN, f"There is no model {asked[:100]!r} here; there are {known}.", field="model")
        return found

    @property
    def loaded(self) -> dict[str, Worker | Single]:
        """The models that are in memory."""
        return dict(self._workers)

    def kind(self, name: str) -> str:
        """DECODER, TEXT, SPEECH, EMBEDDER or RERANKER."""
        return kind_of(self.bundles[name].manifest)

    def vocabulary(self, name: str) -> int:
        """The number of a model's tokens."""
        return self.bundles[name].manifest.dims.vocab_size

    def check_kind(self, name: str, kind: str) -> None:
        """Raise Refusal where a model is of another kind than an address is for."""
        if (found := self.kind(name)) != kind:
            raise Refusal(BAD, f"{name} {DOES[found]}.", field="model")

    def worker(self, name: str) -> tuple[Worker, Hold]:
        """What answers for a decoder, which is loaded first where it is not in memory. Takes as long as that. It stays
        there while it is held.

        Raises:
            Refusal: the model is none.
            EdgeError: it cannot be loaded; the next request tries again.
        """
        self.check_kind(name, DECODER)
        found, hold = self.opened(name)
        assert isinstance(found, Worker), "a decoder has one"
        return found, hold

    def run(self, name: str, work: Callable[[Any], T]) -> T:
        """Run something with a model of another kind, which is loaded first where it is not in memory. Errors are those
        of `worker` and of `Single.run`."""
        single, hold = self.opened(name)
        assert isinstance(single, Single), "a model that is no decoder has one"
        with hold:
            return single.run(partial(work, single.model))

    def opened(self, name: str) -> tuple[Worker | Single, Hold]:
        """A model in memory, which is loaded first where it is not there, and stays there while it is held."""
        if self._closed:
            raise WorkerClosed(CLOSING)
        self._asked[name] = time.monotonic()
        found = self._workers.get(name)
        if found is not None and name not in self._leaving:
            with contextlib.suppress(WorkerClosed):
                if not found.dead:
                    return found, found.hold()
        with self._lock:
            found = self._workers.get(name)
            if found is None or found.dead:
                if found is not None:
                    found.close()
                    del self._workers[name]
                there = [] if self._rooms is None else self._make_room(self._rooms, name)
                if self._closed:
                    raise WorkerClosed(CLOSING)
                found = self._workers[name] = self._load(name, there)
            return found, found.hold()

    def check(self) -> None:
        """Raise what loading a model would raise as far as can be told beforehand, such as that it does not fit."""
        for name, bundle in self.bundles.items():
            check_loads(bundle, self._options_of(name))

    def _options_of(self, name: str) -> LoadOptions:
        if self.bundles[name].manifest.embedding is not None:
            return LoadOptions(**{each: getattr(self._options, each) for each in OF_EMBEDDERS if each != "context"})
        return self._options if self.kind(name) == DECODER else replace(self._options, beams=None)

    def _load(self, name: str, there: Sequence[str]) -> Worker | Single:
        """Load a model next to others."""
        from edge.runtime.model import Model

        options = self._options_of(name) if self._rooms is None else self._rooms.options(name, there)
        if self.bundles[name].manifest.embedding is not None:
            return Single(open_embedder(self.bundles[name], options), queue=self._queue)
        loading = start(self.bundles[name], options)
        try:
            model = loading.model()
        finally:
            loading.engine.result()
        model.wait()
        if not isinstance(model, Model):
            return Single(model, queue=self._queue)
        return Worker(model, parallel=self._parallel, queue=self._queue)

    def _make_room(self, rooms: Rooms, name: str) -> list[str]:
        """Close models until one more fits, each once nothing is asked of it; requests for them wait behind. Returns
        those that stay."""
        there = sorted(self._workers, key=self._asked.__getitem__)
        leaving = []
        while there and not rooms.fit([*there, name]):
            leaving.append(there.pop(0))
        self._leaving = {*leaving}
        try:
            for each in leaving:
                while not self._workers[each].close_if_idle():
                    if self._closed:
                        raise WorkerClosed(CLOSING)
                    time.sleep(WAIT_S)
                del self._workers[each]
        finally:
            self._leaving = set()
        return there

    def unload(self, name: str) -> bool:
        """Close a model, where nothing is asked of it at present; True if it is not in memory now."""
        with self._lock:
            worker = self._workers.get(name)
            if worker is not None and not worker.close_if_idle():
                return False
            self._workers.pop(name, None)
            return True

    def close(self) -> None:
        """End all answers, and close all models."""
        self._closed = True
        with self._lock:
            for worker in self._workers.values():
                worker.close()
            self._workers.clear()
