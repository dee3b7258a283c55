"""How long an export is said to take before it begins, and what the command says of it."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gguf_files import tiny_model, write_gguf

from edge.cli.export import stages
from edge.cli.main import main
from edge.cli.progress import Countdown
from edge.errors import CheckpointError
from edge.export import checkpoint
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.tensors import FLOATS, Format
from edge.export.request import expected
from edge.export.request.choices import count_weights
from edge.export.request.expected import PRODUCTS, crowd
from edge.export.request.export_request import ExportRequest
from edge.export.request.forecast import forecast
from edge.export.request.glance import Glance, glance_at
from edge.export.request.timeline import Stages

SMOLLM2 = dict(hidden=576, inner=1536, layers=30, vocabulary=49_152)
TINY = dict(hidden=64, inner=96, layers=2, vocabulary=300)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fast as the one that was measured."""
    monkeypatch.setattr(expected, "speed", lambda: PRODUCTS)
    monkeypatch.setattr(expected, "usable_cores", lambda: expected.CORES)


def llama(*, hidden: int, inner: int, layers: int, vocabulary: int, kind: str = "F16", where: str = "") -> Glance:
    shapes: dict[str, tuple[int, ...]] = {f"{where}embed_tokens.weight": (vocabulary, hidden)}
    for i in range(layers):
        for name in "qkvo":
            shapes[f"{where}layers.{i}.self_attn.{name}_proj.weight"] = (hidden, hidden)
        for name, shape in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
            shapes[f"{where}layers.{i}.mlp.{name}_proj.weight"] = shape
        shapes[f"{where}layers.{i}.norm.weight"] = (hidden,)
    return Glance("some-model", "directory", shapes, dict.fromkeys(shapes, kind))


def forecast_of(model: Glance, weights: str | None = None, **asked: Any) -> tuple[str, Stages]:
    found = forecast(ExportRequest("some-model", weights=weights, **{"candidates": True, **asked}), model)
    assert found is not None
    return found


def seconds(model: Glance, weights: str | None = None, **asked: Any) -> float:
    return sum(each for _, each in forecast_of(model, weights, **asked)[1])


@pytest.mark.parametrize(
    ("kind", "larger"),
    [
        ("F16", ", makes a bundle that is 1.7 times as large"),
        ("Q4_1", ""),  # of a GGUF file, whose precision both keep
    ],
)
def test_quick_is_named_with_its_time_and_its_size_where_it_helps(kind: str, larger: str) -> None:
    sentence, _ = forecast_of(llama(**SMOLLM2, kind=kind))
    assert re.fullmatch(
        rf"This takes about \d+ min; --effort quick takes about \d+ s{re.escape(larger)} and prepares nothing for "
        r"drafts\.",
        sentence,
    ), sentence


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        (TINY, {}),  # seconds either way
        (TINY, {"weights": "int8"}),
        (SMOLLM2, {"effort": "quick"}),
        (SMOLLM2, {"effort": "quick", "weights": "int4"}),
        *((SMOLLM2, {option: value}) for option, value in (("bits", 5.2), ("symmetric", True), ("perplexity", 1.05))),
    ],
)
def test_quick_is_not_named_where_it_would_not_help_or_is_refused(model: dict[str, int], asked: dict[str, Any]) -> None:
    sentence, _ = forecast_of(llama(**model), **asked)
    assert "quick" not in sentence and sentence.startswith("This takes ")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"weights": "int4"}, "calibrates on less text and prepares nothing for drafts."),
        ({"weights": "int4", "candidates": False, "draft_text": 0}, "and calibrates on less text."),
        ({"weights": "int4", "bits": 4.8}, "calibrates on less text and prepares nothing for drafts."),
        ({"weights": "int8"}, "s and prepares nothing for drafts."),
        ({"effort": "best"}, "makes a bundle that is 1.6 times as large and prepares nothing for drafts."),
    ],
)
def test_what_quick_does_without_is_said(asked: dict[str, Any], said: str) -> None:
    sentence, _ = forecast_of(llama(**SMOLLM2), **asked)
    assert "; --effort quick takes about" in sentence and sentence.endswith(said), sentence


class Folder(Glance):
    """A folder whose matrices are stored in blocks of integers that fit, or not at all."""

    root = Path("some-model")

    def form(self, name: str) -> Any:
        return None if self.types[name] in FLOATS else Format(8, 32)


@pytest.mark.parametrize(("quantized", "larger"), [("MXFP4", "1.7"), ("bitsandbytes-8", "1.6")])
def test_what_a_quantized_folder_left_in_floats_counts_as_8_bits(quantized: str, larger: str) -> None:
    """Half of the weights of a model whose bundle of the effort best has 5.2 bits a weight."""
    plain = llama(**SMOLLM2, kind="BF16")
    types = {name: quantized if ".mlp." in name else "BF16" for name in plain.shapes}
    folder = Folder("some-model", "directory", plain.shapes, types)
    sentence, _ = forecast_of(folder, effort="best")
    assert f"makes a bundle that is {larger} times as large" in sentence


def test_a_target_whose_graphs_nobody_timed_is_named() -> None:
    sentence, _ = forecast_of(llama(**SMOLLM2), target="npu-qualcomm")
    assert re.match(r"This takes about \d+ min, and longer for the graphs for npu-qualcomm; --effort", sentence)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts.3.up_proj.weight", "blk.0.ffn_up_exps.weight",
                                  "model.layers.0.block_sparse_moe.input_linear.weight"])  # fmt: skip
