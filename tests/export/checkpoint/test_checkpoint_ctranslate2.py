"""A CTranslate2 Whisper directory gives the tensors, configuration and tokenizer of transformers' Whisper."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, WhisperForConditionalGeneration
from whisper_files import IDS, LANGUAGES, TOKENS, container, tiny_whisper, write_ctranslate2

from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.checkpoint import Checkpoint
from edge.export.manifest.speech_format import speech


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ctranslate2(tmp_path_factory.mktemp("whole") / "tiny", tiny_whisper())


@pytest.fixture
def root(tmp_path: Path, whole: Path) -> Path:
    """A whole directory that the test may harm."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


def rebuilt(checkpoint: Checkpoint) -> WhisperForConditionalGeneration:
    """The Torch model of the checkpoint's own configuration with the checkpoint's tensors."""
    model = WhisperForConditionalGeneration(AutoConfig.for_model(**checkpoint.config)).eval()
    tensors = {name: torch.from_numpy(checkpoint.read(name).copy()) for name in checkpoint.names()}
    assert list(tensors) == [name for name, _ in model.named_parameters()]
    loaded = model.load_state_dict(tensors, strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["proj_out.weight"], [])
    return model


def logits(model: WhisperForConditionalGeneration) -> np.ndarray:
    features = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[IDS["<|startoftranscript|>"], 5, 260, 7]])
    with torch.no_grad():
        return np.asarray(model(input_features=features, decoder_input_ids=ids).logits)


def test_float32_gives_the_model_itself(tmp_path: Path) -> None:
    model = tiny_whisper()
    checkpoint = open_checkpoint(str(write_ctranslate2(tmp_path, model, quantization="float32")))
    assert np.array_equal(logits(rebuilt(checkpoint)), logits(model))


@pytest.mark.parametrize(
    ("quantization", "stored", "tolerance"),
    [("float16", "F16", 2**-11), ("int8", "I8", 0.5 / 127), ("int16", "I16", 2 / 2**10)],
)
def test_each_tensor_is_read_within_the_rounding_of_its_type(
    tmp_path: Path, quantization: str, stored: str, tolerance: float
) -> None:
    model = tiny_whisper()
    checkpoint = open_checkpoint(str(write_ctranslate2(tmp_path, model, quantization=quantization)))
    assert checkpoint.stored_type("model.decoder.layers.2.encoder_attn.v_proj.weight") == stored
    for name, parameter in model.named_parameters():
        values = checkpoint.read(name)
        assert checkpoint.shape(name) == values.shape == parameter.shape
        assert values.dtype == np.float32
        assert checkpoint.blocks(name) is None
        error = np.abs(values - parameter.detach().numpy()).max()
        assert error <= 1.001 * tolerance * parameter.abs().max().item(), name


def test_the_configuration_is_the_models_own(whole: Path) -> None:
    checkpoint = open_checkpoint(str(whole))
    own = tiny_whisper().config.to_dict()
    different = {key for key in own if checkpoint.config.get(key) != own[key]}
    assert different <= {"dtype", "_name_or_path", "architectures"}
    assert (checkpoint.name, checkpoint.kind, checkpoint.licence) == ("tiny", "directory", None)


def test_generation_settings_are_transformers_own(whole: Path) -> None:
    checkpoint = open_checkpoint(str(whole))
    generation, spoken = checkpoint.generation, speech(checkpoint)
    assert spoken.languages == {token.strip("<|>"): IDS[token] for token in LANGUAGES}
    assert spoken.tasks == {name: IDS[f"<|{name}|>"] for name in ("transcribe", "translate")}
    assert spoken.no_timestamps == IDS["<|notimestamps|>"]
    assert generation["suppress_tokens"] == [1, 2, IDS["<|startoftranscript|>"]]
    assert generation["begin_suppress_tokens"] == [3, IDS["<|endoftext|>"]]
    assert generation["alignment_heads"] == [[1, 0]]
    assert generation["is_multilingual"] is True


def test_the_tokenizer_is_built_from_the_list_of_tokens(root: Path) -> None:
    (root / "tokenizer.json").write_text("not read where the list is there")
    files = open_checkpoint(str(root)).tokenizer
    tokenizer = Tokenizer.from_str(files.json)
    assert [tokenizer.id_to_token(i) for i in range(len(TOKENS))] == TOKENS
    assert tokenizer.encode("hell, the world", add_special_tokens=False).tokens == [
        "hell", ",", "Ġthe", "Ġwor", "l", "d",
    ]  # fmt: skip
    timed = tokenizer.encode("<|0.00|> hé<|1.20|>", add_special_tokens=False).ids
    assert (timed[0], timed[-1]) == (IDS["<|0.00|>"], IDS["<|1.20|>"])
    assert tokenizer.decode(timed) == " hé"
    assert (files.tokens.eos, files.tokens.add_bos) == ([IDS["<|endoftext|>"]], False)


@pytest.mark.parametrize("form", ["vocabulary.txt", "tokenizer.json"])
def test_other_forms_of_the_tokenizer_give_the_same(root: Path, form: str) -> None:
    expected = open_checkpoint(str(root)).tokenizer
    (root / "vocabulary.json").unlink()
    text = "\n".join(TOKENS) + "\n" if form == "vocabulary.txt" else expected.json
    (root / form).write_text(text, encoding="utf-8")
    assert open_checkpoint(str(root)).tokenizer == expected


