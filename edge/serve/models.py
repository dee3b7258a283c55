"""The models of a server: loaded when they are first asked; with a memory limit one at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.errors import InputError
from edge.runtime.load import start
from edge.runtime.load_options import LoadOptions
from edge.serve.refusal import UNKNOWN, Refusal
from edge.serve.worker import Worker

if TYPE_CHECKING:
    from edge.bundle import Bundle

LATEST = ":latest"  # what Ollama's clients add to a name
WAIT_S = 0.05


class Models:
    """Models by the names that requests call them by.

    Args:
        bundles: of decoders.
        options: how they are loaded. With `memory` one is in memory at a time: to load another, it is closed as soon
            as it has answered.
        parallel, queue: see `Worker`.
    """

    def __init__(self, bundles: Mapping[str, Bundle], options: LoadOptions, *, parallel: int, queue: int) -> None:
        self.bundles, self._options, self._parallel, self._queue = dict(bundles), options, parallel, queue
        self._workers: dict[str, Worker] = {}
        self._lock = threading.Lock()  # while a model is loaded or closed
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
    def loaded(self) -> dict[str, Worker]:
        """The models that are in memory."""
        return dict(self._workers)

    def worker(self, name: str) -> Worker:
        """What answers for a model, which is loaded first where it is not in memory. Takes as long as that.

        Raises:
            EdgeError: it cannot be loaded; the next request tries again.
        """
        if (found := self._workers.get(name)) is not None:
            return found
        with self._lock:
            if (found := self._workers.get(name)) is not None:
                return found
            if self._options.memory is not None:  # each is planned to use all of it
                self._close_all()
            if self._closed:
                raise InputError("The server is closing.")
            self._workers[name] = made = self._load(name)
            return made

    def _load(self, name: str) -> Worker:
        from edge.runtime.model import Model

        loading = start(self.bundles[name], self._options)
        try:
            model = loading.model()
        finally:
            loading.engine.result()
        assert isinstance(model, Model), "only decoders are served"
        model.wait()
        return Worker(model, parallel=self._parallel, queue=self._queue)

    def _close_all(self) -> None:
        """Close the models that are in memory, each once nothing is asked of it."""
        pause = threading.Event()
        for name, worker in self.loaded.items():
            while not worker.idle and not self._closed:
                pause.wait(WAIT_S)
            self._workers.pop(name).close()

    def unload(self, name: str) -> None:
        """Close a model, where nothing is asked of it at present."""
        with self._lock:
            worker = self._workers.get(name)
            if worker is not None and worker.idle:
                self._workers.pop(name).close()

    def close(self) -> None:
        """End all answers, and close all models."""
        self._closed = True
        with self._lock:
            for worker in self._workers.values():
                worker.close()
            self._workers.clear()
