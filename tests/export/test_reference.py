"""The reference in numpy; that it says what transformers says stands beside the graphs' parity."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_configs import BASE, checkpoint_of
from transformers.activations import ACT2FN

from edge.errors import ExportError
from edge.export.facts.family import heads_of
from edge.export.graph.blocks import ACTIVATIONS as IN_GRAPHS
from edge.export.reference.in_numpy import ACTIVATIONS, Observer, Reference


def reference(**changes: Any) -> Reference:
    checkpoint = checkpoint_of()
    checkpoint.config |= changes
    return Reference(checkpoint, 64)


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_it_has_the_activations_that_graphs_have(name: str) -> None:
    x = np.linspace(-120, 120, 4001, dtype=np.float32)
    expected = ACT2FN[name](torch.from_numpy(x)).numpy()
    assert np.allclose(ACTIVATIONS[name](x), expected, rtol=1e-5, atol=1e-5)


class Seen(Observer):
    def __init__(self) -> None:
        self.shapes = dict[str, Any]()
        self.keys = list[tuple[int, ...]]()

    def product(self, name: str, x: np.ndarray, weight: np.ndarray, texts: Sequence[slice]) -> None:
        self.shapes[name] = x.shape, weight.shape, texts

    def attention(self, layer: int, key: np.ndarray, value: np.ndarray, texts: Sequence[slice]) -> None:
        assert layer == len(self.keys) and key.shape == value.shape
        self.keys.append(key.shape)


def test_it_tells_what_every_matrix_reads_and_every_layers_keys() -> None:
    checkpoint, seen = checkpoint_of(), Seen()
    Reference(checkpoint, 64).hidden([np.zeros(5, np.int64), np.zeros(3, np.int64)], seen)
    matrices = {n: checkpoint.shape(n) for n in checkpoint.names() if ".layers." in n and len(checkpoint.shape(n)) == 2}
    texts = [slice(0, 5), slice(5, 8)]
    assert seen.shapes == {name: ((8, shape[1]), shape, texts) for name, shape in matrices.items()}
    heads = heads_of(SimpleNamespace(**checkpoint.config))
    assert seen.keys == [(heads.key_value, 8, heads.dim)] * checkpoint.config["num_hidden_layers"]


def test_a_text_says_the_same_alone_and_among_others() -> None:
    random = np.random.default_rng(0)
    texts = [random.integers(0, BASE["vocab_size"], size) for size in (9, 20, 4)]
    together, (alone,) = reference().hidden(texts), reference().hidden(texts[1:2])
    assert np.allclose(together[1], alone, atol=1e-5)


def test_another_activation_is_refused() -> None:
    with pytest.raises(ExportError, match="activation 'mish' is not known"):
        reference(hidden_act="mish")


def test_a_family_that_is_not_like_llama_is_refused() -> None:
    with pytest.raises(ExportError, match="no reference in numpy for models of the family t5"):
        reference(model_type="t5")
