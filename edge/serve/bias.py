"""What a request adds to the scores of tokens: of some always, of others once the answer has said them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.decode.sampling import Sampler, processed
from edge.runtime.options import number, shown
from edge.serve.fields import Fields

MOST = 1024  # tokens of a logit_bias
BIAS = number("logit_bias of a token", "a number from -100 to 100", least=-100, most=100)
PENALTIES = "presence_penalty", "frequency_penalty"


@dataclass(frozen=True)
class Bias:
    """What is added to the logits of an answer's tokens before all other rules.

    tokens: amounts by the tokens' ids. presence: is taken from each token that the answer has said. frequency: is taken
    from it once for each time. Both are those of OpenAI's protocol: a prompt's tokens do not count.
    """

    tokens: Mapping[int, float] = field(default_factory=dict)
    presence: float = 0.0
    frequency: float = 0.0

    def over(self, sampler: Sampler) -> Sampler:
        """A sampler of one answer that sees changed logits."""
        return processed([self._change], sampler, ())

    def _change(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """Change the scores [1, V] of what follows the answer so far [1, L]."""
        scores[0, [*self.tokens]] += np.array([*self.tokens.values()], np.float32)
        if self.presence or self.frequency:
            said, times = np.unique(texts[0], return_counts=True)
            scores[0, said] -= np.float32(self.presence) + np.float32(self.frequency) * times.astype(np.float32)


def read_bias(fields: Fields, tokens: int) -> Bias | None:
    """What a request adds to scores; None: nothing. tokens: of the model's vocabulary."""

    def check(value: Any) -> dict[int, float]:
        if not isinstance(value, dict) or len(value) > MOST:
            raise InputError(f"The logit_bias must be an object of at most {MOST} tokens, not {shown(value)}.")
        for name in value:
            if not (name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < tokens):
                raise InputError(f"The logit_bias has {shown(name)}, and the model's tokens are 0 to {tokens - 1}.")
        return {int(name): BIAS(amount) for name, amount in value.items()}

    found = fields.take("logit_bias", check, {})
    presence, frequency = (
        fields.take(name, number(name, "a number from -2 to 2", least=-2, most=2), 0.0) for name in PENALTIES
    )
    return Bias(found, presence, frequency) if found or presence or frequency else None
