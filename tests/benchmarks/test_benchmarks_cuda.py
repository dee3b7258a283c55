"""The benchmark on a GPU, over one of paper: its bodies run, its figures follow from times, its goals are shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda as bench
import pytest
from fake_cuda import FakeCuda

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PROMPTS", (8, 20))
    monkeypatch.setattr(bench, "DECODED", 3)
    monkeypatch.setattr(bench, "WARM", 2)
    monkeypatch.setattr(bench, "CONTEXT", 64)


def test_a_body_runs_in_every_engine(tmp_path: Path) -> None:
    checkpoint, gpu = bench.RandomCheckpoint("tiny", SHAPE), FakeCuda()
    contenders: list[bench.Contender] = [
        bench.Edge(kind, bench.body(checkpoint, kind, tmp_path), gpu) for kind in ("float16", "int4")
    ]
    assert contenders[1].bytes < 0.6 * contenders[0].bytes  # each tensor begins on a page
    contenders.append(bench.Transformers(checkpoint, "cpu", compiled=False))
    found = bench.measure(contenders, [1, 3], (8, 20), 1)
    assert list(found) == ["first token @ 8", "first token @ 20", "decode, batch 1", "decode, batch 3"]
    for values in found.values():
        assert list(values) == ["edge float16", "edge int4", "transformers"]
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in values.values())
    assert max(gpu.seen.runs) > 0, "steps were recorded"


def test_shares_and_goals_follow_from_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["edge int4", "transformers", "transformers, compiled"]
    contenders: list[Any] = [SimpleNamespace(name=name, bytes=4_000) for name in names]
    figures = {"first token @ 8": {name: [10.0] for name in names}}
    figures["decode, batch 1"] = {"edge int4": [1_000.0], **{name: [1_000 / 3.6] for name in names[1:]}}
    row = bench.row_bytes(SHAPE)
    assert row == 2 * 2 * 2 * 16 * 2
    share = (4_000 + (8 + 2 + 1.5) * row) / 0.001 / 1e9
    assert bench.shares(figures, contenders, 1, row, 1e9)["edge int4"] == [pytest.approx(100 * share)]
    bench.show("8B", figures, contenders, row, 1e7)
    said = capsys.readouterr().out
    assert "met     edge int4 / transformers, batch 1: 3.60 (>= 3.00)" in said
    assert "met     edge int4 / transformers, compiled, batch 1: 3.60 (>= 1.20)" in said
    assert "edge int4: share of bandwidth: 0.69 (>= 0.60)" in said and "1,000" in said


def test_without_a_gpu_it_says_so_and_ends() -> None:
    with pytest.raises(SystemExit, match=r"Nothing can be measured here: .*CUDA"):
        bench.main(["--shapes", "135M"])


def test_a_copy_has_a_speed() -> None:
    assert bench.bandwidth("cpu") > 1e8
