"""A model directory gives its tensors, configuration and tokenizer, and a sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from gguf_files import byte_vocabulary, tiny_model
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.checkpoint.model_config import auto_class


def write_tokenizer(root: Path, *, bos: bool = False, settings: dict[str, Any] | None = None) -> None:
    tokens, _, merges = byte_vocabulary()
    bpe = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split()) for m in merges])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in tokens[:2]])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "tokenizer_config.json").write_text(json.dumps(settings or {}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "tiny"
    tiny_model("llama").save_pretrained(root)
    write_tokenizer(root, settings={"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}})
    return root


@pytest.fixture
def root(tmp_path: Path, whole: Path) -> Path:
    """A whole model directory that the test may harm."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def reads_as(root: Path, model: torch.nn.Module, tolerance: float = 0.0) -> bool:
    checkpoint = open_checkpoint(str(root))
    expected = {name: p.detach().float().numpy() for name, p in model.named_parameters()}
    assert set(checkpoint.names()) == set(expected)
    for name, values in expected.items():
        assert checkpoint.shape(name) == values.shape
        assert checkpoint.blocks(name) is None
        assert checkpoint.read(name).dtype == np.float32
    return all(np.abs(checkpoint.read(name) - values).max() <= tolerance for name, values in expected.items())


def test_safetensors_are_read(root: Path) -> None:
    assert reads_as(root, tiny_model("llama"))
    checkpoint = open_checkpoint(str(root))
    assert (checkpoint.name, checkpoint.kind, checkpoint.licence) == ("tiny", "directory", None)
    assert checkpoint.stored_type("model.norm.weight") == "F32"


