"""Providers that some builds of onnxruntime contain. onnxruntime chooses their device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnxruntime as ort

from edge.errors import InputError
from edge.manifest import Manifest
from edge.runtime.providers.accelerator import Accelerator
from edge.runtime.providers.cpu import arena_bytes
from edge.runtime.providers.provider import Device, Support


@dataclass(frozen=True)
class Builtin:
    """A provider that is part of onnxruntime, where it was built in.

    Args:
        name: of the provider; `execution_provider`: onnxruntime's name of it.
        kind, device: of what it runs on.
        builds: which builds have it, for a sentence.
    """

    name: str
    execution_provider: str
    kind: str
    device: str
    builds: str

    def find(self) -> Support:
        """Return the support of this machine: the installed onnxruntime has the provider, or not."""
        package = f"onnxruntime {ort.__version__}"
        if self.execution_provider in ort.get_available_providers():
            return Support(package, [Device(self.name, self.kind, self.device)])
        return Support(None, [], f"The installed {package} was built without {self.name}, which {self.builds} have.")

    def make(self, threads: int | None, manifest: Manifest | None, strict: bool | None) -> Accelerator:
        """The provider; InputError where onnxruntime was built without it."""
        support = self.find()
        if support.device is None:
            raise InputError(support.missing)

        def append(session: ort.SessionOptions) -> None:
            session.add_provider(self.execution_provider, {})

        kept: dict[str, Any] = {"threads": threads, "arena": arena_bytes(manifest), "strict": support.is_strict(strict)}
        return Accelerator(self.name, self.execution_provider, support.device, append, **kept)
