"""Tuning for skip policies: what is trained is what runs, runs can be resumed, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from skip_models import in_units

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.cli.tune import read_recipe
from edge.errors import CheckpointError, InputError
from edge.export.checkpoint import open_checkpoint
from edge.export.quantize import bfloat16
from edge.export.tune import result, split, tune
from edge.export.tune import trainer as trainer_module
from edge.export.tune.data import Batch, Example, batches, read_examples, read_rows
from edge.export.tune.depth import least_missed
from edge.export.tune.ffn import FeedForward
from edge.export.tune.first import First
from edge.export.tune.folder import working
from edge.export.tune.generate import answer_all, drawn, read_prompts
from edge.export.tune.network import Network, Tensors, divergence, likelihood
from edge.export.tune.policy import TrainedPolicy, make_policy
from edge.export.tune.settings import Settings
from edge.export.tune.trainer import Stopped, Trainer
from edge.extras import install
from edge.runtime.load import open_engine

LAYERS, WIDTH = 6, 64  # of the small model
TEXT = "The moon changes its shape because we see its lit half from another side every night, number {}."


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    texts = [{"text": TEXT.format(i)} for i in range(6)]
    answers = [{"prompt": f"A train leaves at {i}", "answer": TEXT.format(i)} for i in range(6)]
    path.write_text("\n".join(map(json.dumps, [*texts, *answers])) + "\n")
    return path


def settings(data: Path | None, policy: str = "first", **other: Any) -> Settings:
    target: dict[str, Any] = {"span": (3, 6)} if policy == "skipdecode" else {"ratio": 0.34}
    chosen: dict[str, Any] = {"steps": 6, "batch": 3, "length": 64, "rank": 4, "precision": "fp32", **other}
    return Settings(policy, data, **target, **chosen)


def run(
    source: Path,
    out: Path,
    chosen: Settings,
    stop: Callable[[int], bool] = lambda step: False,
    **other: Any,
) -> list[float]:
    """Tune, and stop before the step that `stop` names; the losses."""
    losses: list[float] = []

    def silent(*args: Any) -> None:
        pass

    tune(
        str(source), out, chosen, stop=lambda: stop(len(losses)), progress=silent,
        told=lambda step: losses.append(step.loss), say=silent, **other,
    )  # fmt: skip
    return losses


def batch(prompts: list[int], lengths: list[int]) -> Batch:
    tokens = np.random.default_rng(2).integers(5, 300, (len(prompts), max(lengths)))
    return Batch(tokens, np.array(prompts), np.array(lengths))


def trained_logits(network: Network, policy: TrainedPolicy, one: Batch, draw: Any) -> np.ndarray:
    tensors = network.tensors(one)
    policy.begin(network, tensors, draw)
    with torch.no_grad():
        return network.logits(tensors, policy.gate, adapted=False, feed_forward=policy.feed_forward).numpy()


def runtime_logits(bundle: Bundle, skip: str, one: Batch, capacity: int) -> np.ndarray:
    """What the runtime makes of the answers' tokens when it reads them one by one behind their prompts."""
    engine = open_engine(bundle, skip=skip, context=capacity)
    assert engine.routes is not None
    rows = []
    for tokens, prompt, length in zip(one.tokens, one.prompts, one.lengths, strict=True):
        cache = engine.new_cache()
        cache.prompt = int(prompt)
        engine.step(cache, tokens[:prompt])
        rows += [engine.step(cache, tokens[i : i + 1]).copy() for i in range(prompt, length)]
    return np.concatenate(rows)


class NoShift:
    """In the place of a random generator: answers begin at their first token, and routers decide as they are."""

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    def uniform(self, low: float, high: float, size: tuple[int, int]) -> np.ndarray:
        return np.zeros(size)

    logistic = uniform


def test_unified_is_trained_as_it_runs(network: Network, by_layer: Bundle) -> None:
    one = batch([9, 12], [20, 25])
    policy = make_policy(Settings("unified", ratio=0.34), LAYERS, WIDTH)
    logits = trained_logits(network, policy, one, NoShift())
    np.testing.assert_allclose(logits, runtime_logits(by_layer, policy.skip(), one, 64), atol=3e-4)


