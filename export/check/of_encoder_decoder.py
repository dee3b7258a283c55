"""The check that ends an encoder-decoder's export: the written graphs next to Torch, on a few inputs and their answers.

Torch answers each input greedily, and both are asked for the logits of that answer. With little effort T5's graphs are
compared with a reference in numpy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.progress import Progress
from edge.export.reference.in_torch import RecordedLogits, load_torch
from edge.export.reference.t5_in_numpy import T5Reference
from edge.runtime.check.perplexity import Agreement, compare, pieces
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

ANSWER = 32  # tokens of an answer, at most

Input = NDArray[Any]  # token ids [T] int64, or samples [N] float32
Sources = dict[bytes, Input]  # inputs by the bytes of their answers' token ids

SENTENCES = [  # written for this check
    "A man rides a bicycle along the river.",
    "Two children are playing with a ball in front of a red house.",
    "The lighthouse at the end of the harbour wall was built in 1874, after three boats had been lost in one night.",
    "She opened the window, looked at the sky, and decided to take the umbrella after all.",
    "Nobody in the village knew who had repaired the old clock.",
    "The train to the north leaves at twenty to ten from platform four.",
]


@dataclass(frozen=True)
class RecordedAnswers:
    """Answers to some inputs, and the logits of the model in float32. own: True if the model gave these answers; for
    others a perplexity means nothing."""

    sources: Sources
    logits: RecordedLogits
    own: bool


def reference(
    checkpoint: Checkpoint,
    inputs: Sequence[Input],
    features: Callable[[Input], Any],
    start: Sequence[int],
    progress: Progress | None = None,
) -> RecordedAnswers:
    """Torch's answers. The Torch model is freed before this returns.

    features: what the Torch model is given for an input, as keyword arguments. start: the answer's first tokens.
    """
    import torch

    model = load_torch(checkpoint, progress=progress)
    sources: Sources = {}
    answers = []
    for done, source in enumerate(inputs):
        if progress is not None:
            progress(done, len(inputs), "running Torch on the check's inputs")
        given = features(source)
        with torch.no_grad():
            encoded = model.get_encoder()(**given)
            answer = list(start)
            for _ in range(ANSWER):
                ids = torch.tensor([answer])
                out = model(encoder_outputs=encoded, **_decoder_inputs(ids), use_cache=False)
                answer.append(int(out.logits[0, -1].argmax()))
                if answer[-1] == model.config.eos_token_id:
                    break
        tokens = np.array(answer, np.int64)
        if tokens.tobytes() not in sources:  # an answer stands for its input
            sources[tokens.tobytes()] = source
            answers.append(tokens)
    recorded = RecordedLogits(_TorchLogits(model, sources, features), answers)
    del model
    gc.collect()  # a model's modules point at each other
    release_freed()
    return RecordedAnswers(sources, recorded, own=True)


def reference_in_numpy(
    checkpoint: Checkpoint, inputs: Sequence[Input], start: Sequence[int], progress: Progress | None = None
) -> RecordedAnswers:
    """The logits of T5's reference in numpy. An answer's tokens are its input's, which any model can be given."""
    answers = [np.array([*start, *source[:ANSWER]], np.int64) for source in inputs]
    sources = {answer.tobytes(): source for answer, source in zip(answers, inputs, strict=True)}
    model = T5Reference(checkpoint, progress)
    made = dict(zip(sources, model.logits(list(inputs), answers), strict=True))
    return RecordedAnswers(sources, RecordedLogits(_NumpyLogits(model.vocab_size, made), answers), own=False)


def check(engine: Engine, recorded: RecordedAnswers, encode: Callable[[Input], KVCache]) -> Agreement:
    """Compare the written graphs with the recorded logits. `encode` returns a cache for an input."""
    return compare(recorded.logits, _EngineLogits(engine, recorded.sources, encode), recorded.logits.texts)


def _decoder_inputs(ids: Any) -> dict[str, Any]:
    """Decoder tokens [1, S], all of which count: T5Gemma would hide those that have the padding token's id, and a model
    may say that one."""
    import torch

    return {"decoder_input_ids": ids, "decoder_attention_mask": torch.ones_like(ids)}


class _TorchLogits:
    def __init__(self, model: Any, sources: Sources, features: Callable[[Input], Any]) -> None:
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._model, self._sources, self._features = model, sources, features

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        import torch

        given = self._features(self._sources[tokens.tobytes()])
        with torch.no_grad():
            out = self._model(**given, **_decoder_inputs(torch.from_numpy(tokens)[None]), use_cache=False)
        yield out.logits[0].numpy()


@dataclass(frozen=True)
class _NumpyLogits:
    """The logits of answers by the bytes of their tokens."""

    vocab_size: int
    by_answer: dict[bytes, NDArray[np.float32]]

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        yield self.by_answer[tokens.tobytes()]


class _EngineLogits:
    def __init__(self, engine: Engine, sources: Sources, encode: Callable[[Input], KVCache]) -> None:
        self.vocab_size = engine.bundle.manifest.dims.vocab_size
        self._engine, self._sources, self._encode = engine, sources, encode

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        cache = self._encode(self._sources[tokens.tobytes()])
        for piece in pieces(tokens):
            yield self._engine.step(cache, piece, np.arange(len(piece)))
