"""Sizes of a run where nobody asks for others, and what nobody may ask for more of."""

from __future__ import annotations

DEFAULT_CONTEXT = 4096  # tokens, or all of a bundle's where it has fewer
MOST_BEAMS = 1000  # each has a row in every step, and room for a text of its own
PREFILL_CHUNK = 128  # prompt tokens run in one step: larger ones were no faster up to 512 tokens, and take more memory
# Prompts that are answered at a time: 16 were as fast in 8 bits and 10% faster in 4, with twice the memory.
SIDE_BY_SIDE = 8
LASTING = 8  # places of a text that its states are kept of, so that it may go back to them
