"""The sampling settings of an answer, in words for a person."""

from __future__ import annotations

from edge.manifest import Generation
from edge.runtime.decode.sampling import SamplingOptions


def described(options: SamplingOptions) -> str:
    """A sentence on what settled options (`Model.settled`) choose by; empty where that is the likeliest token alone."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    drawn = bool(options.temperature)
    found = Generation(do_sample=drawn, **given).sampling
    if drawn:
        return f"Answers are drawn: {found}, seed {options.seed}."
    return f"Answers are greedy: {found}." if found else ""
