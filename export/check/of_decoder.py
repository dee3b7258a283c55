"""The check at the end of an export: the written graphs compared with the model in float32, on a short text."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edge.export.facts.progress import Progress
from edge.export.reference.in_torch import RecordedLogits
from edge.runtime.check.perplexity import CHUNK, Agreement, EngineLogits, compare, windows
from edge.runtime.engine.engine import Engine
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

WINDOW = 512  # tokens of the text that are used: their Torch logits take 100 MB of disk at a 49k vocabulary
QUICK_WINDOW = 64  # that the reference in numpy reads: enough to tell a broken graph from a sound one

# Written for this check; no calibration text holds it.
TEXT = """\
The lighthouse at the end of the harbour wall was built in 1874, after three fishing boats had been lost on the same
winter night. It is not a tall tower, only nineteen metres from the rocks to the lamp, but it stands so far out that
its light can be seen from the open sea long before the hills behind the town appear. For almost a hundred years a
keeper lived there with his family. The children rowed to school when the water was calm, and stayed at home when it
was not. In the kitchen, which was round like every other room, the cupboards had been made by a carpenter who
normally built boats, and he was the only man in the district who knew how to bend a plank without breaking it.

The lamp itself needed more care than the family. Every evening the keeper climbed ninety-one steps, lit the burner,
and wound up the clockwork that turned the heavy lens. If he forgot to wind it, the light stood still, and a light
that stands still can be mistaken for a house. The lens floated in a basin of mercury, so that a child could push two
tonnes of glass and brass with one finger. Nobody knew at the time that the vapour was poisonous. When electricity
came in 1961, the clockwork was replaced by a motor that was no larger than a loaf of bread, and the keeper was asked
to find another job. He moved to the town, opened a small shop for radio sets, and never spoke about the sea again.

Today the harbour is used by sailing boats and by a ferry that leaves twice a day. The captain of the ferry says that
she does not need the lighthouse, because her position is shown on a screen with an error of less than two metres.
Still, she looks for it. "A screen can tell you where you are," she explained to a reporter last summer, "but it
cannot tell you whether the screen is right. If the tower is where I expect it, then I believe the rest." Engineers
would call this an independent measurement, and they would agree with her.

A programmer who visits the museum may think of something else. Suppose that a list of ships is kept in a table, with
the name, the length and the date of arrival:

    ships = [("Aurora", 24, "1902-03-11"), ("Heron", 18, "1902-03-12")]
    longest = max(ships, key=lambda ship: ship[1])

The second line finds the longest ship. It is short because the language already knows how to compare numbers. The
keeper had to do the same with a pencil: his books, which are shown behind glass on the first floor, hold more than
sixty thousand entries, and at the end of each month he added up the tonnage by hand. Not a single sum is wrong.
"""


def check_text(checkpoint: Checkpoint, context: int, window: int = WINDOW) -> list[NDArray[np.int64]]:
    """The first tokens of the check's text, `window` at most: one text [S]."""
    ids = Tokenizer.from_str(checkpoint.tokenizer.json).encode(TEXT, add_special_tokens=False).ids
    size = min(window, context)
    return windows(ids, checkpoint.tokenizer.tokens, window=size, limit=size)[:1]


def reference(checkpoint: Checkpoint, context: int, progress: Progress | None = None) -> RecordedLogits:
    """The logits of the check's text by Torch, layer by layer."""
    from edge.export.reference.streamed import StreamedLogits

    recorded = RecordedLogits(StreamedLogits(checkpoint, progress), check_text(checkpoint, context))
    gc.collect()  # a model's modules point at each other
    release_freed()
    return recorded


def check(engine: Engine, recorded: RecordedLogits, *, prefill: bool = False, chunk: int = CHUNK) -> Agreement:
    """Compare the bundle's logits with those recorded from Torch, in steps of `chunk` tokens. prefill: those of the
    int8 prefill graph."""
    source = EngineLogits(engine, max(map(len, recorded.texts)), prefill=prefill, chunk=chunk)
    return compare(recorded, source, recorded.texts)
