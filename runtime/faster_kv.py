"""Which KV cache makes an answer behind a long prompt the faster one: floats, or bytes.

A step of one token reads the whole cache, so that bytes gain with every token that is in it; steps of several tokens
lose, as onnxruntime's attention over bytes takes each of them by itself. What both cost is measured by `edge profile`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from edge.bundle import Bundle
from edge.home import curves_dir
from edge.manifest import FLOAT32, INT8
from edge.runtime.loading import kv_dtypes
from edge.runtime.providers import cpu

SHORT = 128  # tokens of a prompt behind which bytes gain nowhere, so that nothing is looked up
SHORT_ANSWER = 64  # tokens of an answer that would win back what opening the graph over bytes takes longer
PLAIN, DRAFTED = (1,), (1, 4, 8)  # tokens of the steps that stand for an answer's
LEAST_GAIN = 1.05  # in the mean over those: the two curves were measured one after the other
# Tokens of a prompt from which on bytes are taken where there is no curve and nothing drafts: behind 512 a token took
# 0.85 and 0.93 of its time on the x86-64 processors that were measured. Of others, and of drafts, too little is known.
LONG = 512
MEASURED = ("x86_64", "AMD64")


@dataclass(frozen=True)
class Once:
    """The one answer that a process is there for: how many tokens stand before it, about, and how many it may have."""

    prompt: int
    answer: int


def may_choose(bundle: Bundle) -> bool:
    """Whether there is a choice: a bundle with a wide form, which reads floats and is there for long prompts, keeps
    these."""
    return INT8 in kv_dtypes(bundle) and bundle.manifest.wide is None


def faster_kv(bundle: Bundle, once: Once, *, drafts: bool, threads: int | None = None) -> str:
    """What the KV cache is best kept in for this answer: float32 or int8.

    This device's cost curves decide; without them the length of the prompt.

    Args:
        drafts: whether some are verified, in steps of several tokens.
        threads: that will compute; default: as many as there would be.
    """
    if once.prompt < SHORT or once.answer < SHORT_ANSWER or not may_choose(bundle):
        return FLOAT32
    if curves_dir().is_dir():  # importing what reads them takes 13 ms
        from edge.runtime.profile.curve import load_both

        # What is wrong with them the engine says, when it asks.
        curves = load_both(bundle, provider="cpu", threads=threads or cpu.default_threads())
        if {FLOAT32, INT8} <= curves.keys():
            floats, ints = curves[FLOAT32], curves[INT8]
            sizes = DRAFTED if drafts else PLAIN
            gains = [floats.ms(size, once.prompt) / ints.ms(size, once.prompt) for size in sizes]
            return INT8 if sum(gains) / len(gains) >= LEAST_GAIN else FLOAT32
    return INT8 if not drafts and once.prompt >= LONG and platform.machine() in MEASURED else FLOAT32
