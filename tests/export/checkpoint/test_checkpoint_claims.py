"""What a checkpoint claims, of sizes, types and names, is checked before memory or time is spent on it."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_t5 import tiny_t5, write_t5
from safetensors.torch import load_file
from unigram_tokenizers import trained_model, trained_pieces
from whisper_files import tiny_whisper, write_ctranslate2

from edge.errors import CheckpointError, ExportError
from edge.export.checkpoint import open_checkpoint
from edge.export.checkpoint.generation_settings import _Settings
from edge.export.checkpoint.tokenizer_files import read_tokenizer
from edge.export.checkpoint.vocabulary_sizes import check_lengths
from edge.export.manifest.speech_format import check_window

MOST_S, MOST_BYTES = 60.0, 300 << 20  # of a refusal


@pytest.fixture
def root(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A model directory that a test may harm."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


@pytest.fixture
def bounded() -> Iterator[None]:
    """Within it, what takes minutes or gigabytes fails."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    yield
    assert time.monotonic() - began < MOST_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_BYTES


def refusal(source: Path) -> str:
    """The sentence that refuses a checkpoint, or its tokenizer."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint = open_checkpoint(str(source))
        assert checkpoint.tokenizer.json
        for name in checkpoint.names():
            checkpoint.read(name)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000
    return said


def sentencepiece_model(**changes: Any) -> bytes:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(trained_model())
    if "characters" in changes:
        model.normalizer_spec.precompiled_charsmap = changes["characters"]
    for piece in changes.get("pieces", ()):
        model.pieces.add(piece=piece, score=-1.0)
    return bytes(model.SerializeToString())


def claims(seed: int) -> list[bytes]:
    """Character maps that say that they are larger than they are."""
    choose = random.Random(seed)
    sizes = [1, 5, 1 << 20, 1 << 31, (1 << 32) - 1, *(choose.randrange(1 << 32) for _ in range(5))]
    rests = [choose.randbytes(choose.choice([0, 1, 3, 100])) for _ in sizes]
    found = [s.to_bytes(4, "little") + rest for s, rest in zip(sizes, rests, strict=True) if s > len(rest)]
    return [*found, b"\xff", b"\x01\x00"]


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(("file", "tokenizer"), [("spiece.model", "T5Tokenizer"), ("source.spm", "MarianTokenizer")])
def test_a_character_map_is_as_large_as_it_says(file: str, tokenizer: str, tmp_path: Path) -> None:
    pieces = [piece for piece, _ in trained_pieces()[0]]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer}))
    for claim in claims(1):
        (tmp_path / file).write_bytes(sentencepiece_model(characters=claim))
        with pytest.raises(CheckpointError, match="character map says that it has"):
            read_tokenizer(tmp_path, {})


@pytest.mark.usefixtures("bounded")
def test_a_character_map_in_a_gguf_file_is_as_large_as_it_says(tmp_path: Path) -> None:
    whole = write_t5(tmp_path / "t5.gguf", tiny_t5()).read_bytes()
    characters = trained_pieces()[1]
    assert characters[:4] in whole
    (tmp_path / "t5.gguf").write_bytes(whole.replace(characters[:8], b"\xf0\xff\xff\xff" + characters[4:8], 1))
    assert "character map says that it has 4,294,967,280 bytes" in refusal(tmp_path / "t5.gguf")


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("key", ["t5.block_count", "t5.decoder_block_count"])
@pytest.mark.parametrize("count", [4, 1000, 1 << 24, (1 << 32) - 1])
def test_layers_of_a_t5_are_counted_in_its_tensors(key: str, count: int, tmp_path: Path) -> None:
    path = write_t5(tmp_path / "t5.gguf", tiny_t5())
    whole = path.read_bytes()
    at = whole.index(key.encode()) + len(key) + 4  # after the type of the number
    path.write_bytes(whole[:at] + count.to_bytes(4, "little") + whole[at + 4 :])
    assert f"counts {count:,} layers" in refusal(path)


@pytest.mark.parametrize("tokens", [["x" * 40_000], ["ab" * 2000] * 100, ["y"] * 10 + ["x" * 1_000_000]])
def test_tokens_as_long_as_books_are_refused(tokens: list[str]) -> None:
    with pytest.raises(CheckpointError, match="as long as books"):
        check_lengths(tokens, Path("vocabulary.json"))
    check_lengths([token[:40] for token in tokens], Path("vocabulary.json"))


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", ["vocabulary.json", "vocabulary.txt"])
def test_a_whisper_vocabulary_of_long_tokens_is_refused_at_once(name: str, tmp_path: Path) -> None:
    root = write_ctranslate2(tmp_path / "whisper", tiny_whisper(encoder_layers=1, decoder_layers=1))
    tokens = json.loads((root / "vocabulary.json").read_text())
    tokens[300:300] = ["x" * (2 << i) for i in range(16)]
    (root / "vocabulary.json").unlink()
    (root / name).write_text(json.dumps(tokens) if name.endswith("json") else "\n".join(tokens))
    assert "as long as books" in refusal(root)


@pytest.mark.parametrize("last", [1 << 20, 1 << 31, 1 << 40, 1 << 60, 10**30])
@pytest.mark.usefixtures("bounded")
def test_ids_far_beyond_the_tokens_are_refused(last: int, tmp_path: Path) -> None:
    pieces = [piece for piece, _ in trained_pieces()[0]]
    ids = {piece: i for i, piece in enumerate(pieces)} | {pieces[-1]: last}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "source.spm").write_bytes(trained_model())
    with pytest.raises(CheckpointError, match=f"ids of up to {last}"):
        read_tokenizer(tmp_path, {})


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("extra", [10_001, 1 << 20, 1 << 40, -1, "many"])
def test_extra_ids_are_counted_before_they_are_made(extra: Any, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(trained_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": extra}))
    with pytest.raises(CheckpointError, match=f"gives extra_ids as {extra}"):
        read_tokenizer(tmp_path, {})


@pytest.mark.parametrize("settings", [{"language_codes": "none"}, {"language_codes": []}, {"src_lang": "a b { } $Z:9"}])
def test_settings_that_make_no_tokenizer_get_a_sentence(settings: dict[str, Any], tmp_path: Path) -> None:
    pieces = [piece for piece, _ in trained_pieces()[0]]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    try:
        assert read_tokenizer(tmp_path, {}).json
    except CheckpointError as e:
        assert "make no tokenizer" in str(e)


@pytest.mark.parametrize("name", ["x" * 300, "é" * 200 + ".safetensors", "a\0b", "no.safetensors"])
def test_a_shard_that_no_file_can_be_is_missing(name: str, root: Path) -> None:
    (root / "model.safetensors").unlink()
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    assert "is missing" in refusal(root)


def hostile_tensors(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of the same shape that are not there number by number."""
    return {
        "of a stride of zero": tensor[:1, :1].clone().expand(tensor.shape),
        "sparse": tensor.to_sparse(),
        "quantized": torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
        "without values": tensor.to("meta"),
        "overlapping": torch.as_strided(tensor[:, 0].clone(), tensor.shape, (1, 0)),
    }