@pytest.mark.parametrize("levels", [2, 8])
def test_skipdecode_is_trained_as_it_runs(
    network: Network, by_layer: Bundle, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    """Over a fall of 16 tokens, so that an answer of 20 meets all of it, by two layers at a time and one by one."""
    monkeypatch.setattr("edge.runtime.skip.skipdecode.LEVELS", levels)
    monkeypatch.setattr("edge.runtime.skip.skipdecode.HORIZON", 16)
    monkeypatch.setattr("edge.export.tune.skipdecode.HORIZON", 16)
    one = batch([9, 12], [29, 32])
    policy = make_policy(Settings("skipdecode", span=(2, 5)), LAYERS, WIDTH)
    logits = trained_logits(network, policy, one, NoShift())
    np.testing.assert_allclose(logits, runtime_logits(by_layer, policy.skip(), one, 64), atol=3e-4)


def test_first_is_trained_as_it_runs(network: Network, by_layer: Bundle, tmp_path: Path) -> None:
    """Two prompts whose routers decide differently."""
    one = batch([9, 12], [20, 25])
    policy = make_policy(Settings("first", ratio=0.34, candidates=3), LAYERS, WIDTH)
    assert isinstance(policy, First)
    with torch.no_grad():
        policy.weights.copy_(torch.from_numpy(8 * np.random.default_rng(4).standard_normal(policy.weights.shape)))
        policy.bias[:3] = 0.0
    logits = trained_logits(network, policy, one, NoShift())
    assert len({tuple(gate) for gate in torch.stack(list(policy._gates.values())).T.tolist()}) == 2
    root = Path(shutil.copytree(by_layer.root, tmp_path / "routed.edge"))
    routed = in_units(Bundle(root, by_layer.manifest), 1, policy.routers())
    np.testing.assert_allclose(logits, runtime_logits(routed, "first", one, 64), atol=3e-4)


def test_ffn_is_trained_as_it_runs(network: Network, by_half: Bundle) -> None:
    """Prompts whose cosines choose different blocks, one of two; what is left out changes the answer."""
    one = batch([1, 2, 1, 3, 1, 1], [20, 25, 22, 24, 19, 23])
    policy = make_policy(Settings("ffn", ratio=0.17), LAYERS, WIDTH)
    assert isinstance(policy, FeedForward)
    logits = trained_logits(network, policy, one, NoShift())
    assert policy._out.sum(0).tolist() == [1.0] * 6 and len({tuple(out) for out in policy._out.T.tolist()}) > 1
    np.testing.assert_allclose(logits, runtime_logits(by_half, policy.skip(), one, 64), atol=3e-4)
    with torch.no_grad():
        whole = network.logits(network.tensors(one), None, adapted=False).numpy()
    assert np.abs(whole - logits).max() > 0.1


def test_routers_learn_from_what_a_layer_is_worth(network: Network, tmp_path: Path) -> None:
    policy = make_policy(Settings("first", ratio=0.34, candidates=3), LAYERS, WIDTH)
    assert isinstance(policy, First)
    tensors = network.tensors(batch([9, 12], [20, 25]))
    policy.prepare(network, [tensors], tmp_path, lambda *stage: None)
    assert int(torch.isfinite(policy.bias).sum()) == 3 and int((policy.bias < 0).sum()) == 2
    policy.begin(network, tensors, np.random.default_rng(1))
    student = network.logits(tensors, policy.gate)
    (divergence(network.logits(tensors, None, adapted=False).detach(), student)).backward()
    grad = policy.bias.grad
    assert grad is not None and int((grad != 0).sum()) == 3


def test_skipping_less_is_asked_for_where_too_much_is_left_out(network: Network) -> None:
    policy = make_policy(Settings("first", ratio=0.17, candidates=4, penalty=4.0), LAYERS, WIDTH)
    assert isinstance(policy, First)
    with torch.no_grad():
        policy.bias[:] = -1.0
    tensors = network.tensors(batch([9, 12], [20, 25]))
    policy.begin(network, tensors, NoShift())
    network.logits(tensors, policy.gate)
    penalty = policy.penalty()
    penalty.backward()
    assert float(penalty.detach()) == pytest.approx(4.0 * (3 / 6) ** 2)
    assert policy.bias.grad is not None and bool((policy.bias.grad < 0).all())


def test_the_text_itself_is_learnt_from_the_answers_alone(network: Network) -> None:
    one = batch([9, 12], [20, 25])
    tensors = network.tensors(one)
    with torch.no_grad():
        logits = network.logits(tensors, None).log_softmax(-1).numpy()
    wanted, row = [], 0
    for tokens, prompt, length in zip(one.tokens, one.prompts, one.lengths, strict=True):
        wanted += [-logits[row + i - prompt, tokens[i + 1]] for i in range(prompt, length - 1)]
        row += length - prompt
    assert float(likelihood(tensors, torch.from_numpy(logits))) == pytest.approx(np.mean(wanted), rel=1e-5)
    # The second of the two is the model's own answer.
    tensors = network.tensors(dataclasses.replace(one, given=np.array([True, False])))
    given = sum(wanted[: int(one.lengths[0] - one.prompts[0]) - 1]) / len(wanted)
    assert float(likelihood(tensors, torch.from_numpy(logits), given=True)) == pytest.approx(given, rel=1e-5)
    assert float(likelihood(tensors, torch.from_numpy(logits))) == pytest.approx(np.mean(wanted), rel=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            {"precision": "bf16"},
            marks=pytest.mark.skipif(not bfloat16.runs(), reason="PyTorch's bfloat16 crashes on this processor"),
        ),
        pytest.param(
            {"device": "cuda"}, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
        ),
    ],
)
def test_other_arithmetic_trains_alike(six_layers: Path, data: Path, tmp_path: Path, other: dict[str, str]) -> None:
    """And what is written is float32 all the same, and goes on after an interruption: bit for bit on a CPU."""
    place = {"device": other["device"]} if "device" in other else {}
    chosen = settings(data, **{key: value for key, value in other.items() if key != "device"})
    plain = run(six_layers, tmp_path / "plain", settings(data))
    losses = run(six_layers, tmp_path / "whole", chosen, **place)
    assert losses != plain
    np.testing.assert_allclose(losses, plain, rtol=0.05)
    with pytest.raises(Stopped):
        run(six_layers, tmp_path / "parts", chosen, stop=lambda step: step == 3, **place)
    run(six_layers, tmp_path / "parts", chosen, **place)
    files = [load_file(tmp_path / each / "model.safetensors") for each in ("whole", "parts")]
    assert all(tensor.dtype == np.float32 for tensor in files[0].values())
    for name, tensor in files[0].items():
        np.testing.assert_allclose(files[1][name], tensor, rtol=0, atol=1e-4 if place else 0, err_msg=name)


