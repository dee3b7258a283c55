"""The library of kernels, where it is installed and this processor can run it, and a bundle of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from encoder_decoder_harness import tiny_model
from transformers import T5Config
from unigram_tokenizers import save_tokenizer

import edge
from edge.bundle import Bundle
from edge.runtime.kernels.library import Kernels


@pytest.fixture(scope="session")
def kernels(library: Kernels) -> Kernels:
    return library


@pytest.fixture(params=[1, 2], ids=["one panel", "two panels"])
def tiles(request: pytest.FixtureRequest, kernels: Kernels) -> Iterator[int]:
    """The panels of tiles of many rows, where a form has both kinds; else it takes what is faster here."""
    if not hasattr(kernels.calls, "edge_panels"):
        pytest.skip("the library is of a version with one kind of tiles")
    kernels.calls.edge_panels(request.param)
    yield request.param
    kernels.calls.edge_panels(0)


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A gated T5 of two layers in int8."""
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = save_tokenizer(folder / "tiny-t5", ["<pad>", "</s>", "<unk>"], "$A </s>")
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    model = tiny_model(T5Config(vocab_size=len(tokenizer), feed_forward_proj="gated-gelu", **sizes))
    model.save_pretrained(folder / "tiny-t5")
    return edge.export(folder / "tiny-t5", folder / "t5.edge", weights="int8", check=False)


@pytest.fixture(params=["tiny_bundle", "t5"])
def either(request: pytest.FixtureRequest) -> Bundle:
    """A decoder, and an encoder-decoder."""
    found: Bundle = request.getfixturevalue(request.param)
    return found
