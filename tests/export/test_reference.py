"""The reference in numpy; that it says what transformers says stands beside the graphs' parity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from decoder_configs import BASE, checkpoint_of
from transformers.activations import ACT2FN

from edge.errors import ExportError
from edge.export.graph.blocks import ACTIVATIONS as IN_GRAPHS
from edge.export.reference import ACTIVATIONS, Reference


def reference(**changes: Any) -> Reference:
    checkpoint = checkpoint_of()
    checkpoint.config |= changes
    return Reference(checkpoint, 64)


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_it_has_the_activations_that_graphs_have(name: str) -> None:
    x = np.linspace(-120, 120, 4001, dtype=np.float32)
    expected = ACT2FN[name](torch.from_numpy(x)).numpy()
    assert np.allclose(ACTIVATIONS[name](x), expected, rtol=1e-5, atol=1e-5)


def test_it_tells_what_every_matrix_reads() -> None:
    checkpoint, seen = checkpoint_of(), dict[str, Any]()

    def watch(name: str, x: np.ndarray, weight: np.ndarray) -> None:
        seen[name] = x.shape, weight.shape

    Reference(checkpoint, 64).hidden(np.zeros((2, 5), np.int64), watch)
    matrices = {n: checkpoint.shape(n) for n in checkpoint.names() if ".layers." in n and len(checkpoint.shape(n)) == 2}
    assert seen == {name: ((2, 5, shape[1]), shape) for name, shape in matrices.items()}


def test_a_text_says_the_same_alone_and_among_others() -> None:
    texts = np.random.default_rng(0).integers(0, BASE["vocab_size"], (3, 9))
    together, alone = reference().hidden(texts), reference().hidden(texts[1:2])
    assert np.allclose(together[1], alone[0], atol=1e-5)


def test_another_activation_is_refused() -> None:
    with pytest.raises(ExportError, match="activation 'mish' is not known"):
        reference(hidden_act="mish")


def test_a_family_that_is_not_like_llama_is_refused() -> None:
    with pytest.raises(ExportError, match="no reference in numpy for models of the family t5"):
        reference(model_type="t5")