def test_both_losses_take_a_texts_likelihood_and_own_answers_for_what_they_are(
    six_layers: Path, data: Path, tmp_path: Path
) -> None:
    source = open_checkpoint(str(six_layers))
    chosen = settings(data, "unified", loss="both", steps=1)
    _, given = split(source, [data], chosen)
    _, own = split(source, [data], dataclasses.replace(chosen, data=tmp_path / "other"))
    assert all(e.given for e in given) and not any(e.given for e in own)
    losses = {
        loss: run(six_layers, tmp_path / loss, settings(data, "unified", loss=loss, steps=1))[0]
        for loss in ("distill", "lm", "both")
    }
    assert losses["both"] == pytest.approx(losses["distill"] + losses["lm"], rel=1e-4)


@pytest.mark.parametrize(
    ("policy", "stopped"), [("first", 4), ("first", 6), ("skipdecode", 4), ("unified", 4), ("ffn", 4)]
)
def test_a_resumed_run_ends_with_the_same_weights(
    policy: str, stopped: int, six_layers: Path, data: Path, tmp_path: Path
) -> None:
    """Stopped in the midst of training, or of what follows the last step."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    losses = run(six_layers, whole, settings(data, policy))
    with pytest.raises(Stopped):
        run(six_layers, halves, settings(data, policy), stop=lambda step: step == stopped, every=3)
    assert not halves.exists()
    assert run(six_layers, halves, settings(data, policy)) == losses[stopped:]
    names = ["model.safetensors", "tuning.json"] + ["routers.safetensors"] * (policy == "first")
    for name in names:
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name
    assert not (tmp_path / "halves.tuning").exists()


def test_two_runs_at_a_time_do_not_share_a_folder(six_layers: Path, data: Path, tmp_path: Path) -> None:
    chosen, out = settings(data, "unified", steps=2), tmp_path / "tuned"
    refused: list[str] = []

    def second(step: int) -> bool:
        for restart in (False, True):
            with pytest.raises(InputError, match="Another run is at work in .*tuned.tuning") as error:
                run(six_layers, out, chosen, restart=restart)
            refused.append(str(error.value))
        return False

    assert len(run(six_layers, out, chosen, stop=second)) == 2
    assert refused and (out / "model.safetensors").is_file() and not out.with_name("tuned.tuning").exists()


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("name", ["answers.jsonl", "checkpoint.part", "settings.json"])
def test_a_run_writes_through_no_link(tmp_path: Path, name: str, restart: bool) -> None:
    (tmp_path / "x.tuning").mkdir()
    (tmp_path / "x.tuning" / name).symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(InputError, match=f"holds a link, {name}; remove it"),
        working(tmp_path / "x.tuning", restart=restart),
    ):
        pytest.fail("it was used")


def test_training_brings_a_model_without_layers_nearer_to_itself(
    network: Network, six_layers: Path, data: Path, tmp_path: Path
) -> None:
    losses = run(six_layers, tmp_path / "tuned", settings(data, "unified", steps=40, rate=5e-3))
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    other = run(six_layers, tmp_path / "seed", settings(data, "unified", steps=1, seed=3))
    assert other[0] != losses[0]


@pytest.fixture(scope="module")
def tuned(six_layers: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "tuned"
    run(six_layers, out, settings(data))
    return out


def test_a_tuned_model_becomes_a_bundle_with_its_routers(tuned: Path, tmp_path: Path) -> None:
    bundle = edge.export(tuned, tmp_path / "tuned.edge", weights="fp32", segments=1, check=False)
    kept = np.load(bundle.path(bundle.manifest.routers or ""))
    np.testing.assert_array_equal(kept, load_file(tuned / "routers.safetensors")["routers"])
    assert json.loads((tuned / "tuning.json").read_text())["explained"] == 0  # twelve sequences teach nothing
    text = edge.load(bundle.root, skip="first", context=100)
    assert isinstance(text, edge.Model)
    assert text.generate("The moon", edge.GenerateOptions(max_tokens=5)).generated_tokens


@pytest.mark.parametrize(("own", "seen"), [(9, 6), (4, 4), (0, 0)])
def test_routers_are_fitted_to_the_models_own_answers_first(
    six_layers: Path, tmp_path: Path, own: int, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And to text from outside where these are too few."""
    monkeypatch.setattr(trainer_module, "FINISHED_BY", 6)
    network = Network(open_checkpoint(str(six_layers)), rank=4, seed=0, device="cpu", bf16=False)
    policy = make_policy(Settings("unified", ratio=0.34), LAYERS, WIDTH)
    looked = list[bool]()

    def finish(network: Network, tensors: Iterable[Tensors]) -> dict[str, float]:
        for each in tensors:
            looked.extend(bool(tokens[0] < 100) for tokens in each.tokens)
        return {}

    monkeypatch.setattr(policy, "finish", finish)
    examples = [Example(np.arange(20, 40), 10, given=False)] * own + [Example(np.arange(120, 140), 10)] * 9
    trainer = Trainer(network, policy, examples, settings(None, "unified", steps=1), tmp_path, 9)
    trainer.finish(lambda: False, lambda *stage: None)
    assert len(looked) == 6 and sum(looked) == seen