def test_models_with_experts_are_not_estimated(name: str) -> None:
    model = llama(**SMOLLM2)
    shapes = {**model.shapes, name: (8, 64, 64)}
    assert (
        forecast(ExportRequest("some-model"), Glance("some-model", "gguf", shapes, dict.fromkeys(shapes, "F16")))
        is None
    )


def test_what_nobody_measured_is_not_estimated() -> None:
    assert forecast(ExportRequest("some-model", weights="fp32"), llama(**SMOLLM2)) is None


@pytest.mark.parametrize("seed", range(12))
def test_an_estimate_is_sane_for_any_model(seed: int) -> None:
    """It takes no stage less than no time, grows with the model and with the effort, and shrinks with the machine."""
    draw = random.Random(seed)
    hidden = draw.choice([32, 256, 2048])
    sizes = dict(hidden=hidden, inner=draw.choice([2, 4]) * hidden, layers=draw.randint(1, 40), vocabulary=30_000)
    both = draw.random() < 0.3
    small, large = (
        llama(**{**sizes, "layers": layers}, where="model.encoder." if both else "")
        for layers in (sizes["layers"], 2 * sizes["layers"])
    )
    weights = "int8" if both else draw.choice(["int4", "int8"])
    asked = {"draft_text": draw.choice([None, 0, 4000])}
    for effort in ("quick", "normal", "best"):
        stages = forecast_of(small, weights, effort=effort, **asked)[1]
        assert all(0 <= each < 1e6 for _, each in stages), stages
        assert 1 < seconds(small, weights, effort=effort, **asked) < seconds(large, weights, effort=effort, **asked)
    quick, normal, best = (seconds(small, weights, effort=each, **asked) for each in ("quick", "normal", "best"))
    assert quick <= normal <= best
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected, "speed", lambda: PRODUCTS / 4)
        assert seconds(small, weights, **asked) == pytest.approx(4 * normal)


@pytest.mark.parametrize(
    ("load", "cores", "own", "longer"),
    [(0, 2, 2, 1), (2, 2, 2, 2), (17, 2, 2, 9.5), (30, 64, 2, 1), (64, 64, 64, 2), (0.4, 8, 1, 1)],
)
def test_a_busy_machine_is_expected_to_take_longer(load: float, cores: int, own: int, longer: float) -> None:
    assert crowd(load, cores, own) == pytest.approx(longer)


def parts_of(folder: Path) -> Path:
    """The folder's weights in two files."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    names = list(tensors)
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("form", ["folder", "parts", "gguf"])
def test_a_glance_sees_the_tensors_that_the_model_has(form: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    if form == "gguf":
        path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    else:
        path = Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))
        path = parts_of(path) if form == "parts" else path
    glance, model = glance_at(str(path)), open_checkpoint(str(path))
    assert glance is not None and (glance.name, glance.kind) == (model.name, model.kind)
    assert sorted(glance.shapes.values()) == sorted(model.shape(name) for name in model.names())
    assert count_weights(glance) == count_weights(model)
    assert set(glance.types.values()) == {model.stored_type(name) for name in model.names()}
    assert glance.config["is_encoder_decoder"] is False


def test_a_glance_knows_nothing_of_what_is_not_here_or_not_the_model_itself(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert glance_at("someone/some-model") is glance_at(str(tmp_path)) is glance_at("no such thing") is None
    quantized = Path(shutil.copytree(tiny_checkpoint, tmp_path / "quantized"))
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert glance_at(str(quantized)) is None


@pytest.mark.parametrize("seed", range(30))
def test_a_glance_at_a_damaged_model_leaves_the_sentence_to_who_opens_it(
    seed: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))
    file = folder / draw.choice(["config.json", "model.safetensors"])
    content = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 20)):
        content[draw.randrange(min(len(content), 2000))] = draw.randrange(256)
    file.write_bytes(content[: draw.choice([len(content), draw.randrange(40)])])
    if (glance := glance_at(str(folder))) is not None:
        forecast(ExportRequest(folder), glance)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stopped(*_: object, **__: object) -> None:
    raise CheckpointError("No further.")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_command_says_how_long_it_takes_before_the_checkpoint_is_opened(
    terminal: bool, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(checkpoint, "open_checkpoint", stopped)
    assert main(["export", str(tiny_checkpoint), "-o", str(tmp_path / "x.edge")]) == 2
    first, *_ = re.findall(r"This takes .*\.", shown.getvalue())
    assert re.fullmatch(r"This takes (a few seconds|about \d+ s)\.", first)
    assert ("left" in shown.getvalue()) is terminal


def test_a_terminal_counts_down_while_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, countdown, left = Terminal(), Countdown(), [0.0]
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")

    def wait_for(text: str) -> None:
        late = time.monotonic() + 30  # it is drawn ten times a second
        while text not in shown.getvalue():
            assert time.monotonic() < late, shown.getvalue()
            time.sleep(0.02)

    with stages(countdown) as (progress, _):
        progress(1, 3, "checking against the model in float32")
        wait_for("0:00:0")  # of this stage, while nothing else is known
        countdown.left = lambda: left[0]
        progress(1, 3, "checking against the model in float32 · about 7 min left")
        for left[0], words in (
            (7000.0, "about 2 h"),
            (250.0, "about 4 min"),
            (35.0, "about 40 s"),
            (0, "a few seconds"),
        ):
            wait_for(f"{words} left")
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", shown.getvalue()))
    assert max(map(len, lines)) <= 80 and not [line for line in lines if line.count(" left") > 1]
