"""The packing of a GGUF file's own blocks for our kernels, while the rest of a bundle is written."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from edge.bundle import Bundle, BundleWriter
from edge.errors import ExportError
from edge.runtime.background import Background
from edge.runtime.engine.variant import DECODER
from edge.runtime.kernels.gguf import refuse_without_kernels
from edge.runtime.kernels.graph import pack_ahead
from edge.runtime.kernels.library import computes_gguf, find_kernels
from edge.runtime.kernels.packed_file import described
from edge.runtime.kernels.packed_gguf import PACKING

if TYPE_CHECKING:
    from edge.export.facts.progress import Progress
    from edge.manifest import Manifest

LOOK_S = 0.1
# Python's threads take turns this often meanwhile: threads that pack ask for a turn with each piece, and the rest of an
# export would let them wait 5 ms each time.
SWITCH_S = 5e-4


class Packing:
    """Packs the matrices that a written decoder's graph reads, in a thread of its own, which ends with the context.

    Raises:
        BundleError: our kernels, which alone run such graphs, do not run here.
    """

    def __init__(self, writer: BundleWriter, manifest: Manifest) -> None:
        kernels = find_kernels()
        if kernels is None or not computes_gguf(kernels):
            raise refuse_without_kernels(manifest.name)
        bundle = Bundle(writer.staging, manifest)
        path, self._name = bundle.path(manifest.graph(DECODER).path), manifest.name
        self._done, self._total, self._stopped, self._ended = 0, 0, False, threading.Event()

        def work() -> None:
            before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
            try:
                pack_ahead(bundle, kernels, path, self._note)
            finally:
                sys.setswitchinterval(before)
                self._ended.set()

        self._work = Background(work)

    def __enter__(self) -> Packing:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._ended.wait()

    def _note(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._stopped:
            raise OSError("it was stopped")

    def wait(self, progress: Progress) -> None:
        """Wait for the end, and report how far it is.

        Raises:
            ExportError: the packed weights can neither be read nor be written.
            BundleError: a matrix has a scale that is no number.
        """
        while not self._ended.wait(LOOK_S):
            progress(self._done, self._total, PACKING)
        try:
            self._work.result()
        except OSError as e:
            raise ExportError(f"The weights of {self._name} cannot be packed: {described(e)}.") from None
