"""Which KV cache makes an answer behind a long prompt the faster one: floats, or bytes.

A step of one token reads the whole cache, so that bytes gain with every token that is in it; steps of several tokens
lose, as onnxruntime's attention over bytes takes each of them by itself. What both cost is measured by `edge profile`.
"""

from __future__ import annotations

import logging
import platform

from edge.bundle import Bundle
from edge.home import curves_dir
from edge.manifest import FLOAT32, INT8, KV8
from edge.runtime.providers import cpu

SHORT = 128  # tokens of a prompt behind which bytes gain nowhere, so that nothing is looked up
SHORT_ANSWER = 64  # most tokens of an answer that does not win back what opening the graph over bytes takes longer
# Tokens from which on bytes are the faster without drafts and with them, where nothing was measured: on x86-64
# processors of two makers a token behind 512 took 0.8 and 0.93 of its time. Of other processors nothing is known.
LONG, LONG_DRAFTED, KNOWN = 512, 1024, ("x86_64", "AMD64")
PLAIN, DRAFTED = (1,), (1, 4, 8)  # tokens of the steps that stand for an answer's
LEAST_GAIN = 1.05  # in the mean over those: the two curves were measured one after the other


def faster_kv(bundle: Bundle, prompt: int, *, drafts: bool, threads: int | None = None) -> str:
    """What the KV cache is best kept in behind about `prompt` tokens: float32 or int8.

    This device's cost curves decide; without them the length of the prompt. A bundle with a wide form, which reads
    floats and is there for long prompts, keeps these.

    Args:
        threads: that will compute; default: as many as there would be.
    """
    graphs = {graph.role for graph in bundle.manifest.graphs}
    if prompt < SHORT or KV8 not in graphs or bundle.manifest.wide is not None:
        return FLOAT32
    if curves_dir().is_dir():  # importing what reads them takes 13 ms
        from edge.runtime.profile.curve import load

        say = logging.getLogger(__name__).warning
        count = threads or cpu.default_threads()
        floats, ints = (load(bundle, provider="cpu", threads=count, say=say, kv=kv) for kv in (FLOAT32, INT8))
        if floats is not None and ints is not None:
            gains = [floats.ms(size, prompt) / ints.ms(size, prompt) for size in (DRAFTED if drafts else PLAIN)]
            return INT8 if sum(gains) / len(gains) >= LEAST_GAIN else FLOAT32
    return INT8 if prompt >= (LONG_DRAFTED if drafts else LONG) and platform.machine() in KNOWN else FLOAT32