def test_floats_are_read_whatever_quantizer_a_configuration_still_names(root: Path) -> None:
    """As where somebody dequantized a model and kept its config.json."""
    edit(root / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert reads_as(root, tiny_model("llama"))


def test_sharded_safetensors_are_read(tmp_path: Path) -> None:
    tiny_model("qwen2").save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert reads_as(tmp_path, tiny_model("qwen2"))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_torch_file_is_read(root: Path, zipped: bool) -> None:
    tensors = load_file(root / "model.safetensors")
    torch.save(tensors, root / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (root / "model.safetensors").unlink()
    assert reads_as(root, tiny_model("llama"))


def test_sharded_torch_files_are_read(root: Path) -> None:
    tensors = list(load_file(root / "model.safetensors").items())
    (root / "model.safetensors").unlink()
    weight_map = {}
    for i, half in enumerate((tensors[::2], tensors[1::2])):
        torch.save(dict(half), root / f"pytorch_model-{i}.bin")
        weight_map |= {name: f"pytorch_model-{i}.bin" for name, _ in half}
    (root / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert reads_as(root, tiny_model("llama"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["BF16", "F16"])
def test_half_precision_is_widened_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    model = tiny_model("llama").to(dtype)
    model.save_pretrained(tmp_path)
    assert reads_as(tmp_path, model)
    assert open_checkpoint(str(tmp_path)).stored_type("model.norm.weight") == {
        torch.bfloat16: "BF16", torch.float16: "F16",
    }[dtype]  # fmt: skip


def test_a_tied_head_is_no_tensor_even_where_the_file_holds_it(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": model.lm_head.weight.detach().clone()}, tmp_path / "model.safetensors")
    assert "lm_head.weight" not in open_checkpoint(str(tmp_path)).names()


def marian(**options: Any) -> MarianMTModel:
    """A Marian whose logits are shifted by a buffer, and whose positions are sines that its files leave out."""
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=2, vocab_size=30, max_position_embeddings=12)
    model = MarianMTModel(MarianConfig(**sizes, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=29, **options))
    model.final_logits_bias.copy_(torch.arange(30.0)[None])
    return model


def test_what_transformers_makes_itself_is_read_all_the_same(tmp_path: Path) -> None:
    model = marian()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert not any("embed_positions" in name for name in tensors)
    assert reads_as(tmp_path, model)
    assert (open_checkpoint(str(tmp_path)).read("final_logits_bias") == np.arange(30)).all()
    del tensors["final_logits_bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.read("final_logits_bias").any()
    assert checkpoint.shape("final_logits_bias") == (1, 30)


def test_a_bias_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    marian().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "final_logits_bias": torch.zeros(1, 31)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="final_logits_bias.* has shape \\[1, 31\\]"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_multimodal_gemma_gives_its_text_model(tmp_path: Path, prefix: str) -> None:
    model = tiny_model("gemma3_text", head_dim=32, sliding_window=16, tie_word_embeddings=True)
    text = model.config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    tensors = {n.replace("model.", prefix, 1): p.detach().clone() for n, p in model.named_parameters()}
    tensors["vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.zeros(4, 4)
    save_file(tensors, tmp_path / "model.safetensors")
    assert reads_as(tmp_path, model)
    assert open_checkpoint(str(tmp_path)).config["model_type"] == "gemma3_text"


def test_the_configuration_is_complete_whatever_its_age(root: Path) -> None:
    edit(root / "config.json", rope_parameters=None, rope_theta=12345.0, head_dim=None, rope_scaling=None)
    config = open_checkpoint(str(root)).config
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 12345.0}
    assert config["head_dim"] == 32
    again = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert again.config.to_dict() == {**config, "architectures": again.config.architectures}


def test_an_unknown_family_is_left_to_the_graph_builder_to_refuse(root: Path) -> None:
    edit(root / "config.json", model_type="gpt_neox")
    assert open_checkpoint(str(root)).config["model_type"] == "gpt_neox"
    edit(root / "config.json", model_type="never_heard_of")
    assert open_checkpoint(str(root)).config["model_type"] == "never_heard_of"


def test_a_classifiers_labels_are_not_named(root: Path) -> None:
    edit(root / "config.json", num_labels=1 << 40)
    assert "id2label" in open_checkpoint(str(root)).config


def test_remote_code_is_never_run(root: Path) -> None:
    (root / "modeling_evil.py").write_text("raise SystemExit('remote code ran')")
    edit(root / "config.json", auto_map={"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"})
    edit(root / "tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling_evil.T", None]})
    checkpoint = open_checkpoint(str(root))
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.tokenizer.json


def test_the_licence_is_the_model_cards(root: Path) -> None:
    (root / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\nlicense: none\n")
    assert open_checkpoint(str(root)).licence == "apache-2.0"


class TestTokenizer:
    def test_special_tokens_are_the_union_of_what_the_files_name(self, root: Path) -> None:
        edit(root / "config.json", eos_token_id=1)
        (root / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 1], "pad_token_id": 5}))
        tokens = open_checkpoint(str(root)).tokenizer.tokens
        assert (tokens.bos, tokens.eos, tokens.pad) == (0, [7, 1], 5)

    def test_an_end_token_that_only_the_tokenizer_names_counts(self, root: Path) -> None:
        edit(root / "config.json", eos_token_id=None)
        (root / "generation_config.json").unlink(missing_ok=True)
        assert open_checkpoint(str(root)).tokenizer.tokens.eos == [1]

    def test_defaults_of_transformers_are_no_special_tokens(self, root: Path) -> None:
        """LlamaConfig says eos 2 where the file is silent."""
        edit(root / "config.json", eos_token_id=None)
        assert 2 not in open_checkpoint(str(root)).tokenizer.tokens.eos

    @pytest.mark.parametrize(("bos", "flag", "expected"), [
        (False, None, False), (True, None, True), (True, False, False), (False, True, True),
    ])  # fmt: skip
    def test_bos_is_added_where_the_tokenizer_adds_it(
        self, root: Path, bos: bool, flag: bool | None, expected: bool
    ) -> None:
        settings = {"bos_token": "<|endoftext|>", **({} if flag is None else {"add_bos_token": flag})}
        write_tokenizer(root, bos=bos, settings=settings)
        assert open_checkpoint(str(root)).tokenizer.tokens.add_bos is expected

    def test_a_chat_template_may_have_any_name(self, root: Path) -> None:
        named = [{"name": ["x"], "template": "one"}, {"name": "default", "template": "two"}]
        edit(root / "tokenizer_config.json", chat_template=named)
        assert open_checkpoint(str(root)).tokenizer.chat_template == "two"

    def test_the_chat_template_may_be_a_string_a_named_list_or_a_file(self, root: Path) -> None:
        def template() -> str | None:
            return open_checkpoint(str(root)).tokenizer.chat_template

        assert template() is None
        edit(root / "tokenizer_config.json", chat_template="one")
        assert template() == "one"
        named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]
        edit(root / "tokenizer_config.json", chat_template=named)
        assert template() == "two"
        (root / "chat_template.jinja").write_text("three")
        assert template() == "three"

    def test_slow_files_are_converted(self, root: Path) -> None:
        tokens, _, merges = byte_vocabulary()
        expected = open_checkpoint(str(root)).tokenizer.json
        (root / "tokenizer.json").unlink()
        (root / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
        (root / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
        edit(root / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", eos_token="<|im_end|>")
        converted = Tokenizer.from_str(open_checkpoint(str(root)).tokenizer.json)
        for text in ("hello world", "the old world\n  x = 1", "né 你好"):
            assert converted.encode(text).ids == Tokenizer.from_str(expected).encode(text).ids

    def test_a_sentencepiece_model_is_converted(self, root: Path) -> None:
        lines = ["the old world and the new", "hello world 123 hello", "there and then, other words"] * 20
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(root / "tokenizer"), model_type="bpe", vocab_size=320,
            byte_fallback=True, normalization_rule_name="identity", minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        (root / "tokenizer.json").unlink()
        settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (root / "tokenizer_config.json").write_text(json.dumps(settings))
        files = open_checkpoint(str(root)).tokenizer
        converted = Tokenizer.from_str(files.json)
        reference = sentencepiece.SentencePieceProcessor(model_file=str(root / "tokenizer.model"))
        for text in ("hello world", "the other 42", "né 你好"):
            assert converted.encode(text, add_special_tokens=False).ids == reference.encode(text)
        assert (files.tokens.bos, files.tokens.eos) == (1, [1, 2])  # config.json says 1


class TestRefusals:
    """One sentence for whatever is wrong with a directory."""

    def refusal(self, root: Path) -> str:
        with pytest.raises(CheckpointError) as e:
            _ = open_checkpoint(str(root)).tokenizer
        message = str(e.value)
        assert "\n" not in message
        assert message.endswith((".", ")"))
        return message

    def test_no_configuration(self, root: Path) -> None:
        (root / "config.json").unlink()
        assert "holds no config.json" in self.refusal(root)

    @pytest.mark.parametrize(("content", "part"), [
        ("{not json", "is not valid JSON"), ("[1]", "must hold a JSON object"), ("{}", "names no model_type"),
    ])  # fmt: skip
    def test_a_configuration_that_is_none(self, root: Path, content: str, part: str) -> None:
        (root / "config.json").write_text(content)
        assert part in self.refusal(root)

    def test_a_configuration_with_senseless_values(self, root: Path) -> None:
        edit(root / "config.json", hidden_size="prefill")
        assert "config.json holds values that llama does not take" in self.refusal(root)

    @pytest.mark.parametrize(("changes", "part"), [
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers as 1099511627776, and the weights are of 4 layers"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings as 1099511627776, and no model has more than"),
        ({"quantization_config": ["gptq"]}, "already quantized by an unnamed method"),
    ])  # fmt: skip
    def test_a_configuration_of_another_model(self, root: Path, changes: dict[str, Any], part: str) -> None:
        edit(root / "config.json", **changes)
        assert part in self.refusal(root)

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            *((kind, "num_experts") for kind in ("olmoe", "lfm2_moe", "qwen3_moe")),
            *((kind, "num_local_experts") for kind in ("olmoe", "qwen3_moe", "gpt_oss", "granitemoe")),
            ("granitemoehybrid", "num_local_experts"),
        ],
    )
    def test_numbers_of_experts_that_no_model_has(self, root: Path, kind: str, name: str) -> None:
        own = {"model_type": kind, "rope_parameters": None, "head_dim": None, "mamba_n_heads": 6}
        edit(root / "config.json", **own, **{name: 300_000})
        assert "gives 300000 experts to each of 4 layers" in self.refusal(root)
        edit(root / "config.json", **{name: 4}, num_experts_per_tok=5)
        assert "chooses 5 of 4 experts" in self.refusal(root)
        edit(root / "config.json", num_experts_per_tok=0)
        assert "chooses 0 of 4 experts" in self.refusal(root)

    @pytest.mark.parametrize(
        ("name", "value"), [("use_qk_norm", True), ("num_local_experts", 8), ("logits_scaling", 4.0), ("clip_qkv", 8)]
    )
    def test_a_field_that_changes_the_model_and_that_nothing_reads(self, root: Path, name: str, value: object) -> None:
        path = root / "config.json"
        config = json.loads(path.read_text())
        for harmless in (None, False, 0):
            path.write_text(json.dumps({**config, name: harmless}))
            open_checkpoint(str(root))
        path.write_text(json.dumps({**config, name: value}))
        with pytest.raises(CheckpointError, match=f"sets {name} to {value}, which changes what a model computes"):
            open_checkpoint(str(root))

    @pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
    def test_json_without_an_end_of_brackets(self, root: Path, name: str) -> None:
        (root / name).write_text("[" * 100_000)
        assert f"{name} is not valid JSON" in self.refusal(root)

    def test_positions_that_are_larger_than_the_files(self, tmp_path: Path) -> None:
        marian().save_pretrained(tmp_path)
        edit(tmp_path / "config.json", max_position_embeddings=1 << 20)
        message = self.refusal(tmp_path)
        assert "embed_positions.weight' of shape [1048576, 16], which is larger than all weights together" in message

    def test_no_weights(self, root: Path) -> None:
        (root / "model.safetensors").unlink()
        assert "holds no weights" in self.refusal(root)

    @pytest.mark.parametrize("kept", [0, 5, 1000, -100])
    def test_truncated_safetensors(self, root: Path, kept: int) -> None:
        path = root / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        assert "model.safetensors is damaged or cut short" in self.refusal(root)

    @pytest.mark.parametrize("kept", [0, 100, -100])
    def test_a_truncated_torch_file(self, root: Path, kept: int) -> None:
        path = root / "pytorch_model.bin"
        torch.save(load_file(root / "model.safetensors"), path)
        (root / "model.safetensors").unlink()
        path.write_bytes(path.read_bytes()[:kept])
        assert "pytorch_model.bin is damaged, cut short or no file of tensors; fetch it" in self.refusal(root)

    @pytest.mark.parametrize("content", [b"junk" * 100, b"hello", b"\x80\x63" + bytes(range(256)), b"("])
    def test_a_torch_file_of_junk(self, root: Path, content: bytes, recwarn: pytest.WarningsRecorder) -> None:
        (root / "model.safetensors").unlink()
        (root / "pytorch_model.bin").write_bytes(content)
        assert "pytorch_model.bin is damaged, cut short or no file of tensors; fetch it" in self.refusal(root)
        assert len(recwarn) == 0

    @pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
    @pytest.mark.parametrize(("content", "named"), [({"x": Path}, "pathlib.Path"), ({"x": os.system}, "posix.system")])
    def test_a_torch_file_with_code_in_it(self, root: Path, content: dict[str, Any], named: str, zipped: bool) -> None:
        (root / "model.safetensors").unlink()
        torch.save(content, root / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        message = self.refusal(root)
        assert f"pytorch_model.bin holds more than tensors ({named}), and to load that could run code" in message
        assert "weights_only" not in message

    def test_a_torch_file_of_a_list(self, root: Path) -> None:
        (root / "model.safetensors").unlink()
        torch.save([torch.zeros(2)], root / "pytorch_model.bin")
        assert "holds a list where tensors by name belong" in self.refusal(root)

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        tiny_model("llama").save_pretrained(tmp_path, max_shard_size="300KB")
        next(tmp_path.glob("model-00002*")).unlink()
        assert "is missing, and model.safetensors.index.json names it" in self.refusal(tmp_path)

    def test_a_shard_outside_the_directory(self, root: Path) -> None:
        (root / "model.safetensors").unlink()
        index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
        (root / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "outside its own folder" in self.refusal(root)

    def test_a_missing_tensor(self, root: Path) -> None:
        tensors = load_file(root / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, root / "model.safetensors")
        message = self.refusal(root)
        assert "lacks the tensor 'model.layers.1.mlp.up_proj.weight' of shape [160, 96]" in message

    def test_a_tensor_of_another_shape(self, root: Path) -> None:
        edit(root / "config.json", intermediate_size=128)
        message = self.refusal(root)
        assert "'model.layers.0.mlp.gate_proj.weight' has shape [160, 96]" in message
        assert "calls for [128, 96]" in message

    def test_tensors_of_integers(self, root: Path) -> None:
        tensors = load_file(root / "model.safetensors")
        tensors["model.norm.weight"] = torch.zeros(96, dtype=torch.int8)
        save_file(tensors, root / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' is stored as torch\.int8"):
            open_checkpoint(str(root)).read("model.norm.weight")

    def test_no_tokenizer(self, root: Path) -> None:
        (root / "tokenizer.json").unlink()
        assert "holds no tokenizer" in self.refusal(root)

    def test_a_damaged_tokenizer(self, root: Path) -> None:
        (root / "tokenizer.json").write_text('{"version": "1.0"')
        assert "tokenizer.json is not a tokenizer that can be read" in self.refusal(root)

    def test_a_tokenizer_that_panics(self, root: Path) -> None:
        tokenizer = json.loads((root / "tokenizer.json").read_text())
        tokenizer["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "no base64!"}
        (root / "tokenizer.json").write_text(json.dumps(tokenizer))
        assert "tokenizer.json is not a tokenizer that can be read" in self.refusal(root)

    def test_a_tokenizer_of_more_memory_than_it_has_bytes(self, root: Path) -> None:
        tokenizer = json.loads((root / "tokenizer.json").read_text())
        tokenizer["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "/////w" + "A" * 100}
        (root / "tokenizer.json").write_text(json.dumps(tokenizer))
        assert "its character map says that it has 4,294,967,295 bytes and is shorter" in self.refusal(root)

    def test_a_chat_template_that_is_no_text(self, root: Path) -> None:
        (root / "chat_template.jinja").write_bytes(b"\xff\xfe")
        assert "chat_template.jinja cannot be read" in self.refusal(root)

    @pytest.mark.parametrize("extra", [1 << 40, -1, "many"])
    def test_a_byte_tokenizer_of_impossible_size(self, root: Path, extra: Any) -> None:
        (root / "tokenizer.json").unlink()
        edit(root / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer", extra_ids=extra)
        assert f"gives extra_ids as {extra}" in self.refusal(root)

    def test_an_index_of_no_names(self, root: Path) -> None:
        (root / "model.safetensors").unlink()
        (root / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": []}}')
        assert "has no weight_map" in self.refusal(root)

    def test_slow_files_that_cannot_be_converted(self, root: Path) -> None:
        (root / "tokenizer.json").unlink()
        (root / "tokenizer.model").write_bytes(b"no protobuf")
        edit(root / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
        assert "cannot be converted to tokenizer.json" in self.refusal(root)


def test_an_encoder_decoders_configuration_stays_whole_and_its_generation_settings_are_read(tmp_path: Path) -> None:
    special = dict(bos_token_id=50, eos_token_id=50, pad_token_id=50, decoder_start_token_id=51)
    config = WhisperConfig(vocab_size=60, d_model=48, encoder_layers=1, decoder_layers=2, **special)
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    fields = ("decoder_start_token_id", "decoder_layers", "encoder_layers", "num_mel_bins")
    assert [checkpoint.config[f] for f in fields] == [51, 2, 1, 80]
    assert checkpoint.generation["decoder_start_token_id"] == 51
    (tmp_path / "generation_config.json").unlink()
    assert open_checkpoint(str(tmp_path)).generation["begin_suppress_tokens"] == [220, 50256]


T5 = dict(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu")


def test_a_t5_whose_head_is_its_own_keeps_it(tmp_path: Path) -> None:
    """transformers calls every T5 tied, whatever its config.json says, and goes by the tensors."""
    T5ForConditionalGeneration(T5Config(**T5)).save_pretrained(tmp_path)
    edit(tmp_path / "config.json", tie_word_embeddings=False, scale_decoder_outputs=None)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["shared.weight"].clone()}, tmp_path / "model.safetensors")
    tied = open_checkpoint(str(tmp_path))
    assert ("lm_head.weight" in tied.names(), tied.config["tie_word_embeddings"]) == (False, True)
    head = torch.randn(60, 32)
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
    untied = open_checkpoint(str(tmp_path))
    assert np.array_equal(untied.read("lm_head.weight"), head.numpy())
    assert ("lm_head.weight" in untied.names(), untied.config["tie_word_embeddings"]) == (True, False)
    assert AutoConfig.for_model(**untied.config).scale_decoder_outputs is False


@pytest.mark.parametrize("name", ["encoder.embed_tokens.weight", "lm_head.weight"])
def test_a_shared_embedding_is_found_under_any_of_its_names(tmp_path: Path, name: str) -> None:
    T5ForConditionalGeneration(T5Config(**T5)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors.pop("shared.weight")
    save_file({**tensors, name: embedding}, tmp_path / "model.safetensors")
    assert np.array_equal(open_checkpoint(str(tmp_path)).read("shared.weight"), embedding.numpy())


def test_tensors_that_transformers_passes_over_are_passed_over(root: Path) -> None:
    """Buffers of older versions, modules that the text model does not have, layers that predict further tokens."""
    tensors = load_file(root / "model.safetensors")
    edit(root / "config.json", num_nextn_predict_layers=1)
    others = [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.vision_tower.encoder.layers.30.mlp.fc1.weight",
        "vision_model.encoder.layers.30.mlp.fc1.weight",
        "mtp.layers.0.input_layernorm.weight",
        "v_head.summary.weight",
        "score.weight",
        "model.layers.4.eh_proj.weight",
    ]
    save_file({**tensors, **{name: torch.ones(4) for name in others}}, root / "model.safetensors")
    assert reads_as(root, tiny_model("llama"))
    save_file({**tensors, "model.layers.5.eh_proj.weight": torch.ones(4)}, root / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds the tensor 'model\.layers\.5\.eh_proj\.weight', for which"):
        open_checkpoint(str(root))


SEQ2SEQ = dict(
    vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=48, decoder_ffn_dim=48,
    encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, pad_token_id=1,
    decoder_start_token_id=1,
)  # fmt: skip
T5_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
COPIES = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"]
WRITTEN = {
    "t5": (T5, [T5_BIAS, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"], "encoder.block.2"),
    "mt5": (T5, ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"], "encoder.block.2"),
    "longt5": (T5, ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"], "encoder.block.2"),
    "umt5": (T5, ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"], "decoder.block.2"),
    "bart": (SEQ2SEQ, [*COPIES, "encoder.version", "decoder.version", "final_logits_bias"], "model.encoder.layers.2"),
    "mbart": (SEQ2SEQ, [*COPIES, "final_logits_bias"], "model.decoder.layers.2"),
    "plbart": (SEQ2SEQ, [*COPIES, "final_logits_bias"], "model.encoder.layers.2"),
    "marian": (SEQ2SEQ, [*COPIES, "final_logits_bias"], "model.decoder.layers.2"),
    "pegasus": (SEQ2SEQ, [*COPIES, "final_logits_bias"], "model.decoder.layers.2"),
    "m2m_100": (SEQ2SEQ, [*COPIES, "model.encoder.embed_positions.weights"], "model.encoder.layers.2"),
    "whisper": (SEQ2SEQ, ["proj_out.weight", "model.encoder.embed_positions.weight"], "model.encoder.layers.2"),
}


@pytest.mark.parametrize("model_type", WRITTEN)
def test_copies_and_buffers_are_passed_over_and_further_layers_are_not(tmp_path: Path, model_type: str) -> None:
    sizes, written, further = WRITTEN[model_type]
    config = AutoConfig.for_model(model_type, **sizes)
    model = auto_class(config.to_dict()).from_config(config)
    model.save_pretrained(tmp_path)
    state = model.state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    extra = {name: state.get(name, torch.zeros(3)).clone() for name in written if name not in tensors}
    assert extra
    save_file({**tensors, **extra}, tmp_path / "model.safetensors")
    assert {name for name, _ in model.named_parameters()} <= set(open_checkpoint(str(tmp_path)).names())
    save_file({**tensors, f"{further}.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"holds the tensor '{further}"):
        open_checkpoint(str(tmp_path))


def test_a_base_models_files_are_read_as_the_whole_models(tmp_path: Path) -> None:
    """As those of facebook/bart-base, whose names lack the model's prefix."""
    sizes = dict(d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48, decoder_ffn_dim=48)
    config = BartConfig(vocab_size=60, encoder_attention_heads=4, decoder_attention_heads=4, **sizes)
    model = BartForConditionalGeneration(config)
    model.model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    for name, parameter in model.named_parameters():
        assert np.array_equal(checkpoint.read(name), parameter.detach().numpy())
