"""Providers that onnxruntime loads from a package of their own.

Such a package has functions `get_library_path` and `get_ep_name`. Registered under that name, its library lists the
devices that are here; under the name with `.virtual` at its end, also devices that it only compiles for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime as ort

from edge.errors import BundleError, EdgeError, InputError, on_one_line
from edge.extras import install, needing
from edge.manifest import Manifest
from edge.runtime.providers.accelerator import SHARED, Accelerator, standard_output_kept
from edge.runtime.providers.cpu import arena_bytes, session_options
from edge.runtime.providers.instructions import ARM
from edge.runtime.providers.provider import COMPILES, CPU, GPU, NPU, RUNS, SIMULATES, Device, Support, open_session
from edge.runtime.providers.threads import share_thread_pool


def _no_options(module: ModuleType) -> Mapping[str, str]:
    return {}


def _no_chip() -> str | None:
    return None


@dataclass(frozen=True)
class Plugin:
    """A provider that comes as a plugin.

    Args:
        name: of the provider; `execution_provider`: onnxruntime's name of it.
        module: the import name of its package, which the extra `extra` of this project installs.
        needs: what it runs on, for a sentence: "a GPU with Vulkan".
        kinds: of devices it is used with, the preferred first.
        virtual: whether it lists devices that it only compiles for.
        simulates: the device that it simulates on an x86 processor.
        chip: finds what chip this machine's device is a part of; see `Device`.
        options: of the execution provider; `simulator_options`: more of them for the simulator.
    """

    name: str
    execution_provider: str
    module: str
    extra: str
    needs: str
    kinds: tuple[str, ...] = (NPU, GPU, CPU)
    virtual: bool = False
    simulates: str | None = None
    chip: Callable[[], str | None] = _no_chip
    options: Callable[[ModuleType], Mapping[str, str]] = _no_options
    simulator_options: Mapping[str, str] = field(default_factory=dict)

    def find(self) -> Support:
        """Return the support of this machine for the provider, devices for compiling only included."""
        try:
            self._register()
            if self.virtual:
                self._register(".virtual")
        except EdgeError as e:
            return Support(self.package(), [], str(e))
        found = [device for device, _ in self._listed()]
        # Once a process has registered a name with .virtual, others' names list such devices too, twice then.
        devices = [each for i, each in enumerate(found) if each.use != COMPILES or each not in found[:i]]
        missing = None if any(device.use != COMPILES for device in devices) else self._no_device(devices)
        return Support(self.package(), devices, missing)

    def make(self, threads: int | None, manifest: Manifest | None, strict: bool | None) -> Accelerator:
        """The provider over its preferred device; MissingExtraError where its package is not installed, InputError
        where it cannot be loaded, or there is no device."""
        options = self.options(self._register())
        found = [(device, handle) for device, handle in self._listed() if device.use != COMPILES]
        if not found:
            raise InputError(self._no_device([]))
        device, handle = found[0]
        if device.use == SIMULATES:
            options = {**options, **self.simulator_options}

        def append(session: ort.SessionOptions) -> None:
            session.add_provider_for_devices([handle], dict(options))

        strict = Support(None, [device]).is_strict(strict)
        kept: dict[str, Any] = {"threads": threads, "arena": arena_bytes(manifest), "strict": strict}
        return Accelerator(self.name, self.execution_provider, device, append, **kept)

    def compile(self, models: Mapping[Path, Path], options: Mapping[str, str]) -> None:
        """Compile `models` ahead of time for the device that `options` describe: each key, a model, is written to its
        value, a file. These files name a binary next to the first, in which all share their weights. The provider must
        run every node.

        Raises:
            BundleError: a model cannot be compiled whole.
            InputError, MissingExtraError: as `make`.
        """
        given = dict(self.options(self._register())) | dict(options)
        handles = [handle for device, handle in self._listed()]
        if not handles:
            raise InputError(self._no_device([]))
        share_thread_pool(None)
        opened = []  # which share weights as long as they are open
        with standard_output_kept():
            for i, (model, out) in enumerate(models.items()):
                session = session_options(None)
                session.add_provider_for_devices(handles[:1], given)
                for key in ("session.disable_cpu_ep_fallback", "ep.context_enable", SHARED):
                    session.add_session_config_entry(key, "1")
                if i == len(models) - 1:
                    session.add_session_config_entry("ep.stop_share_ep_contexts", "1")
                session.add_session_config_entry("ep.context_embed_mode", "0")
                session.add_session_config_entry("ep.context_file_path", str(out))
                opened.append(open_session(model, str(model), session, None, advice="it was not compiled"))
                if not out.is_file():
                    raise BundleError(f"{model} was not compiled by {self.package()}; it wrote nothing.")

    def _register(self, ending: str = "") -> ModuleType:
        """Import the package and let onnxruntime load its library."""
        with needing(f"The provider {self.name}", self.extra):
            module = importlib.import_module(self.module)
        try:
            _load(self.execution_provider + ending, module.get_library_path())
        except Exception as e:  # a library of another system, or for another version of onnxruntime
            raise InputError(
                f"{self.package()} cannot be loaded by onnxruntime {ort.__version__} ({on_one_line(e)}); install "
                f"versions that go together: {install(self.extra, '--upgrade ')}"
            ) from None
        return module

    def package(self) -> str | None:
        """The package as pip calls it, with its version; None where it is not installed."""
        project = self.module.replace("_", "-")
        try:
            return f"{project} {importlib.metadata.version(project)}"
        except importlib.metadata.PackageNotFoundError:
            return None

    def _listed(self) -> list[tuple[Device, Any]]:
        """Its devices with onnxruntime's handles, the preferred first."""
        found = [(self._device(each), each) for each in ort.get_ep_devices() if each.ep_name == self.execution_provider]
        usable = [(device, each) for device, each in found if device is not None]
        return sorted(usable, key=lambda pair: (pair[0].use == COMPILES, self.kinds.index(pair[0].kind)))

    def _device(self, handle: Any) -> Device | None:
        """Return a device from onnxruntime's description; None where the provider is not used with its kind."""
        kind = handle.device.type.name.lower()
        if kind == CPU and self.simulates is not None:
            return None if ARM else Device(self.name, NPU, self.simulates, SIMULATES)
        if kind not in self.kinds:
            return None
        platform = handle.ep_metadata.get("npu_platform")
        name = handle.device.vendor + (f" {platform}" if platform else "")
        if handle.device.metadata.get("is_virtual") == "1":
            return Device(self.name, kind, name, COMPILES)
        return Device(self.name, kind, name, RUNS, self.chip())

    def _no_device(self, others: list[Device]) -> str:
        compiles = f" (it compiles for {len(others)} that are not here)" if others else ""
        return f"{self.package()} finds no device to run graphs on{compiles}; it needs {self.needs}."


@functools.cache
def _load(name: str, library: str) -> None:
    """Let onnxruntime load a library; a second time it would refuse."""
    ort.register_execution_provider_library(name, library)
