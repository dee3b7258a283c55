"""Perplexity, agreement and divergence: the figures are those that the definitions give, from either kind of source."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_text2text import fake_text2text
from numpy.typing import NDArray
from texts import SENTENCES

from edge.bundle import Bundle, BundleWriter
from edge.cli.main import main
from edge.errors import InputError
from edge.extras import install
from edge.manifest import Tokens
from edge.runtime.check import perplexity as evaluate
from edge.runtime.check.perplexity import EngineLogits, compare, perplexity, pieces, windows
from edge.runtime.load import open_engine

PLAIN = Tokens(bos=None, eos=[2], pad=None, add_bos=False)
Run = Callable[..., tuple[int, str, str]]
TEXT = " ".join(SENTENCES * 3)


class Fixed:
    """A source whose logits depend on the token alone: row t of a table [V, V]."""

    def __init__(self, table: NDArray[np.float32]) -> None:
        self.vocab_size = table.shape[1]
        self.table = table

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        for piece in pieces(tokens):
            yield self.table[piece]


def random_table(seed: int, size: int = 11) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, (size, size)).astype(np.float32)


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    e = np.exp(logits.astype(np.float64))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["eval", *map(str, args)])
        return status, *capsys.readouterr()

    return run


def test_windows_do_not_overlap_and_leave_no_token_out_but_a_single_last_one() -> None:
    cut = windows(range(10), PLAIN, window=4)
    assert [w.tolist() for w in cut] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [w.tolist() for w in windows(range(9), PLAIN, window=4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [w.tolist() for w in windows(range(100), PLAIN, window=4, limit=6)] == [[0, 1, 2, 3], [4, 5]]


def test_windows_start_with_the_token_that_the_model_wants_there() -> None:
    cut = windows([5, 6, 7, 8], Tokens(bos=1, eos=[2], pad=None, add_bos=True), window=3)
    assert [w.tolist() for w in cut] == [[1, 5, 6], [1, 7, 8]]


def test_a_source_that_knows_nothing_has_the_vocabulary_size_as_perplexity() -> None:
    found = perplexity(Fixed(np.zeros((11, 11), np.float32)), windows(range(11), PLAIN, window=5))
    assert found.perplexity == pytest.approx(11, rel=1e-6)
    assert found.tokens == 4 + 4  # the eleventh token stands alone and predicts nothing


@pytest.mark.parametrize("length", [2, 63, 64, 65, 129])
def test_perplexity_is_the_exponential_of_the_mean_loss_of_all_tokens_but_each_windows_first(length: int) -> None:
    table, tokens = random_table(0), np.random.default_rng(1).integers(0, 11, 3 * length)
    losses = [
        -np.log(probabilities(table)[before, after])
        for window in np.split(tokens, 3)
        for before, after in itertools.pairwise(window)
    ]
    found = perplexity(Fixed(table), windows(tokens.tolist(), PLAIN, window=length))
    assert found.tokens == len(losses) == 3 * (length - 1)
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


def test_comparison_gives_the_divergence_and_agreement_of_the_definition() -> None:
    a, b = random_table(0), random_table(1)
    tokens = np.random.default_rng(2).integers(0, 11, 200)
    p, q = probabilities(a)[tokens[:-1]], probabilities(b)[tokens[:-1]]
    kl = (p * np.log(p / q)).sum(-1)
    found = compare(Fixed(a), Fixed(b), [tokens])
    assert found.tokens == 199
    assert found.kl_mean == pytest.approx(kl.mean(), rel=1e-4)
    assert found.kl_p95 == pytest.approx(np.percentile(kl, 95), rel=1e-4)
    assert found.top1 == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert found.reference == pytest.approx(perplexity(Fixed(a), [tokens]).perplexity)
    assert found.candidate == pytest.approx(perplexity(Fixed(b), [tokens]).perplexity)


def test_a_source_agrees_wholly_with_itself() -> None:
    table = random_table(0)
    found = compare(Fixed(table), Fixed(table), [np.arange(11)])
    assert (found.top1, found.kl_mean, found.kl_p95) == (1.0, 0.0, 0.0)


def test_a_broken_source_is_measured_and_not_hidden() -> None:
    table = random_table(0)
    broken = table.copy()
    broken[3] = np.nan
    assert not np.isfinite(perplexity(Fixed(broken), [np.arange(11)]).perplexity)
    assert not compare(Fixed(table), Fixed(broken), [np.arange(11)]).kl_mean <= 1e9


def test_a_broken_reference_agrees_with_nothing() -> None:
    broken = random_table(0)
    broken[3] = np.nan
    found = compare(Fixed(broken), Fixed(broken), [np.arange(11)])
    assert np.isnan(found.kl_mean) and found.top1 == pytest.approx(0.9)


def test_a_token_that_the_reference_rules_out_counts_for_nothing() -> None:
    table = random_table(0)
    table[:, 5] = -np.inf
    assert compare(Fixed(table), Fixed(table), [np.arange(5)]).kl_mean == 0.0


def test_vocabularies_of_different_sizes_are_refused() -> None:
    with pytest.raises(InputError, match=r"11.*12|12.*11"):
        compare(Fixed(random_table(0, 11)), Fixed(random_table(0, 12)), [np.arange(5)])


def test_a_bundle_is_measured_as_torch_would_be(tiny_checkpoint: Path, tmp_path: Path) -> None:
    import edge
    from edge.export.checkpoint import open_checkpoint
    from edge.export.reference.in_torch import TorchLogits, load_torch

    bundle = edge.export(tiny_checkpoint, tmp_path / "f.edge", weights="fp32", check=False)
    model = load_torch(open_checkpoint(str(tiny_checkpoint)))
    ids = np.random.default_rng(0).integers(3, bundle.manifest.dims.vocab_size, 300).tolist()
    texts = windows(ids, PLAIN, window=150)
    engine = open_engine(bundle)
    ours = perplexity(EngineLogits(engine, 150), texts)
    theirs = perplexity(TorchLogits(model), texts)
    assert ours.tokens == theirs.tokens == 298
    assert ours.perplexity == pytest.approx(theirs.perplexity, rel=1e-4)
    both = compare(TorchLogits(model), EngineLogits(engine, 150), texts)
    assert both.kl_mean < 1e-5
    assert both.top1 > 0.99

    import torch

    with torch.no_grad():  # in one pass, without the cache that pieces go through
        loss = [model(torch.from_numpy(t)[None], labels=torch.from_numpy(t)[None]).loss.item() for t in texts]
    assert theirs.perplexity == pytest.approx(np.exp(np.mean(loss)), rel=1e-4)


def test_memory_for_logits_does_not_grow_with_the_window(tiny_bundle: Bundle) -> None:
    shapes = [piece.shape[0] for piece in EngineLogits(open_engine(tiny_bundle), 300).logits(np.full(300, 5))]
    assert sum(shapes) == 300
    assert max(shapes) == evaluate.CHUNK


def test_the_command_measures_a_bundle(run: Run, tiny_bundle: Bundle, text: Path) -> None:
    status, out, err = run(tiny_bundle.root, "--text", text, "--window", 32, "--tokens", 100, "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["window"] == 32
    assert result["tokens"] == 100 - 4  # windows of 32, 32, 32 and 4
    assert result["perplexity"] > 1
    status, out, _ = run(tiny_bundle.root, "--text", text, "--window", 32, "--tokens", 100)
    assert status == 0
    assert f"{result['perplexity']:.3f}" in out


def test_the_command_measures_torch_and_compares_with_it(
    run: Run, tiny_bundle: Bundle, tiny_checkpoint: Path, text: Path
) -> None:
    options = "--text", text, "--window", 64, "--json"
    bundle = json.loads(run(tiny_bundle.root, *options)[1])
    torch = json.loads(run("--torch", tiny_checkpoint, *options)[1])
    both = json.loads(run(tiny_bundle.root, "--torch", tiny_checkpoint, *options)[1])
    assert both["perplexity"] == pytest.approx(bundle["perplexity"])
    assert both["perplexity_reference"] == pytest.approx(torch["perplexity"])
    assert both["tokens"] == bundle["tokens"] == torch["tokens"]
    assert 0 < both["kl_mean"] < both["kl_p95"]
    assert 0.5 < both["top1_agreement"] <= 1


def test_a_bundle_agrees_with_itself(run: Run, tiny_bundle: Bundle, text: Path) -> None:
    status, out, _ = run(tiny_bundle.root, "--agree", tiny_bundle.root, "--text", text, "--window", 64, "--json")
    assert status == 0
    result = json.loads(out)
    assert result["top1_agreement"] == 1.0
    assert result["kl_mean"] == 0.0
    assert result["perplexity"] == result["perplexity_reference"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--text", "missing.txt"], "missing.txt"),
        (["--text", "empty.txt"], "empty.txt"),
        (["--text", "binary.txt"], "binary.txt"),
        (["--text", "short.txt"], "1 tokens"),
        (["--text", "."], "cannot be read"),
        (["--text", "text.txt", "--window", 1], "--window 2"),
        (["--text", "text.txt", "--window", 513], "--window 512"),
        (["--text", "text.txt", "--tokens", 1], "--tokens 1"),
        (["--text", "text.txt", "--agree", "missing.edge"], "missing.edge"),
        (["--text", "text.txt", "--agree", "x.edge", "--torch", "y"], "one of them"),
        (["--text", "text.txt", "--threads", 0], "threads"),
        ([], "--text"),
    ],
)
def test_bad_input_gets_a_sentence(
    run: Run,
    tiny_bundle: Bundle,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[object],
    expected: str,
) -> None:
    monkeypatch.chdir(text.parent)
    Path("empty.txt").write_text(" \n")
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("short.txt").write_text("a")
    status, out, err = run(tiny_bundle.root, *args)
    assert (status, out) == (2, "")
    assert err.startswith("edge: ")
    assert err.count("\n") == 1
    assert expected in err


@pytest.mark.parametrize("options", [(), ("--skip", "unified:0.2")])
def test_only_decoders_have_a_perplexity(
    options: tuple[str, ...], run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = fake_text2text(tmp_path / "fake.edge")[0].bundle
    for place in ("edge.cli.answering", "edge.cli.eval_skip"):
        monkeypatch.setattr(f"{place}.open_answering", lambda path: bundle)
    assert run(bundle.root, "--text", text, *options) == (
        2,
        "",
        "edge: fake is an encoder-decoder, and the perplexity of a text is of decoders alone; --translate or "
        "--summarize measures this one.\n",
    )
    listening = Bundle(bundle.root, dataclasses.replace(bundle.manifest, speech=object(), text=None))  # type: ignore
    for place in ("edge.cli.answering", "edge.cli.eval_skip"):
        monkeypatch.setattr(f"{place}.open_answering", lambda path: listening)
    status, _, err = run(bundle.root, "--text", text, *options)
    assert status == 2 and "fake reads audio" in err and "--translate" not in err


def test_nothing_to_measure_gets_a_sentence(run: Run, text: Path) -> None:
    assert run("--text", text)[2].startswith("edge: There is nothing to measure")
    assert run("--text", text, "--agree", "x.edge")[0] == 2


def test_models_with_different_tokenizers_are_not_compared(
    run: Run, tiny_bundle: Bundle, text: Path, tmp_path: Path
) -> None:
    tokenizer = json.loads(tiny_bundle.path("tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["merges"] = []
    other = tmp_path / "other.edge"
    with BundleWriter(other) as writer:
        for file in tiny_bundle.manifest.files:
            if file.path != "weights.bin":
                writer.write_file(file.path, tiny_bundle.path(file.path).read_bytes())
        (writer.staging / "weights.bin").write_bytes(tiny_bundle.path("weights.bin").read_bytes())
        writer.write_file("tokenizer.json", json.dumps(tokenizer))
        writer.commit(tiny_bundle.manifest)
    status, _, err = run(tiny_bundle.root, "--agree", other, "--text", text)
    assert status == 2
    assert "into different tokens" in err


def test_torch_is_asked_for_by_name_where_it_is_not_installed(
    run: Run, tiny_checkpoint: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    status, _, err = run("--torch", tiny_checkpoint, "--text", text)
    assert status == 2
    assert install("export") in err


def test_measuring_a_bundle_imports_no_torch(tiny_bundle: Bundle, text: Path) -> None:
    script = (
        "import sys\nfrom edge.cli.main import main\nstatus = main()\n"
        "assert not {'torch', 'transformers', 'onnx', 'onnx_ir'} & set(sys.modules)\nsys.exit(status)"
    )
    command = [sys.executable, "-c", script, "eval", str(tiny_bundle.root), "--text", str(text), "--window", "32"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_a_checkpoint_that_is_no_decoder_is_refused_in_a_sentence(
    run: Run, text: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    checkpoint = SimpleNamespace(config={"model_type": family, "is_encoder_decoder": True})
    monkeypatch.setattr("edge.export.checkpoint.open_checkpoint", lambda source, **_: checkpoint)
    status, out, err = run("--torch", family, "--text", text)
    assert (status, out) == (2, "") and f"edge: {family} is an encoder-decoder, and the perplexity" in err
