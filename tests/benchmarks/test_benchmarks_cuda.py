"""The benchmark on a GPU, over one of paper: its bodies run, its figures follow from times, its goals are shown."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import FakeCuda
from places import BENCHMARKS
from rich.console import Console

assert BENCHMARKS
import cuda as bench  # noqa: E402

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
    assert [each.name for each in found] == ["edge, float16", "edge, int4", "transformers"]
    assert all(seconds > 0 for each in found for seconds in (*each.first.values(), *each.step.values()))
    assert max(gpu.seen.runs) > 0, "steps were recorded"


def test_shares_and_goals_follow_from_the_times(tmp_path: Path) -> None:
    ours = bench.Found("edge, int4", 4_000, {8: 0.01}, {1: 0.001})
    peers = [bench.Found(name, 9_000, {8: 0.02}, {1: 0.0036}) for name in ("transformers", "transformers, compiled")]
    row = bench.row_bytes(SHAPE)
    assert row == 2 * 2 * 2 * 16 * 2
    assert bench.share_of(ours, 1, row, 1e9) == (4_000 + (8 + 2 + 1.5) * row) / 0.001 / 1e9
    out = StringIO()
    bench.show("8B", [ours, *peers], row, 1e7, Console(file=out, width=160))
    said = out.getvalue()
    assert "edge, int4 / transformers, batch 1: 3.60 (goal 3.0)" in said
    assert "edge, int4 / transformers, compiled, batch 1: 3.60 (goal 1.2)" in said
    assert "of bandwidth (goal 60%)" in said and "1,000" in said


def test_without_a_gpu_it_says_so_and_ends() -> None:
    with pytest.raises(SystemExit, match=r"Nothing can be measured here: .*CUDA"):
        bench.main(["--shapes", "135M"])


def test_a_copy_has_a_speed() -> None:
    assert bench.bandwidth("cpu") > 1e8