def test_adapters_are_merged_into_the_weights(six_layers: Path, tuned: Path, data: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(six_layers))
    fresh = Network(checkpoint, rank=4, seed=0, device="cpu", bf16=False)
    examples = [Example(np.arange(20, 60), 10)] * 3
    policy = make_policy(Settings("unified", ratio=0.34), LAYERS, WIDTH)
    trainer = Trainer(fresh, policy, examples, settings(None, "unified", steps=4, rate=1e-2, loss="lm"), tmp_path, 9)
    trainer.run(lambda: False, lambda *stage: None, lambda step: None)
    tensors, deltas = fresh.tensors(batch([9], [20])), fresh.deltas()
    with torch.no_grad():
        adapted = fresh.logits(tensors, None).numpy()
    merged = Network(checkpoint, rank=4, seed=0, device="cpu", bf16=False)
    weights = dict(merged._peft.base_model.model.named_parameters())
    assert len(deltas) == 7 * LAYERS
    for name, delta in deltas.items():
        weights[name.replace(".weight", ".base_layer.weight")].data += torch.from_numpy(delta)
    with torch.no_grad():
        np.testing.assert_allclose(merged.logits(tensors, None, adapted=False).numpy(), adapted, atol=1e-4)
    own, tokenizer = open_checkpoint(str(tuned)), checkpoint.tokenizer
    assert own.tokenizer == tokenizer
    name = "model.layers.0.mlp.up_proj.weight"
    assert not np.array_equal(own.read(name), checkpoint.read(name))


