"""What the two ways of exporting, decoders and encoder-decoders, have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.export.quantize.base import Progress, QTensor, RowsTensor, Weight
from edge.manifest import Manifest
from edge.runtime.engine import Engine
from edge.runtime.verify import GoldenInput

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

FLOATS = {"F32", "F16", "BF16"}  # of stored types
KEPT = {"gguf", "Q4_0", "Q8_0", "float"}  # methods after which a tensor has the values that it was stored with


@dataclass(frozen=True)
class Written:
    """A bundle but for its golden answers and its files' sha256s."""

    manifest: Manifest
    engine: Engine
    golden: list[GoldenInput]


def say_what_changed(checkpoint: Checkpoint, methods: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Say which tensors that were stored in blocks did not keep the blocks they had. `methods`: by tensor name."""
    stored = Counter(
        kind
        for name, method in methods.items()
        if (kind := checkpoint.stored_type(name)) not in FLOATS and method not in KEPT
    )
    for kind, count in sorted(stored.items()):
        tensors = "1 tensor of type {} is" if count == 1 else f"{count} tensors of type {{}} are"
        tell(f"{tensors.format(kind)} dequantized and quantized anew.")


class Watched(Mapping[str, Weight]):
    """Weights that tell how many of them the graph has taken."""

    def __init__(self, weights: Mapping[str, Weight], progress: Progress, text: str) -> None:
        self._weights, self._progress, self._text = weights, progress, text
        self.methods: dict[str, str] = {}  # of the weights taken

    def __getitem__(self, name: str) -> Weight:
        self._progress(len(self.methods), len(self._weights), self._text)
        weight = self._weights[name]
        self.methods[name] = weight.method if isinstance(weight, QTensor | RowsTensor) else "float"
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
