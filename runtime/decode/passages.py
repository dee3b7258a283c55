"""The outputs for a text's passages, one after the other, as one output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Generator, Iterator
from typing import TYPE_CHECKING, Any

from edge.runtime.decode.answer import FinishReason, Piece, Timings
from edge.runtime.text.passages import Passages

if TYPE_CHECKING:
    from edge.runtime.decode.text2text_options import Text2TextOptions

SUMS = ("steps", "drafted", "accepted", "draft_s", "verify_s")  # of figures of drafts


def stream(
    passages: Passages,
    options: Text2TextOptions,
    begin: Callable[[str, Text2TextOptions], Iterator[Piece]],
    eos: Collection[int],
) -> Generator[Piece, None, None]:
    """Yield the pieces of the outputs for all passages, with the text between the passages.

    `options.max_tokens` counts all of them. Where an output ends for another reason than an end token, the last piece
    has that reason. begin: starts the output of a passage. eos: end tokens.
    """
    whole, left, before, cut = Timings(0), options.max_tokens, passages.gaps[0], None
    for number, text in enumerate(passages.texts, 1):
        last = number == len(passages.texts)
        given = options if left is None else dataclasses.replace(options, max_tokens=left)
        done = dataclasses.replace(whole)
        for piece in begin(text, given):
            _count(whole, done, piece.timings)
            finish, shown, before = piece.finish_reason, before + piece.text, ""
            if finish is None:
                yield Piece(shown, piece.token_id, None, whole)
                continue
            if left is not None:
                left -= whole.generated_tokens - done.generated_tokens
            cut = cut or (finish if finish != "stop" else None)
            ends = _ends(finish, piece.token_id, eos, left, last=last)
            if last and finish == "stop" and piece.token_id in eos:
                shown, ends = shown + passages.gaps[-1], cut or finish
            yield Piece(shown, piece.token_id, ends, whole)
            if ends is not None:
                return
        before = passages.gaps[number]


def _ends(
    finish: FinishReason, token: int | None, eos: Collection[int], left: int | None, *, last: bool
) -> FinishReason | None:
    """Return the reason why the whole output ends with this passage's; None: the next passage follows."""
    if last or finish == "interrupted" or (finish == "stop" and token not in eos):  # by a stop string
        return finish
    return "length" if left == 0 else None


def _count(whole: Timings, done: Timings, timings: Timings) -> None:
    """Add what one passage's output took to what those before it did: after the first token all time is decoding."""
    first = done.generated_tokens == 0
    whole.simulated, whole.together = timings.simulated, timings.together
    whole.prompt_tokens = done.prompt_tokens + timings.prompt_tokens
    whole.generated_tokens = done.generated_tokens + timings.generated_tokens
    whole.ttft_ms = timings.ttft_ms if done.ttft_ms is None else done.ttft_ms
    whole.prefill_s = done.prefill_s + timings.prefill_s
    whole.decode_s = done.decode_s + timings.decode_s + (0 if first else timings.prefill_s)
    if timings.speculation is not None and done.speculation is None:
        whole.speculation = timings.speculation
    elif timings.speculation is not None:
        sums: dict[str, Any] = {n: getattr(done.speculation, n) + getattr(timings.speculation, n) for n in SUMS}
        whole.speculation = dataclasses.replace(timings.speculation, **sums)
