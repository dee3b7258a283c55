"""The text of one answer as its tokens come, without stop strings and with thoughts apart, until something ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from edge.runtime.decode.thoughts import parted
from edge.runtime.text.tokenizer import StopStrings

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Ends, FinishReason
    from edge.runtime.text.thinking import Block
    from edge.runtime.text.tokenizer import Text


class Said(NamedTuple):
    """The text and the thoughts that a token adds (thoughts is None where it is not one of them), and the reason that
    ends the answer, if it does."""

    text: str
    thoughts: str | None
    finish: FinishReason | None


class AnswerText:
    """Turns the tokens of an answer, pushed one by one, into text until `ends` end it. block: the thoughts that the
    answer may begin with."""

    def __init__(self, text: Text, ends: Ends, block: Block | None) -> None:
        self._eos, self._ends = text.eos, ends
        self._detokenizer, self._stops = text.detokenizer(), StopStrings(ends.stop)
        self._thoughts = None if block is None else parted(block, text)
        self._count = 0  # of tokens

    def push(self, token: int) -> Said:
        """Add the next token. Text that was held back comes with the last token, but not what follows a stop string."""
        thought, said = None, self._detokenizer.push(token)
        if self._thoughts is not None:
            thought, said = self._thoughts.push(token, said)
        shown, found = self._stops.push(said)
        finish = self.end(token)
        if found:
            return Said(shown, thought, "stop")
        if finish is None:
            return Said(shown, thought, None)
        rest = self.flush()
        return Said(shown + rest.text, _joined(thought, rest.thoughts), finish)

    def end(self, token: int) -> FinishReason | None:
        """Count a token, and return the reason if it ends the answer, whatever its text is."""
        self._count += 1
        if token in self._eos if self._thoughts is None else self._thoughts.ends(token):
            return "stop"
        return self._ends.reached(self._count, 0 if self._thoughts is None else self._thoughts.tokens)

    def flush(self) -> Said:
        """Return the text that was held back, after the last token."""
        thought, said = None, self._detokenizer.flush()
        if self._thoughts is not None:
            thought, said = self._thoughts.push(None, said)
            more, held_back = self._thoughts.flush()
            thought, said = _joined(thought, more), said + held_back
        shown, found = self._stops.push(said)
        return Said(shown if found else shown + self._stops.flush(), thought, "interrupted")


def _joined(thought: str | None, more: str | None) -> str | None:
    return thought if more is None else (thought or "") + more
