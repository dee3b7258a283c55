"""Ten thousand damaged files of each kind: each is read as something else or refused with one sentence, in bounded time
and memory. By default a few of them; all of them in the tests that are marked slow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/proc/self/status").exists():
    pytest.skip("limits a process's memory as Linux does", allow_module_level=True)

import mutations

from edge.bundle import Bundle

ALL = 10_000


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, pristine_tiny_bundle: Bundle, by_layer: Bundle
) -> Path:
    """A folder with a whole file of each kind."""
    import torch
    from gguf_files import Type, tiny_model, write_gguf
    from safetensors.torch import load_file
    from sounds import tone, write_wave
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from unigram_tokenizers import trained_pieces
    from whisper_files import tiny_whisper, write_ctranslate2

    from edge.export.checkpoint import open_checkpoint

    folder = tmp_path_factory.mktemp("whole")
    model = tiny_model("llama", hidden_size=96, num_hidden_layers=2, intermediate_size=64)
    write_gguf(folder / "model.gguf", model, types={"ffn_up": Type.Q8_0, "ffn_down": Type.F16})
    whisper = tiny_whisper(encoder_layers=1, decoder_layers=1)
    write_ctranslate2(folder / "ctranslate2", whisper)
    whisper.save_pretrained(folder / "whisper")
    (folder / "whisper" / "tokenizer.json").write_text(open_checkpoint(str(folder / "ctranslate2")).tokenizer.json)
    shutil.copytree(tiny_checkpoint, folder / "directory")
    shutil.copytree(tiny_checkpoint, folder / "torch", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(tiny_checkpoint / "model.safetensors"), folder / "torch" / "pytorch_model.bin")
    shutil.copytree(pristine_tiny_bundle.root, folder / "bundle")
    shutil.copytree(by_layer.root, folder / "segments")

    pieces, characters = trained_pieces()
    tokenizer = Tokenizer(models.Unigram(pieces, 2, False))
    tokenizer.normalizer = normalizers.Precompiled(characters)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<pad>", "</s>", "<last>")])
    (folder / "unigram").mkdir()
    tokenizer.save(str(folder / "unigram" / "tokenizer.json"))

    write_wave(folder / "sound.wav", np.stack([tone(1, 8_000)] * 2, axis=1), 8_000)
    write_wave(folder / "sound16.wav", np.stack([tone(1)] * 2, axis=1))
    soundfile = pytest.importorskip("soundfile")
    for kind in ("flac", "ogg", "mp3"):
        soundfile.write(folder / f"sound.{kind}", tone(1, 8_000), 8_000, format=kind.upper())
    return folder


def read_damaged(folder: Path, counts: dict[str, int]) -> dict[str, dict[str, Any]]:
    """What became of damaged files, by kind. What ended the process early is told of the kind at hand."""
    asked = [f"{kind}:0:{count}" for kind, count in counts.items()]
    command = [sys.executable, mutations.__file__, str(folder), *asked]
    result = subprocess.run(command, capture_output=True, text=True)
    found = {each["kind"]: each for each in map(json.loads, result.stdout.splitlines())}
    if result.returncode:
        case = (folder / mutations.CASE).read_text().strip()
        told = f"The process ended with {result.returncode} in {case}:\n{result.stderr}"
        found[case.partition(":")[0]] = {"told": [told]}
    return found


@pytest.fixture(scope="module")
def some(whole: Path) -> dict[str, dict[str, Any]]:
    kinds = mutations.KINDS
    exported = read_damaged(whole, {name: kinds[name].cases for name in mutations.EXPORTED})
    return exported | read_damaged(whole, {name: kinds[name].cases for name in mutations.RUN})


@pytest.mark.parametrize("kind", mutations.KINDS)
def test_a_damaged_file_is_refused_with_a_sentence_or_read(kind: str, some: dict[str, dict[str, Any]]) -> None:
    assert kind in some, "the process ended with an earlier kind"
    assert not some[kind]["told"], "\n".join(some[kind]["told"])
    assert some[kind]["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", mutations.KINDS)
def test_ten_thousand_damaged_files_are_refused_with_a_sentence_or_read(kind: str, whole: Path) -> None:
    found = read_damaged(whole, {kind: ALL})[kind]
    print(json.dumps(found))
    assert not found["told"], "\n".join(found["told"])
    assert 0 < found["refused"] < ALL
