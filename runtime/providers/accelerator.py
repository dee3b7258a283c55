"""A device next to the processor: a provider that takes some nodes of a graph, and leaves the others to the CPU's.

Inputs, outputs and the KV cache stay in the host's memory, where the CPU's provider makes them: onnxruntime copies what
a device with memory of its own reads and writes, in every run. Nodes that the provider does not take run in the host's
pool of threads.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import onnxruntime as ort
from numpy.typing import NDArray

from edge.errors import BundleError, DeviceError, EdgeError, on_one_line
from edge.runtime.mapped_file import MappedFile
from edge.runtime.providers.cpu import Cpu, session_options
from edge.runtime.providers.provider import SIMULATES, Binding, Buffer, Device, Session, open_session

NAMED = 3  # nodes that a refusal names
SHARED = "ep.share_ep_contexts"  # whether models that were compiled together share what is in their binary

T = TypeVar("T")


class Accelerator(Cpu):
    """See `edge.runtime.providers.provider.Provider`.

    Args:
        name: of the provider; `execution_provider`: onnxruntime's name of it.
        device: that runs the graphs.
        append: adds it to the options of a session.
        strict: whether a graph is refused of which it cannot run every node.
    """

    own_kernels = False  # it takes the nodes itself

    def __init__(
        self,
        name: str,
        execution_provider: str,
        device: Device,
        append: Callable[[ort.SessionOptions], None],
        *,
        threads: int | None,
        arena: int,
        strict: bool,
    ) -> None:
        super().__init__(threads, arena)
        self.name = name
        self._execution_provider, self._device, self._append = execution_provider, device, append
        self._strict = strict
        self._simulator = device.use == SIMULATES
        self.simulated = False  # until it runs a node

    def devices(self) -> list[Device]:
        return [self._device]

    def open_compiled(self, model: Path) -> Session:
        """A session over a model that was compiled ahead of time for this device, whose binary is next to it."""
        options = session_options(None)
        options.add_session_config_entry(SHARED, "1")
        return self._opened(model, str(model), options)

    def _session(self, model: Path | bytes, name: str, folder: Path | None, profile: Path | None = None) -> Session:
        return self._opened(model, name, session_options(folder), profile)

    def _opened(
        self, model: Path | bytes, name: str, options: ort.SessionOptions, profile: Path | None = None
    ) -> Session:
        self._append(options)
        advice = f"the provider {self.name} cannot run it here, and the provider cpu may"
        with standard_output_kept() if self._simulator else contextlib.nullcontext():
            opened = open_session(model, name, options, None, profile, advice)
        session = DeviceSession(opened.inference, self.name, opened.files)
        self.simulated |= self._simulator and self._execution_provider in self.placement(session)
        if self._strict:
            self._check_placement(session, name)
        return session

    def _check_placement(self, session: Session, name: str) -> None:
        """Raise BundleError where a node is not the provider's. onnxruntime's own refusal names none."""
        placed = self.placement(session)
        others = {provider: nodes for provider, nodes in placed.items() if provider != self._execution_provider}
        if not others:
            return
        nodes, count = [node for each in others.values() for node in each], sum(map(len, placed.values()))
        named = ", ".join(nodes[:NAMED]) + (" and more" if len(nodes) > NAMED else "")
        raise BundleError(
            f"{name} does not run on {self.name} alone: {len(nodes)} of its {count} nodes would run on "
            f"{' and '.join(others)} ({named}), because this device needs a graph that was made for it, and the bundle "
            f"has none; run it with the provider cpu, or with --no-strict (strict=False) on both."
        )


class DeviceBinding(Binding):
    """See `Binding`. onnxruntime copies what a device with memory of its own reads when it is bound, so that all inputs
    are bound again for every run."""

    def __init__(self, session: ort.InferenceSession, files: Sequence[MappedFile] = ()) -> None:
        super().__init__(session, files)
        self._inputs: dict[str, Buffer] = {}
        self.run = partial(self._run, self.run)

    def input(self, name: str, buffer: Buffer) -> None:
        self._inputs[name] = buffer

    def _run(self, run: Callable[[], None]) -> None:
        for name, buffer in self._inputs.items():
            super().input(name, buffer)
        run()


class DeviceSession(Session):
    """See `Session`; a device that fails in the middle of a run, or disappears, is a DeviceError."""

    def __init__(self, inference: ort.InferenceSession, provider: str, files: Iterable[MappedFile]) -> None:
        super().__init__(inference, files)
        self._provider = provider

    def bind(self) -> Binding:
        binding = DeviceBinding(self.inference, self.files)
        binding.run = partial(self._guarded, binding.run)
        return binding

    def run(self, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        return self._guarded(partial(super().run, inputs))

    def _guarded(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except EdgeError:
            raise
        except Exception as e:  # drivers' errors have no common base
            raise DeviceError(
                f"The device of the provider {self._provider} failed ({on_one_line(e)}), and the answer ends here; "
                "run it again, or with the provider cpu."
            ) from e


@contextlib.contextmanager
def standard_output_kept() -> Iterator[None]:
    """Within it, what libraries print to standard output goes to standard error: Qualcomm's simulator says a line about
    itself, which would stand before an answer."""
    out, err = 1, 2
    try:
        sys.stdout.flush()
        kept = os.dup(out)
    except (OSError, ValueError):  # the process has none
        yield
        return
    try:
        os.dup2(err, out)
        yield
    finally:
        os.dup2(kept, out)
        os.close(kept)
