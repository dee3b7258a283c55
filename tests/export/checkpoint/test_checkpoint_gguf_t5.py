"""A T5 in a GGUF file is the model that transformers has, and the reference in numpy says what that says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_t5 import tensors_of, tiny_t5, write_t5
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention
from unigram_tokenizers import LINES, trained_model

from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.t5_distances import buckets
from edge.export.reference.in_torch import load_torch
from edge.export.reference.t5_in_numpy import T5Reference

FORMS: list[dict[str, Any]] = [
    {},
    {"feed_forward_proj": "relu", "tie_word_embeddings": True},  # T5 1.0
]


@pytest.mark.parametrize("form", FORMS, ids=["gated", "plain, tied"])
def test_a_float_file_gives_back_every_tensor_and_the_same_logits(tmp_path: Path, form: dict[str, Any]) -> None:
    model = tiny_t5(**form)
    checkpoint = open_checkpoint(str(write_t5(tmp_path / "m.gguf", model)))
    expected = tensors_of(model)
    assert set(checkpoint.names()) == set(expected)
    assert all(np.array_equal(checkpoint.read(name), values) for name, values in expected.items())
    sources, answers = ([np.arange(3, 3 + n) % 90 for n in sizes] for sizes in ((40, 7), (5, 30)))
    for again in (model, load_torch(checkpoint)):
        for source, answer, made in zip(
            sources, answers, T5Reference(checkpoint).logits(sources, answers), strict=True
        ):
            with torch.no_grad():
                ids = {"input_ids": torch.from_numpy(source)[None], "decoder_input_ids": torch.from_numpy(answer)[None]}
                logits = again(**ids).logits[0].numpy()
            assert logits.std() > 0.05  # else nearly anything would pass
            assert np.abs(made - logits).max() <= 1e-4 * np.abs(logits).max()


@pytest.mark.parametrize(("count", "reach"), [(32, 128), (32, 64), (16, 20), (8, 100)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_distances_are_in_the_buckets_that_transformers_sorts_them_into(
    count: int, reach: int, bidirectional: bool
) -> None:
    config = T5Config(relative_attention_num_buckets=count, relative_attention_max_distance=reach)
    distances = np.arange(-5000, 5000)
    expected = T5Attention._relative_position_bucket(torch.from_numpy(distances), bidirectional, count, reach)
    assert np.array_equal(buckets(config, distances, bidirectional=bidirectional), expected.numpy())


def test_its_vocabulary_encodes_as_sentencepiece_does(tmp_path: Path) -> None:
    files = open_checkpoint(str(write_t5(tmp_path / "m.gguf", tiny_t5()))).tokenizer
    tokenizer = Tokenizer.from_str(files.json)
    assert files.tokens.eos == [1] and files.tokens.pad == 0 and not files.tokens.add_bos
    expected = SentencePieceProcessor(model_proto=trained_model())
    for line in [*LINES, "  two   spaces ", "ﬁ ½"]:
        assert tokenizer.encode(line).ids == [*expected.encode(line), 1]
    assert tokenizer.decode(tokenizer.encode(LINES[1]).ids) == LINES[1]


def test_a_layer_that_is_counted_and_missing_is_refused(tmp_path: Path) -> None:
    model = tiny_t5()
    model.config.num_decoder_layers += 1
    with pytest.raises(CheckpointError, match="counts 4 layers of its decoder and holds tensors of 3;"):
        open_checkpoint(str(write_t5(tmp_path / "m.gguf", model)))
