"""The protocol of a quantization method, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edge.export.facts.progress import Progress
from edge.export.facts.tensors import Weight

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.reference.in_numpy import Observer

# Stages that a method can do without, as they are called where they are left out.
OWN_TEXT = "text of the model's own to calibrate on"
TUNING = "the tuning of scales"
FORMATS = "a format for each matrix"


@dataclass(frozen=True)
class Options:
    """The options of a method that a user may choose. None: the method's default."""

    block_size: int | None = None
    calibration: str | None = None  # a text to measure activations on, for methods that do
    progress: Progress | None = None
    effort: str = "normal"  # quick, normal or best
    symmetric: bool = False  # without zero points
    bits: float | None = None  # a weight, on average: each matrix gets a format of its own
    perplexity: float | None = None  # relative to the float model's, for which the same is done with as few bits
    left_out: frozenset[str] = frozenset()  # stages that the memory has no room for: see `edge.export.request.memory`
    in_place: bool = False  # matrices of a GGUF file stay there, where their method keeps their blocks
    measured: Observer | None = None  # what the method would measure in a run of the reference, where that was done

    def report(self, done: int, total: int, text: str) -> None:
        if self.progress is not None:
            self.progress(done, total, text)


class Method(Protocol):
    """One way from a checkpoint to weights: the function `quantize` of a file next to this one, which `METHODS` finds.

    Its file's TRAITS: `max_kl`, the mean divergence from Torch, in nats a token, that no sound export comes near, and
    `min_top1`, the share of equal likeliest tokens; `blocks`, `symmetric` and `budget`, whether the options of these
    names apply; `encoder` and `decoder`, whether that part of an encoder-decoder can have it, and
    `embedder`, whether a model for vectors can; for the memory model
    `bits`, of a weight, `keeps`, whether floats stay floats, and `calibrated`, whether layers are run; `gguf_blocks`,
    whether graphs read a file's blocks, which no check compares.
    The file may have a function `observer`, too: see `quantize.observer`.
    """

    def __call__(self, checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
        """Return every matrix of the checkpoint (`matrices`) by its name; computed at once or on access."""
        ...