@pytest.mark.parametrize("kind", hostile_tensors(torch.ones(200, 3)))
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_is_not_there_number_by_number_is_refused(kind: str, root: Path) -> None:
    state = load_file(root / "model.safetensors")
    name = "model.embed_tokens.weight"
    state[name] = hostile_tensors(state[name])[kind]
    (root / "model.safetensors").unlink()
    torch.save(state, root / "pytorch_model.bin")
    said = refusal(root)
    assert "number by number" in said or "no file of tensors" in said or "holds more than tensors" in said


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("part", ["data.pkl", "more"])
def test_an_archive_that_unpacks_to_more_than_its_size_is_refused(part: str, root: Path) -> None:
    path = root / "pytorch_model.bin"
    torch.save(load_file(root / "model.safetensors"), path)
    (root / "model.safetensors").unlink()
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        folder = next(iter(parts)).partition("/")[0]
        with archive.open(f"{folder}/{part}", "w", force_zip64=True) as file:
            for _ in range(32):
                file.write(bytes(1 << 20))
    assert "its parts have" in refusal(root)


def test_a_model_card_of_megabytes_is_not_read(root: Path) -> None:
    (root / "README.md").write_text("---\nlicense: mit\n---\n")
    assert open_checkpoint(str(root)).licence == "mit"
    (root / "README.md").write_text("---\nlicense: mit\n" + "a: [1, 2, 3]\n" * 200_000 + "---\n")
    began = time.monotonic()
    assert open_checkpoint(str(root)).licence is None
    assert time.monotonic() - began < MOST_S


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "is not a file" in refusal(tmp_path / "model.gguf")