def test_routers_of_other_units_are_left_out_with_a_sentence(tuned: Path, tmp_path: Path) -> None:
    said: list[str] = []
    out = tmp_path / "halves.edge"
    bundle = edge.export(tuned, out, weights="fp32", segments="ffn", check=False, say=said.append)
    assert bundle.manifest.routers is None and any("--segments 1" in sentence for sentence in said)


def test_routers_of_another_model_are_refused(tuned: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tuned, tmp_path / "other"))
    save_file({"routers": np.zeros((9, 65), np.float32)}, other / "routers.safetensors")
    with pytest.raises(CheckpointError, match="routers of another model"):
        edge.export(other, tmp_path / "other.edge", weights="fp32", segments=1)
    (other / "routers.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="cannot be read as routers"):
        edge.export(other, tmp_path / "other.edge", weights="fp32", segments=1)


def test_routers_that_were_fitted_to_other_weights_are_refused(tuned: Path, tmp_path: Path) -> None:
    """Of a model of the same size, which their shape does not tell."""
    other = Path(shutil.copytree(tuned, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="routers of another model: they were fitted to other weights"):
        edge.export(other, tmp_path / "other.edge", weights="fp32", segments=1, check=False)
    assert not (tmp_path / "other.edge").exists()


def test_batches_hang_on_seed_and_number_alone() -> None:
    examples = [Example(np.arange(n, 2 * n), None if n % 2 else n // 3) for n in range(40, 75)]
    run = batches(examples, 4, seed=5)
    all_of_them = [next(run) for _ in range(20)]
    from_there = batches(examples, 4, seed=5, start=13)
    for one in all_of_them[13:]:
        np.testing.assert_array_equal(one.tokens, next(from_there).tokens)
    epoch = {int(tokens[0]) for one in all_of_them[:8] for tokens in one.tokens}
    assert len(epoch) == 32  # nothing twice
    assert all(one.prompts.min() >= 8 and (one.lengths - one.prompts >= 8).all() for one in all_of_them)


def test_lines_that_hold_nothing_usable_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    rows = ["no JSON", "[1]", '{"text": "short"}', '{"prompt": "a", "answer": ""}', json.dumps({"text": "x" * 50})]
    path.write_text("\n".join([*rows, json.dumps({"prompt": "pp", "answer": "a" * 9})]))

    def encode(text: str) -> list[int]:
        return [ord(c) for c in text]

    found = read_examples(path, encode, encode, [7], 40)
    assert [(len(e.tokens), e.prompt) for e in found] == [(40, None), (12, 2)]
    assert found[1].tokens[-1] == 7


def test_a_line_ends_where_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"  # as models write them: with characters at which Python breaks lines, too
    path.write_text(json.dumps({"text": "one\u2028two\x85three"}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert [row.text for row in read_rows(path)] == ["one\u2028two\x85three"]


def test_every_piece_of_a_text_begins_as_the_model_reads_texts(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcdefgh" * 12)

    def encode(text: str) -> list[int]:
        return [ord(c) for c in text]

    found = read_examples(path, encode, encode, [7], 41, [2])
    assert [len(e.tokens) for e in found] == [41, 41]  # the last 16 tokens are too few
    assert [e.tokens[:2].tolist() for e in found] == [[2, ord("a")], [2, ord("a")]]


def test_texts_begin_with_the_models_first_token_where_it_adds_one(six_layers: Path, data: Path) -> None:
    checkpoint = open_checkpoint(str(six_layers))
    own = checkpoint.tokenizer
    asked = settings(data)
    for adds in (False, True):
        with_first = dataclasses.replace(own, tokens=dataclasses.replace(own.tokens, add_bos=adds, bos=1))
        source: Any = SimpleNamespace(tokenizer=with_first)
        _, examples = split(source, [data], asked)
        texts = [int(e.tokens[0]) for e in examples if e.prompt is None]
        assert len(texts) == 6 and all((first == 1) == adds for first in texts)
        assert not adds or all(e.tokens[0] == 1 != e.tokens[1] for e in examples)  # once, where the template has it too


def test_a_model_answers_its_own_training_prompts(six_layers: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    rows = [{"text": "The moon"}, {"prompt": "A train"}, {"prompt": "Summarize: {previous}"}, {"prompt": "Tea"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    given: dict[str, Any] = {"options": drawn(24, 1.0, 3), "threads": 1, "progress": lambda *stage: None}
    answer_all(str(six_layers), read_prompts(path), out, **given)
    lines = out.read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    assert answers[0]["text"].startswith("The moon") and len(answers[0]["text"]) > 8
    assert answers[1]["answer"] and answers[2]["prompt"] == f"Summarize: {answers[1]['answer']}"
    assert answers[3]["prompt"] == "Tea" and answers[3]["answer"] not in ("", answers[1]["answer"])
    out.write_text(lines[0] + "\n" + lines[1][:9])  # as a run leaves it that was killed while it wrote
    answer_all(str(six_layers), read_prompts(path), out, **given)
    assert out.read_text().splitlines() == lines
    likeliest = [tmp_path / f"likeliest{seed}.jsonl" for seed in (3, 4)]
    for seed, path_of_seed in zip((3, 4), likeliest, strict=True):
        answer_all(str(six_layers), read_prompts(path), path_of_seed, **given | {"options": drawn(24, 0.0, seed)})
    assert likeliest[0].read_bytes() == likeliest[1].read_bytes() != out.read_bytes()


def test_ctrl_c_keeps_a_checkpoint_and_says_so(
    six_layers: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, step = tmp_path / "tuned", Trainer._step

    def interrupted(self: Trainer, batch: Any) -> Any:
        if self.done == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    command = ["tune", str(six_layers), "--policy", "unified", "--data", str(data), "--steps", "5", "--length", "64"]
    command += ["--rank", "4", "--precision", "fp32", "-o", str(out)]
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Trainer, "_step", interrupted)
    assert main(command) == 130
    assert "interrupted after step 3 of 5" in capfd.readouterr().err.replace("\n", " ")
    assert not out.exists() and signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(Trainer, "_step", step)
    assert main([*command, "--rate", "0.01"]) == 2
    assert "other settings (rate)" in capfd.readouterr().err
    assert main(command) == 0 and out.exists()
    assert main(command) == 2
    assert "exists" in capfd.readouterr().err


def test_ctrl_c_behind_the_last_step_is_heard_at_once(
    six_layers: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, write = tmp_path / "tuned", result.write_result

    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write(*args)

    command = ["tune", str(six_layers), "--policy", "unified", "--data", str(data), "--steps", "2", "--length", "64"]
    command += ["--rank", "4", "--precision", "fp32", "-o", str(out)]
    monkeypatch.setattr(result, "write_result", interrupted)
    assert main(command) == 130
    assert "interrupted at once; the same command goes on" in capfd.readouterr().err.replace("\n", " ")
    assert not out.exists()
    monkeypatch.setattr(result, "write_result", write)
    assert main(command) == 0 and out.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policy", "sorted"], "no policy 'sorted'"),
        (["--policy", "first", "--ratio", "1.5"], "1.5 is no share"),
        (["--policy", "unified", "--ratio", "0"], "0 is no share"),
        (["--policy", "unified", "--layers", "3-5"], "belongs to skipdecode"),
        (["--policy", "skipdecode", "--ratio", "0.2"], "belongs to ffn, first, unified"),
        (["--policy", "skipdecode", "--layers", "5-3"], "5-3 does not go"),
        (["--policy", "skipdecode", "--layers", "3-9"], "no more than the model's 6"),
        (["--policy", "skipdecode", "--layers", "many"], "no range of layers"),
        (["--policy", "first", "--unit", "0"], "The unit must be 1 or more, not 0"),
        (["--policy", "first", "--penalty", "-1"], "The penalty must be 0 or more, not -1.0"),
        (["--policy", "first", "--temperature", "-0.1"], "The temperature must be a number between 0 and 10, not -0.1"),
        (["--policy", "unified", "--candidates", "3"], "unified has no routers"),
        (["--policy", "first", "--steps", "0"], "The steps must be 1 or more"),
        (["--policy", "first", "--rate", "2"], "The rate must be a number between 0 and 1, not 2.0"),
        (["--policy", "first", "--loss", "mse"], "The loss must be one of distill, lm, both, not 'mse'"),
        (["--policy", "first", "--device", "tpu"], "no device 'tpu'"),
        (["--policy", "first", "--data", "EMPTY"], "no usable lines"),
        (["--policy", "first", "--data", "/nowhere.jsonl"], "cannot be read"),
        (["--policy", "first", "--prompts", "EMPTY"], "holds no prompts"),
        ([], "without --policy"),
    ],
)
def test_what_cannot_be_tuned_gets_a_sentence(
    options: list[str], sentence: str, six_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": "too short"}\n{"nothing": 1}\n')
    if "--prompts" in options:
        (tmp_path / "empty.jsonl").write_text("{}\n")
    options = [str(tmp_path / "empty.jsonl") if option == "EMPTY" else option for option in options]
    assert main(["tune", str(six_layers), *options, "-o", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_peft_tuning_names_its_extra(
    six_layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["tune", str(six_layers), "--policy", "first", "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"edge: Tuning needs peft; install it with: {install('tune')}\n"


def test_a_recipe_holds_options_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('model = "x"\npolicy = "first"\nratio = 0.2\ndata = "d.jsonl"\n')
    assert read_recipe(path)["data"] == tmp_path / "d.jsonl"
    for wrong in ('skip = "first"', 'steps = "many"', "steps = true", "steps = "):
        path.write_text(wrong)
        with pytest.raises(InputError):
            read_recipe(path)


def test_the_recipes_that_come_along_can_be_used() -> None:
    from edge import catalog

    folder = Path(str(files("edge.models"))) / "recipes"
    recipes = sorted(folder.glob("*.toml"))
    assert recipes
    for path in recipes:
        recipe = read_recipe(path)
        assert catalog.find(recipe["model"]) is not None
        assert all(recipe[name].is_file() for name in ("data", "prompts") if name in recipe)
    assert len(read_prompts(folder / "prompts.jsonl")) == 328  # as the documentation says


def test_a_layer_that_does_nothing_is_missed_least(six_layers: Path, tmp_path: Path) -> None:
    """Layers 2 and 4 add nothing to the stream; a search that was interrupted goes on from its notes."""
    network = Network(open_checkpoint(str(six_layers)), rank=4, seed=1, device="cpu", bf16=False)
    for layer in (2, 4):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            network._peft.get_parameter(f"base_model.model.model.layers.{layer}.{name}.base_layer.weight").data.zero_()
    tensors = network.tensors(batch([9, 12], [20, 25]))
    asked: list[tuple[int, int]] = []

    def progress(done: int, total: int, text: str) -> None:
        if done == 5 and len(asked) == 5:
            raise KeyboardInterrupt
        asked.append((done, total))

    search = network, [(1,), (2,), (3,), (4,)], 3, [tensors], tmp_path / "notes.json", progress
    with pytest.raises(KeyboardInterrupt):
        least_missed(*search)
    asked.append((-1, -1))
    order = least_missed(*search)
    assert set(order[:2]) == {1, 3} and order[2] in (0, 2)
    assert asked == [(i, 7) for i in range(5)] + [(-1, -1)] + [(i, 7) for i in range(5, 7)]
