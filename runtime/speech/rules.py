"""Rules of a transcription: which tokens may come next."""

from __future__ import annotations

from edge.manifest import Generation, Speech
from edge.runtime.decode import rules
from edge.runtime.decode.rules.rule import Processor, RuleSettings


def speech_rules(speech: Speech, end: int, begin: int, last: int | None = None) -> list[Processor]:
    """The rules for texts whose first `begin` tokens are the prompt and that `end` ends, in the order they apply.

    last: the timestamp at which the sound ends, counted from 0.00; None: the model knows.
    """
    bundle = Generation(suppress=speech.suppress, begin_suppress=speech.begin_suppress)
    return rules.make_processors(RuleSettings(None, bundle, ends=[end], begin=begin, speech=speech, last=last))
