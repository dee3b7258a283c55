"""Providers next to the CPU's: what is missing is a sentence, what runs elsewhere is refused or known, and the CPU's
keeps working. Plugins that are installed are tried; a stand-in says what another machine's would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.cli.providers import described
from edge.errors import BundleError, InputError, MissingExtraError
from edge.runtime.costs import machine
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.providers import PROVIDERS, find_support, open_provider, plugin
from edge.runtime.providers.accelerator import Accelerator, DeviceBinding
from edge.runtime.providers.builtin import Builtin
from edge.runtime.providers.plugin import Plugin
from edge.runtime.providers.provider import COMPILES, CPU, GPU, NPU, SIMULATES, Device, Support

PLUGINS = {
    "qnn": ("onnxruntime_qnn", "npu-qualcomm"),
    "openvino": ("onnxruntime_ep_openvino", "npu-intel"),
    "webgpu": ("onnxruntime_ep_webgpu", "webgpu"),
}
STAND_IN = Plugin("paper", "PaperExecutionProvider", "paper_plugin", "webgpu", needs="a sheet of paper")


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The package of a plugin whose library is none."""
    library = tmp_path / "libpaper.so"
    library.write_text("no library")
    package = SimpleNamespace(get_library_path=lambda: str(library))
    monkeypatch.setitem(sys.modules, "paper_plugin", package)
    return package


def handle(kind: str, vendor: str, **about: str) -> Any:
    """A device as onnxruntime lists it."""
    virtual = {"is_virtual": "1"} if about.pop("virtual", "") else {}
    device = SimpleNamespace(type=SimpleNamespace(name=kind.upper()), vendor=vendor, metadata=virtual)
    return SimpleNamespace(ep_name="PaperExecutionProvider", ep_metadata=about, device=device)


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch, paper: SimpleNamespace) -> Callable[..., None]:
    """Lets the stand-in's library load, and list these devices."""
    monkeypatch.setattr(plugin, "_load", lambda name, library: None)

    def lists(*handles: Any) -> None:
        monkeypatch.setattr(plugin.ort, "get_ep_devices", lambda: list(handles))

    return lists


def add_one() -> bytes:
    """A graph of fixed shapes, of one node."""
    a, b, c = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in ("a", "b", "c"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["a", "b"], ["c"], "sum")], "g", [a, b], [c])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


# What is missing


