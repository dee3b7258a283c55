"""T5Gemma 2, whose checkpoints see as well: its text part, and what is refused of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_decoder_configs import CONFIGS, VOCABULARY, model_of
from encoder_decoder_harness import Exported
from graph_harness import TinyCheckpoint, float_matrices, relative_error
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from edge.errors import CheckpointError, ExportError
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.step import configuration
from edge.export.reference.in_torch import load_torch


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A whole model as transformers writes it, which sees."""
    AutoModelForSeq2SeqLM.from_config(copy.deepcopy(CONFIGS["t5gemma2"])).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def changed(directory: Path, half: tuple[str, ...], **fields: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    part = config
    for name in half:
        part = part[name]
    part.update(fields)
    (directory / "config.json").write_text(json.dumps(config))


def test_the_text_part_is_read_and_a_line_says_so(directory: Path) -> None:
    stored = load_file(directory / "model.safetensors")
    assert any("vision_tower" in name for name in stored), "published names, which lack text_model"
    assert "model.encoder.layers.0.self_attn.q_proj.weight" in stored
    checkpoint = open_checkpoint(str(directory))
    assert any("its text part alone is exported" in note for note in checkpoint.notes)
    model = load_torch(checkpoint)
    assert not any("vision" in name or "projector" in name for name, _ in model.named_parameters())
    own = "model.encoder.text_model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(model.get_parameter(own), stored[own.replace("text_model.", "")])


def test_a_layer_too_many_is_refused(directory: Path) -> None:
    stored = load_file(directory / "model.safetensors")
    stored["model.encoder.layers.2.self_attn.q_proj.weight"] = torch.zeros(3)
    save_file(stored, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds the tensor 'model.encoder.text_model.layers.2.*no place"):
        open_checkpoint(str(directory))


@pytest.mark.parametrize("half", [("decoder",), ("encoder", "text_config")])
def test_a_newer_variant_is_refused_by_the_field_of_a_half(directory: Path, half: tuple[str, ...]) -> None:
    changed(directory, half, num_experts=4)
    with pytest.raises(CheckpointError, match="sets num_experts to 4, which changes what a model computes"):
        open_checkpoint(str(directory))


def test_bounded_scores_are_refused(tmp_path: Path) -> None:
    """transformers reads the field and computes without it."""
    model = model_of("t5gemma2")
    model.config.decoder.attn_logit_softcapping = 50.0
    with pytest.raises(ExportError, match=r"sets attn_logit_softcapping to 50\.0"):
        Exported(tmp_path / "x.edge", model, float_matrices(TinyCheckpoint(model)))


def test_the_token_that_ends_an_image_has_a_vector_of_its_own(tmp_path: Path) -> None:
    model = model_of("t5gemma2")
    exported, end = Exported(tmp_path / "x.edge", model, float_matrices(TinyCheckpoint(model))), VOCABULARY - 2
    assert configuration(model.config.to_dict()).eoi_token_index == end
    source, target = np.array([5, end, 7]), np.array([2, end, 9])
    found = exported.logits(source, target, [3])
    assert relative_error(found, exported.torch_logits(source, target)) < 1e-4
    with torch.no_grad():
        model.model.encoder.text_model.embed_tokens.eoi_embedding.zero_()
    assert relative_error(found, exported.torch_logits(source, target)) > 1e-2
