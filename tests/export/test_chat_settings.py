"""What a checkpoint sets for its chats goes into the manifest and is said; nonsense is refused, or left out."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thinking_models import PLAIN, tiny_thinker

import edge
from edge.cli.main import main
from edge.errors import CheckpointError
from edge.export.checkpoint.generation_settings import check_settings, gguf_settings
from edge.export.facts.gguf_header import GGUFHeader
from edge.export.manifest.chat_settings import chat_settings
from edge.manifest import Generation

QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


def settings(given: dict[str, Any]) -> tuple[Generation | None, list[str]]:
    said: list[str] = []
    check_settings(given, "generation_config.json")
    return chat_settings(SimpleNamespace(generation=given), said.append), said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"do_sample": False, "temperature": 1.0, "max_length": 2048, "eos_token_id": [1, 106]}, None),
        (QWEN, Generation(**QWEN)),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, Generation(do_sample=True, top_k=64, top_p=0.95)),
        ({"do_sample": True, "temperature": 1, "top_k": None}, Generation(do_sample=True)),
        ({"temperature": 0.7, "top_p": 0.8}, Generation(temperature=0.7, top_p=0.8)),
        ({"repetition_penalty": 1.05}, Generation(repetition_penalty=1.05)),
        (
            {"do_sample": True, "min_p": 0.15, "temperature": 0.3},
            Generation(do_sample=True, temperature=0.3, min_p=0.15),
        ),
    ],
)
def test_settings_are_taken_over(given: dict[str, Any], expected: Generation | None) -> None:
    found, said = settings(given)
    assert (found, said) == (expected, [])
    assert found is None or isinstance(found.temperature, float)


RANGES = {
    "temperature": (0, 100),
    "top_k": (0, 1 << 24),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1 / 32, 32),
}


@pytest.mark.parametrize("number", range(30))
def test_values_out_of_their_range_are_left_out_and_said(number: int) -> None:
    draw = random.Random(number)
    name, (least, most) = draw.choice(list(RANGES.items()))
    value = draw.choice([least - 1, -7, most + 1, most * 50, -(2**40)])
    value = int(value) if name == "top_k" else float(value)
    found, said = settings({**QWEN, name: value})
    assert found == Generation(**{key: each for key, each in QWEN.items() if key != name})
    (sentence,) = said
    assert name in sentence and f"{value:g}" in sentence


@pytest.mark.parametrize("name", [*RANGES, "do_sample"])
@pytest.mark.parametrize("value", ["0.6", [0.6], {"x": 1}, True, float("nan"), float("inf"), 2**70], ids=str)
def test_values_of_another_type_are_refused(name: str, value: Any) -> None:
    if name == "do_sample" and value is True:
        return
    with pytest.raises(CheckpointError, match=f"{name}.* must be"):
        settings({**QWEN, name: value})


def test_settings_that_no_answer_obeys_are_said() -> None:
    _, said = settings({**QWEN, "no_repeat_ngram_size": 3, "typical_p": 0.9, "num_beams": 1})
    assert said == [
        "The checkpoint's generation settings also have no_repeat_ngram_size, typical_p; the bundle leaves that out."
    ]


def gguf(path: Path, **values: tuple[int, str, Any]) -> GGUFHeader:
    """A file of metadata alone. values: GGUF's number of a type, how it is packed, and the value."""
    pairs = b""
    for key, (kind, code, value) in values.items():
        name = f"general.sampling.{key}".encode()
        pairs += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{code}", kind, value)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + pairs)
    return GGUFHeader(path)


def test_a_gguf_files_sampling_keys_are_taken_over(tmp_path: Path) -> None:
    keys = {"temp": (6, "f", 0.5), "top_k": (5, "i", 20), "top_p": (6, "f", 0.75), "min_p": (6, "f", 0.0)}
    header = gguf(tmp_path / "a.gguf", **keys, penalty_repeat=(6, "f", 1.25))
    found, said = settings(gguf_settings(header))
    expected = Generation(do_sample=True, temperature=0.5, top_k=20, top_p=0.75, repetition_penalty=1.25)
    assert (found, said) == (expected, [])
    assert gguf_settings(gguf(tmp_path / "b.gguf")) == {}
    gemma, _ = settings(gguf_settings(gguf(tmp_path / "c.gguf", top_k=(5, "i", 64))))
    assert gemma == Generation(do_sample=True, top_k=64)
    with pytest.raises(CheckpointError, match=r"general.sampling.temp must be a finite number"):
        gguf_settings(gguf(tmp_path / "d.gguf", temp=(6, "f", float("nan"))))
    with pytest.raises(CheckpointError, match=r"general.sampling.top_k must be a whole number"):
        gguf_settings(gguf(tmp_path / "e.gguf", top_k=(6, "f", 2.0)))


def test_an_export_says_how_chats_are_answered_and_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_thinker(tmp_path / "tiny", PLAIN, marks=None, **QWEN, eos_token_id=[2, 0])
    target = tmp_path / "tiny.edge"
    assert main(["export", str(tmp_path / "tiny"), "-o", str(target), "--weights", "fp32", "--no-check"]) == 0
    words = "temperature 0.6, top-k 20, top-p 0.95, repetition penalty 1.1"
    assert f"Chats draw tokens as the model's makers set it: {words}" in capsys.readouterr().err
    manifest = edge.open_bundle(target).manifest
    assert manifest.generation == Generation(**QWEN) and manifest.tokens.eos == [2, 0]
    assert main(["inspect", str(target)]) == 0
    assert "temperature 0.6, top-k 20" in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["generation"]["top_k"] == 20

    def answered(*options: str) -> list[int]:
        assert main(["run", str(target), "The moon", "--max-tokens", "12", "--json", *options]) == 0
        ids: list[int] = json.loads(capsys.readouterr().out)["token_ids"]
        return ids

    spelled = [each for name, value in QWEN.items() if name != "do_sample" for each in (f"--{name}", str(value))]
    spelled = [each.replace("_", "-") for each in spelled]
    assert answered() == answered() == answered("--seed", "0") == answered(*spelled)
    greedy = answered("--temperature", "0")
    model = edge.load(target, kind=edge.Model)
    assert greedy == model.generate("The moon", max_tokens=12, temperature=0).token_ids != answered()
    assert main(["verify", str(target)]) == 0, "golden answers are greedy"
    capsys.readouterr()
    assert len({tuple(answered("--seed", "random")) for _ in range(4)}) > 1
