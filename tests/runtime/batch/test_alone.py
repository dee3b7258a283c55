"""An answer that is alone again after others has the drafts, and the figures of them, that it had before."""

from __future__ import annotations

import edge
from edge.bundle import Bundle
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.batch.batch import Batch
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.kernels.library import Kernels
from edge.runtime.model import Model


def test_figures_of_drafts_go_on_where_an_answer_is_alone_again(pristine_tiny_bundle: Bundle, library: Kernels) -> None:
    model = edge.load(pristine_tiny_bundle.root, speculate="lookup", context=256, kind=Model)
    engine = model.engine
    batch = Batch(
        engine, model.text, capacity=256, width=2, chunk=32, fair=True, speculation=model.speculation
    )  # fmt: skip

    def made(prompt: str, count: int) -> BatchAnswer:
        options = model.settled(GenerateOptions(max_tokens=count, temperature=0), raw=True)
        return BatchAnswer(0, model.asked(prompt, raw=True), options, engine, model.text)

    first, second = made("The moon the moon the moon", 60), made("A train", 4)
    batch.add(first)
    while len(first.tokens) < 40:
        batch.step()
    figures = first.timings.speculation
    assert figures is not None
    before = figures.steps
    batch.add(second)
    ended: list[BatchAnswer] = []
    while not batch.idle:
        ended += batch.step()
    batch.close()
    assert ended == [second, first] and before > 2 * len(second.tokens)
    assert first.timings.speculation is figures and figures.steps > before
    assert (
        first.tokens == model.generate("The moon the moon the moon", raw=True, max_tokens=60, temperature=0).token_ids
    )
