"""What bad input gets: one sentence, exit status 2, and nothing half-written at the target."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.bundle import Bundle
from edge.cli.main import main
from edge.manifest import sealed

Refused = Callable[..., str]
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits and signals")


def sentence_of(status: int | None, out: str, err: str) -> str:
    """The sentence of a refusal; everything else about it is asserted here."""
    *before, sentence = err.splitlines() or [""]
    assert status == 2, err
    assert out == ""
    assert not [line for line in before if line.startswith(("edge: ", "Traceback"))], err
    assert sentence.startswith("edge: "), err
    return sentence.removeprefix("edge: ")


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs the command; gives the sentence that it was refused with."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def run(*args: object) -> str:
        capfd.readouterr()
        status = main([str(arg) for arg in args])
        return sentence_of(status, *capfd.readouterr())

    return run


def refused_apart(prepare: str, *args: object) -> str:
    """The same in a process of its own, where `prepare` runs first."""
    script = f"{prepare}\nimport sys\nfrom edge.cli.main import main\nsys.exit(main())"
    command = [sys.executable, "-c", script, *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return sentence_of(result.returncode, result.stdout, result.stderr)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that the test may harm, in a folder that holds nothing else."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "sources" / "tiny"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where an export is to write; its folder exists and is empty."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "x.edge"


# Bundles that were harmed

COMMANDS = pytest.mark.parametrize("command", ["run", "verify", "inspect"])


def on(command: str, bundle: Path) -> list[object]:
    """The arguments of a command on a bundle: `run` gets a prompt too."""
    return [command, bundle, *(["Hello"] if command == "run" else [])]


@COMMANDS
def test_no_bundle(refused: Refused, command: str, tmp_path: Path) -> None:
    missing = tmp_path / "none.edge"
    assert f"There is no bundle at {missing}" in refused(*on(command, missing))


@COMMANDS
@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json", "graphs/decoder.onnx", "golden.json", "edge.json"])
def test_a_missing_or_truncated_file_of_a_bundle(
    refused: Refused, command: str, name: str, tiny_bundle: Bundle
) -> None:
    path = tiny_bundle.path(name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert str(path) in refused(*on(command, tiny_bundle.root))
    path.unlink()
    assert path.name in refused(*on(command, tiny_bundle.root))


@pytest.mark.parametrize("command", ["run", "verify"])  # inspect reads the manifest alone
@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json", "graphs/decoder.onnx", "golden.json"])
def test_one_flipped_byte(refused: Refused, command: str, name: str, tiny_bundle: Bundle) -> None:
    path = tiny_bundle.path(name)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert str(path) in refused(*on(command, tiny_bundle.root))


@COMMANDS
def test_one_flipped_byte_of_the_manifest(refused: Refused, command: str, tiny_bundle: Bundle) -> None:
    path = tiny_bundle.root / "edge.json"
    context = f'"context": {tiny_bundle.manifest.context}'.encode()
    data = path.read_bytes()
    assert data.count(context) == 1
    path.write_bytes(data.replace(context, context[:-1] + bytes([context[-1] ^ 1])))
    assert f"{path} is damaged" in refused(*on(command, tiny_bundle.root))


def edit_manifest(bundle: Bundle, **fields: object) -> None:
    path = bundle.root / "edge.json"
    path.write_text(sealed(json.loads(path.read_text()) | fields))


@COMMANDS
def test_a_manifest_of_a_newer_version(refused: Refused, command: str, tiny_bundle: Bundle) -> None:
    edit_manifest(tiny_bundle, format_version=3)
    sentence = refused(*on(command, tiny_bundle.root))
    assert "format version 3, and this edge reads 2; upgrade edge" in sentence


@COMMANDS
@pytest.mark.parametrize("path", ["../../secret.onnx", "/etc/hostname"])
def test_a_path_that_leads_out_of_the_bundle(refused: Refused, command: str, path: str, tiny_bundle: Bundle) -> None:
    edit_manifest(tiny_bundle, graphs=[{"role": "decoder", "path": path}])
    assert f"{path!r}, which leads out of the bundle" in refused(*on(command, tiny_bundle.root))


@pytest.mark.parametrize("options", [["--raw"], ["--json"], ["--raw", "--json"]])
def test_an_empty_prompt(refused: Refused, tiny_bundle: Bundle, options: list[str]) -> None:
    assert "prompt is empty" in refused("run", tiny_bundle.root, "", *options)


# Checkpoints


@pytest.fixture
def not_exported(refused: Refused, target: Path) -> Refused:
    """Exports; gives the sentence that it was refused with. That it leaves nothing is asserted here."""

    def export(source: object, *options: str) -> str:
        sentence = refused("export", source, "-o", target, *options)
        assert names(target.parent) == []
        return sentence

    return export


def configure(checkpoint: Path, changes: dict[str, Any]) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def add_tensor(checkpoint: Path, name: str, shape: tuple[int, ...]) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    save_file({**tensors, name: torch.ones(shape)}, checkpoint / "model.safetensors")


def test_a_source_that_is_nothing(not_exported: Refused) -> None:
    assert "no-such-model" in not_exported("./no-such-model")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_of_a_checkpoint(not_exported: Refused, checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert str(checkpoint) in not_exported(checkpoint, "--weights", "fp32")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_truncated_file_of_a_checkpoint(not_exported: Refused, checkpoint: Path, name: str) -> None:
    data = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(data[: len(data) // 2])
    assert name in not_exported(checkpoint, "--weights", "fp32")


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_size", 128), ("head_dim", 32), ("intermediate_size", 96), ("vocab_size", 400)]
)
def test_tensors_that_do_not_match_the_config(not_exported: Refused, checkpoint: Path, field: str, value: int) -> None:
    configure(checkpoint, {field: value})
    sentence = not_exported(checkpoint, "--weights", "fp32")
    assert re.search(r"model\.\w+|lm_head", sentence), sentence


@pytest.mark.parametrize("layers", [3, 1 << 40])
def test_more_layers_than_the_tensors_are_of(not_exported: Refused, checkpoint: Path, layers: int) -> None:
    configure(checkpoint, {"num_hidden_layers": layers})
    sentence = not_exported(checkpoint, "--weights", "fp32")
    assert f"config.json gives num_hidden_layers as {layers}, and the weights are of 2 layers" in sentence


@pytest.mark.parametrize(
    ("changes", "name", "shape"),
    [
        ({"num_hidden_layers": 1}, None, ()),
        ({}, "model.layers.0.self_attn.q_proj.bias", (64,)),
        ({}, "model.layers.0.input_layernorm.bias", (64,)),
    ],
)
def test_tensors_without_a_place_in_the_config(
    not_exported: Refused, checkpoint: Path, changes: dict[str, int], name: str | None, shape: tuple[int, ...]
) -> None:
    configure(checkpoint, changes)
    if name is not None:
        add_tensor(checkpoint, name, shape)
    sentence = not_exported(checkpoint, "--weights", "fp32")
    assert f"{checkpoint} holds the tensor '{name or 'model.layers.1.'}" in sentence
    assert "for which its configuration has no place" in sentence


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("hidden_size", 0),
        ("num_attention_heads", 0),
        ("hidden_act", "foo"),
        ("num_key_value_heads", 0),
    ],
)
def test_values_that_no_model_can_have(not_exported: Refused, checkpoint: Path, field: str, value: int | str) -> None:
    configure(checkpoint, {field: value})
    sentence = not_exported(checkpoint, "--weights", "fp32")
    assert str(checkpoint / "config.json") in sentence
    assert f"{field} as {value}" in sentence if isinstance(value, int) else repr(value) in sentence


def test_a_context_that_no_model_has(not_exported: Refused, checkpoint: Path) -> None:
    configure(checkpoint, {"max_position_embeddings": 1})
    sentence = not_exported(checkpoint, "--weights", "fp32")
    assert "gives it a context of 1 tokens, and no model has less than 16" in sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("options", [("--weights", "fp32", "--no-check"), ("--weights", "int4")])
def test_weights_that_are_no_numbers(
    not_exported: Refused, checkpoint: Path, value: float, name: str, options: tuple[str, ...]
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    tensors[name].view(-1)[7] = value
    save_file(tensors, checkpoint / "model.safetensors")
    sentence = not_exported(checkpoint, *options)
    assert f"{checkpoint / 'model.safetensors'}: the tensor '{name}' holds NaN or infinity" in sentence


@pytest.mark.parametrize("weights", ["fp32", "fp16"])
def test_a_block_size_for_weights_without_blocks(not_exported: Refused, checkpoint: Path, weights: str) -> None:
    sentence = not_exported(checkpoint, "--weights", weights, "--block-size", "32", "--no-check")
    assert f"--block-size 32 does not apply to {weights} weights" in sentence


def test_an_unknown_family_names_the_command_that_lists_the_known_ones(
    not_exported: Refused, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(checkpoint, {"model_type": "unheard_of"})
    sentence = not_exported(checkpoint)
    assert "unheard_of" in sentence and "`edge models families`" in sentence
    assert main(["models", "families"]) == 0
    listed = capfd.readouterr().out
    assert "llama" in listed and "qwen3" in listed and "unheard_of" not in listed


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_truncated_gguf(not_exported: Refused, tmp_path: Path, share: float) -> None:
    import gguf
    import numpy as np

    whole = tmp_path / "whole.gguf"
    writer = gguf.GGUFWriter(whole, "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.ones((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    cut = tmp_path / "cut.gguf"
    data = whole.read_bytes()
    cut.write_bytes(data[: int(len(data) * share)])
    assert "cut.gguf" in not_exported(cut)


# Exports that cannot end well


def test_a_target_that_exists(refused: Refused, checkpoint: Path, target: Path) -> None:
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    assert "exists already" in refused("export", checkpoint, "-o", target)
    assert "is not a bundle" in refused("export", checkpoint, "-o", target, "--force")
    assert names(target) == ["notes.txt"]


@needs_posix
@pytest.mark.parametrize("room", [0, 100_000])
def test_a_disk_that_fills_up_during_export(refused: Refused, checkpoint: Path, target: Path, room: int) -> None:
    # A limit on the size of any file: the write fails in the kernel as on a full disk, with another number.
    prepare = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))"
    sentence = refused_apart(prepare, "export", checkpoint, "-o", target, "--weights", "fp32", "--no-check")
    assert f"{target} could not be written: File too large; nothing was left there." == sentence
    assert names(target.parent) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_as_such(
    not_exported: Refused, checkpoint: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        """Sends what is written to weights.bin to a device that is always full."""
        return opened(Path("/dev/full") if path.name == "weights.bin" else path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    sentence = not_exported(checkpoint, "--weights", "fp32", "--no-check")
    assert sentence == f"{target} could not be written: No space left on device; nothing was left there."


@pytest.mark.skipif(shutil.which("mount") is None or os.name != "posix" or os.geteuid() != 0, reason="only root mounts")
def test_a_small_disk_fills_up(refused: Refused, checkpoint: Path, target: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(target.parent)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        sentence = refused("export", checkpoint, "-o", target, "--weights", "fp32", "--no-check")
        assert sentence == f"{target} could not be written: No space left on device; nothing was left there."
        assert names(target.parent) == []
    finally:
        subprocess.run(["umount", str(target.parent)], check=True)


@needs_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export(checkpoint: Path, target: Path, number: int) -> None:
    # It stops where weights are being written, so that there is something to leave behind.
    prepare = (
        "import sys, time\n"
        "from edge.bundle import BundleWriter\n"
        "add = BundleWriter.add_tensor\n"
        "def slow(self, name, array):\n"
        "    span = add(self, name, array)\n"
        "    time.sleep(0.5)\n"
        "    return span\n"
        "BundleWriter.add_tensor = slow\n"
        "from edge.cli.main import main\n"
        "sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", prepare, "export", str(checkpoint), "-o", str(target), "--no-check"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(target.parent.glob(".*.part/weights.bin")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error
    assert error.splitlines()[-1] == f"edge: The export was interrupted; nothing was left at {target}."
    assert names(target.parent) == []


@needs_posix
def test_a_folder_without_the_right_to_write(refused: Refused, checkpoint: Path, target: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    target.parent.chmod(0o500)
    sentence = refused("export", checkpoint, "-o", target, "--weights", "fp32")
    target.parent.chmod(0o700)
    assert "Permission denied" in sentence
    assert names(target.parent) == []
