"""Memory of a device that its graphs need, computed before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from edge.bundle import Bundle
from edge.runtime.providers.provider import memory_type
from edge.targets import DeviceTarget, weights_of

WORKSPACE = 512 << 20  # bytes of activations, recorded steps and the device's libraries: an estimate, not measured yet
LEAST = 16  # tokens of a context


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of a device's memory. row: of the keys and values of a token. context: tokens of a text. branches: texts at
    a time."""

    weights: int
    row: int
    workspace: int
    context: int
    branches: int = 1

    @property
    def kv(self) -> int:
        return self.row * self.context * self.branches

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.workspace

    def fitting(self, limit: int) -> int:
        """The longest context, up to the plan's own, that `limit` bytes have room for; less than `LEAST`: none."""
        return min(self.context, (limit - self.weights - self.workspace) // (self.row * self.branches))


def plan_for(bundle: Bundle, target: DeviceTarget, context: int, branches: int = 1) -> DevicePlan:
    """The plan of a target for this context. BundleError is not raised: sizes were checked."""
    weights = bundle.size(weights_of(target))
    size = memory_type(target.activations).itemsize
    row = sum(2 * layer.heads * layer.head_dim * size for layer in bundle.manifest.kv.layers)
    return DevicePlan(weights, row, WORKSPACE, context, branches)