def test_heads_that_the_file_does_not_state_are_64_wide(root: Path) -> None:
    model = tiny_whisper(d_model=128, encoder_attention_heads=2, decoder_attention_heads=2)
    write_ctranslate2(root, model)
    data = (root / "model.bin").read_bytes().replace(b"/num_heads\0", b"/mum_heads\0")
    (root / "model.bin").write_bytes(data)
    assert open_checkpoint(str(root)).config["decoder_attention_heads"] == 2


def cut(root: Path) -> None:
    data = (root / "model.bin").read_bytes()
    (root / "model.bin").write_bytes(data[: len(data) * 2 // 3])


def rename(old: str, new: str) -> Callable[[Path], None]:
    def harm(root: Path) -> None:
        data = (root / "model.bin").read_bytes()
        assert old.encode() in data
        (root / "model.bin").write_bytes(data.replace(old.encode(), new.encode()))

    return harm


def reshape(name: str, rank: int) -> Callable[[Path], None]:
    """The variable's dimensions become one, or none."""

    def harm(root: Path) -> None:
        data = (root / "model.bin").read_bytes()
        at = data.index(name.encode() + b"\0") + len(name) + 1
        end = at + 1 + 4 * data[at]
        dims = struct.unpack_from(f"<{data[at]}I", data, at + 1)
        shape = struct.pack("<BI", 1, math.prod(dims)) if rank else b"\0"
        (root / "model.bin").write_bytes(data[:at] + shape + data[end:])

    return harm


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes(content.encode() if isinstance(content, str) else content) and None


def append(root: Path) -> None:
    with (root / "model.bin").open("ab") as f:
        f.write(b"more")


ONE = {"a": np.zeros(3, np.float32)}


@pytest.mark.parametrize(
    ("harm", "part"),
    [
        (cut, "model.bin is cut short at"),
        (append, "is damaged: 4 bytes follow its last variable"),
        (write("model.bin", b""), "is cut short at 0 bytes"),
        (write("model.bin", b"GGUF and more"), "is not a CTranslate2 model of the versions 4 to 6"),
        (write("model.bin", container(ONE, {}, "TransformerSpec")), "holds a TransformerSpec; .* only Whisper is read"),
        (write("model.bin", container(ONE, {}, "WhisperSpec")), "lacks the variable 'decoder/embeddings/weight'"),
        (write("model.bin", container(ONE, {"b": "c"}, "WhisperSpec")), "the alias 'b' names 'c'"),
        (rename("decoder/layer_1/ffn/linear_1/bias", "decoder/layer_1/ffn/linear_1/bios"), "linear_1/bias', which a"),
        (rename("encoder/layer_1/", "encoder/layer_9/"), "lacks the variable 'encoder/layer_1/self_attention"),
        (reshape("encoder/conv1/weight", 1), r"'encoder/conv1/weight' has the shape \[23040\], which no Whisper"),
        (reshape("encoder/layer_0/ffn/layer_norm/beta", 0), "layer_norm/beta' has .* bytes for the shape"),
        (write("config.json", "{"), "config.json is not valid JSON"),
        (write("config.json", "[" * 50_000), "config.json is not valid JSON"),
        (write("config.json", '{"suppress_ids": "all"}'), "the field 'suppress_ids' must be a list, not 'all'"),
        (lambda root: (root / "vocabulary.json").unlink(), "holds no tokenizer: neither vocabulary.json"),
        (write("vocabulary.json", "{}"), "The vocabulary in .* cannot be read: it is no list of strings"),
        (write("vocabulary.json", "[" * 50_000), "The vocabulary in .* cannot be read"),
        (write("vocabulary.json", json.dumps(TOKENS).replace('"w"', '"w!"')), "holds tokens that make no tokenizer"),
        (write("vocabulary.json", json.dumps(TOKENS[:200])), "has no token <|endoftext|>"),
        (write("vocabulary.json", json.dumps(TOKENS[:265])), "has no token <|startoftranscript|>"),
        (write("vocabulary.json", json.dumps([*TOKENS, "<|more|>"])), "they do not belong together"),
        (write("vocabulary.json", json.dumps([*TOKENS[:-1], "<|en|>"])), "names a token twice"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(root: Path, harm: Callable[[Path], None], part: str) -> None:
    harm(root)
    with pytest.raises(CheckpointError, match=part.replace("|", r"\|")) as e:
        open_checkpoint(str(root))
    assert str(e.value).endswith(".")
    assert "\n" not in str(e.value)


def test_scales_that_do_not_fit_get_a_sentence(tmp_path: Path) -> None:
    write_ctranslate2(tmp_path, tiny_whisper(), quantization="int8")
    rename("encoder/layer_0/ffn/linear_0/weight_scale", "encoder/layer_0/ffn/linear_0/weight_skale")(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match="no fitting scales for the integers of 'encoder/layer_0/ffn/linear_0"):
        checkpoint.read("model.encoder.layers.0.fc1.weight")