@pytest.mark.parametrize("name", PLUGINS)
def test_a_missing_plugin_names_the_extra_and_the_cpu_keeps_working(
    name: str, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, extra = PLUGINS[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs {module}; install it with: pip install -e .*\[{extra}\]'"):
        edge.load(tiny_bundle.root, provider=name)
    support = find_support(name)
    assert support.missing is not None and extra in support.missing and support.device is None
    assert edge.load(tiny_bundle.root, provider="cpu", kind=edge.Model).generate("hi", GenerateOptions(max_tokens=2))


def test_a_plugin_that_does_not_load_is_a_sentence(paper: SimpleNamespace) -> None:
    with pytest.raises(InputError, match=r"cannot be loaded by onnxruntime .*; install versions that go together: pip"):
        STAND_IN.make(None, None, None)
    support = STAND_IN.find()
    assert support.missing is not None and ort.__version__ in support.missing and "\n" not in support.missing


def test_a_plugin_for_another_system_is_a_sentence(paper: SimpleNamespace) -> None:
    def missing() -> str:
        raise FileNotFoundError("no library for this system")

    paper.get_library_path = missing
    with pytest.raises(InputError, match="no library for this system"):
        STAND_IN.make(None, None, None)


def test_where_there_is_no_device_the_sentence_says_what_it_needs(lists: Callable[..., None]) -> None:
    lists()
    with pytest.raises(InputError, match="finds no device to run graphs on; it needs a sheet of paper"):
        STAND_IN.make(None, None, None)
    lists(handle(NPU, "Paper", virtual="1", npu_platform="4000"))
    with pytest.raises(InputError, match="finds no device"):
        STAND_IN.make(None, None, None)
    support = STAND_IN.find()
    assert support.devices == [Device("paper", NPU, "Paper 4000", COMPILES)] and support.device is None
    assert support.missing is not None and "it compiles for 1 that are not here" in support.missing


def test_the_preferred_device_comes_first_and_one_for_compiling_last(lists: Callable[..., None]) -> None:
    lists(handle(NPU, "A", virtual="1"), handle(CPU, "B"), handle(GPU, "C"), handle(NPU, "D"))
    assert [device.name for device in STAND_IN.find().devices] == ["D", "C", "B", "A"]
    assert STAND_IN.make(None, None, None).devices() == [Device("paper", NPU, "D")]


def test_on_x86_a_processor_is_a_simulator_and_called_so(
    lists: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists(handle(CPU, "AMD"))
    simulating = Plugin("paper", "PaperExecutionProvider", "paper_plugin", "webgpu", "paper", simulates="Paper")
    monkeypatch.setattr(plugin, "ARM", False)
    assert simulating.find().device == Device("paper", NPU, "Paper", SIMULATES)
    monkeypatch.setattr(plugin, "ARM", True)
    assert simulating.find().devices == []


@pytest.mark.parametrize("name", ["coreml", "nnapi", "xnnpack"])
def test_what_onnxruntime_was_built_without_is_a_sentence(name: str, tiny_bundle: Bundle) -> None:
    if PROVIDERS[name].traits["onnxruntime"] in ort.get_available_providers():
        pytest.skip(f"this onnxruntime has {name}")
    with pytest.raises(InputError, match=f"was built without {name}, which builds for"):
        edge.load(tiny_bundle.root, provider=name)
    assert find_support(name).device is None


# What ran where


def beside(execution_provider: str, strict: bool) -> Accelerator:
    """A device whose provider takes no node."""
    device = Device("paper", NPU, "Paper")
    return Accelerator("paper", execution_provider, device, lambda options: None, threads=None, arena=-1, strict=strict)


@pytest.mark.usefixtures("onnxruntimes_kernels")  # those of our own take several nodes together
def test_a_strict_provider_refuses_what_it_cannot_run_alone_and_names_it(tiny_bundle: Bundle) -> None:
    plain = open_provider("cpu")
    count = len(plain.placement(plain.open(tiny_bundle, "decoder"))["CPUExecutionProvider"])
    told = rf"{count} of its {count} nodes would run on CPUExecutionProvider \(\S+_node_0, \S+, \S+ and more\)"
    with pytest.raises(BundleError, match=told) as error:
        beside("PaperExecutionProvider", True).open(tiny_bundle, "decoder")
    assert "--no-strict" in str(error.value) and "needs a graph that was made for it" in str(error.value)
    with pytest.raises(BundleError, match="1 of its 1 nodes would run on CPUExecutionProvider"):
        beside("PaperExecutionProvider", True).open_model(add_one(), "a sum")


def test_a_lenient_one_runs_it_with_the_same_answer_and_says_where(tiny_bundle: Bundle) -> None:
    provider = beside("PaperExecutionProvider", False)
    model = edge.load(tiny_bundle.root, provider=provider, kind=edge.Model)
    plain = edge.load(tiny_bundle.root, provider="cpu", kind=edge.Model)
    options = GenerateOptions(max_tokens=8)
    assert model.generate("the moon", options).token_ids == plain.generate("the moon", options).token_ids
    assert set(provider.placement(model.engine.session)) == {"CPUExecutionProvider"}


def test_a_strict_provider_takes_a_graph_that_is_all_its_own(tiny_bundle: Bundle) -> None:
    builtin = Builtin("paper", "CPUExecutionProvider", NPU, "Paper", "builds of paper")
    provider = builtin.make(None, None, None)
    (out,) = provider.open_model(add_one(), "a sum").run({"a": np.ones((1, 8), "f4"), "b": np.ones((1, 8), "f4")})
    assert (out == 2).all() and provider.open(tiny_bundle, "decoder").inputs
    assert provider.devices() == [Device("paper", NPU, "Paper")]


@pytest.mark.parametrize(
    ("kind", "asked", "strict"), [(NPU, None, True), (GPU, None, False), (NPU, False, False), (CPU, True, True)]
)
def test_a_provider_is_strict_on_an_npu_by_default(kind: str, asked: bool | None, strict: bool) -> None:
    assert Support(None, [Device("paper", kind, "Paper")]).is_strict(asked) is strict


def test_a_profile_calls_each_provider_as_onnxruntime_does() -> None:
    assert machine.describe("qnn", 1).provider == "QNNExecutionProvider"
    assert machine.describe("own", 1).provider == "own"


# Plugins that are installed


def installed(name: str) -> Support:
    """What this machine has of a plugin; the test is skipped where it is not installed."""
    pytest.importorskip(PLUGINS[name][0], reason=f"the plugin {PLUGINS[name][0]} is not installed")
    support = find_support(name)
    assert support.package is not None and PLUGINS[name][0].replace("_", "-") in support.package
    return support


def test_qualcomms_simulator_runs_a_graph_made_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    support = installed("qnn")
    if support.device is None:
        pytest.skip(str(support.missing))
    provider = open_provider("qnn")
    session = provider.open_model(add_one(), "a sum")
    assert provider.placement(session) == {"QNNExecutionProvider": ["sum"]}
    a, b = np.arange(8, dtype="f4")[None], np.full((1, 8), 0.5, "f4")
    (out,) = session.run({"a": a, "b": b})
    np.testing.assert_allclose(out, a + b, atol=0.02)  # in float16
    assert capfd.readouterr().out == ""


def test_a_bundle_for_the_cpu_is_refused_by_qualcomms_npu_and_runs_where_it_may(tiny_bundle: Bundle) -> None:
    support = installed("qnn")
    if support.device is None:
        pytest.skip(str(support.missing))
    with pytest.raises(BundleError, match="does not run on qnn alone"):
        edge.load(tiny_bundle.root, provider="qnn")
    options, given = GenerateOptions(max_tokens=6), {"provider": "qnn", "strict": False}
    both = [edge.load(tiny_bundle.root, kind=edge.Model, **each).generate("hi", options) for each in (given, {})]  # type: ignore
    assert both[0].token_ids == both[1].token_ids


def test_webgpu_without_a_gpu_compiles_only(tiny_bundle: Bundle) -> None:
    support = installed("webgpu")
    if support.device is not None:
        pytest.skip("there is a GPU")
    assert {device.use for device in support.devices} == {COMPILES}
    with pytest.raises(InputError, match="finds no device to run graphs on; it needs a GPU"):
        edge.load(tiny_bundle.root, provider="webgpu")


def test_openvino_elsewhere_than_on_intel_compiles_only(tiny_bundle: Bundle) -> None:
    support = installed("openvino")
    if support.device is not None:
        pytest.skip("there is a device of Intel")
    assert {(device.kind, device.use) for device in support.devices} <= {(NPU, COMPILES)}
    with pytest.raises(InputError, match="it needs a processor, GPU or NPU of Intel"):
        edge.load(tiny_bundle.root, provider="openvino")


def test_a_bundle_runs_on_openvinos_processor_and_is_measured_beside_the_cpu(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    device = installed("openvino").device
    if device is None or device.kind != CPU:
        pytest.skip(f"OpenVINO's plugin takes Intel's processors, and this is one of {machine.cpu_name()}")
    options = GenerateOptions(max_tokens=6)
    answers = [
        edge.load(tiny_bundle.root, provider=name, kind=edge.Model).generate("the moon", options)
        for name in ("openvino", "cpu")
    ]
    assert answers[0].generated_tokens == answers[1].generated_tokens
    for kv, sizes in (("float32", (24, 8, 1)), ("int8", (3, 2, 1))):  # larger steps round other keys to 8 bits
        model = edge.load(tiny_bundle.root, provider="openvino", kv=kv, kind=edge.Model)
        made = [logits_in_steps(model.engine, size) for size in sizes]
        for each in made[1:]:
            np.testing.assert_allclose(each, made[0], atol=0.005)  # bfloat16 would be 0.07 off
    for name in ("openvino", "cpu"):
        assert main(["profile", str(tiny_bundle.root), "--seconds", "2", "--json", "--provider", name]) == 0
        assert json.loads(capsys.readouterr().out)["placement"]


def logits_in_steps(engine: Engine, size: int) -> NDArray[np.float32]:
    """The logits [24, V] of a text, read in steps of `size` tokens."""
    tokens, cache = np.arange(3, 27), engine.new_cache(32)
    return np.concatenate([engine.step(cache, part, np.arange(size)).copy() for part in tokens.reshape(-1, size)])


def test_a_device_reads_what_the_host_wrote_since_the_last_run(tiny_bundle: Bundle) -> None:
    """onnxruntime copies an input for a device with memory of its own when it is bound."""
    bound: list[tuple[str, float]] = []

    class Bound:
        def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
            bound.append((name, float(value.numpy()[0])))

    session: Any = SimpleNamespace(io_binding=Bound, run_with_iobinding=lambda _: bound.append(("run", 0)))
    binding = DeviceBinding(session)
    buffer = open_provider("cpu").allocate((1,), np.float32)
    binding.input("x", buffer)
    for value in (1, 2):
        buffer.array[0] = value
        binding.run()
    assert bound == [("x", 1), ("run", 0), ("x", 2), ("run", 0)]


# edge providers


def test_the_command_lists_every_provider(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, _ in PLUGINS.values():
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["providers", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(found) == list(PROVIDERS) and found["cpu"]["usable"] and found["cpu"]["devices"][0]["kind"] == "cpu"
    assert main(["providers"]) == 0
    out = capsys.readouterr().out
    for name, (_, extra) in PLUGINS.items():
        assert not found[name]["usable"] and extra in found[name]["missing"]
        assert f"{name}: {found[name]['missing']}" in out


def test_the_command_says_what_a_device_is_for() -> None:
    twice = [Device("paper", GPU, "Paper", COMPILES)] * 2
    told = described([Device("paper", NPU, "Hexagon", SIMULATES), Device("paper", CPU, "AMD"), *twice])
    assert told == ["npu: Hexagon, a simulator on this processor", "cpu: AMD", "2 x gpu: Paper, compiles only"]