HALVES = ["\ud800", "a\udfff", "\udc00\ud800", "x" * 50 + "\ud9ab"]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("file", "key"), [("tokenizer_config.json", "chat_template"), ("config.json", "model_type"),
                      ("generation_config.json", "x"), ("tokenizer_config.json", "bos_token")]
)  # fmt: skip
def test_half_a_character_is_refused_where_it_is_read(file: str, key: str, half: str, root: Path) -> None:
    raw = json.loads((root / file).read_text())
    (root / "chat_template.jinja").unlink(missing_ok=True)
    (root / file).write_text(json.dumps({**raw, key: half}))
    assert "half of a character" in refusal(root)
    (root / file).write_text(json.dumps({**raw, "unread": "\U0001f642"}))  # two halves are one
    open_checkpoint(str(root))


@pytest.mark.parametrize("half", HALVES)
def test_half_a_character_among_whispers_tokens_is_refused(half: str, tmp_path: Path) -> None:
    root = write_ctranslate2(tmp_path / "whisper", tiny_whisper(encoder_layers=1, decoder_layers=1))
    tokens = json.loads((root / "vocabulary.json").read_text())
    tokens[random.Random(half.encode("utf-8", "surrogatepass")).randrange(len(tokens))] = half
    (root / "vocabulary.json").write_text(json.dumps(tokens))
    assert "cannot be read" in refusal(root)


WRONG: list[Any] = ["many", 0.5, [0.5], {"x": "y"}, [["x"]], True]
FITS = {
    "length_penalty": (0.5,),
    "repetition_penalty": (0.5,),
    "early_stopping": ("many", True),
    "is_multilingual": (True,),
    "do_sample": (True,),
    "temperature": (0.5,),
    "top_p": (0.5,),
    "min_p": (0.5,),
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(_Settings)])
def test_settings_of_another_type_are_refused(name: str, root: Path) -> None:
    path = root / "generation_config.json"
    raw = json.loads(path.read_text())
    for value in WRONG:
        if value in FITS.get(name, ()):
            continue
        path.write_text(json.dumps({**raw, name: value}))
        assert name in refusal(root)


def test_a_librarys_long_message_becomes_a_short_one(root: Path) -> None:
    for text in ("x" * 100_000, "é" * 5000, "a\nb" * 2000):
        header = json.dumps({"model.norm.weight": text}).encode()
        (root / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        assert "damaged or cut short" in refusal(root)


@pytest.mark.parametrize("frames", [1, 50, 1499, 3000])
def test_a_whisper_of_another_window_is_refused_before_anything_is_built(frames: int) -> None:
    class Heard:
        name = "whisper"
        config = {"max_source_positions": frames}  # noqa: RUF012

    with pytest.raises(ExportError, match=f"windows of {frames} frames"):
        check_window(Heard())  # type: ignore[arg-type]
