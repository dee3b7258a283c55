"""A second provider runs every kind of bundle end to end, and nothing is computed elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from encoder_decoder_harness import tiny_model
from numpy.typing import DTypeLike, NDArray
from places import ROOT
from transformers import T5Config
from unigram_tokenizers import save_tokenizer
from whisper_files import tiny_whisper, write_ctranslate2

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import BundleError, InputError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.providers import PROVIDERS, check_provider, cpu, open_provider, provider
from edge.runtime.providers.provider import Binding, Buffer, Session

SENTENCE = "A man rides a bicycle."


class Counted(Binding):
    """A binding that takes memory of its own provider alone."""

    def __init__(self, provider: Fake, session: ort.InferenceSession) -> None:
        super().__init__(session)
        run = self.run

        def counted() -> None:
            provider.runs += 1
            run()

        self.run = counted
        self._provider = provider

    def input(self, name: str, buffer: Buffer) -> None:
        assert id(buffer) in self._provider.made, f"{name} lies elsewhere"
        super().input(name, buffer)

    def output(self, name: str, buffer: Buffer) -> None:
        assert id(buffer) in self._provider.made, f"{name} lies elsewhere"
        super().output(name, buffer)


class CountedSession(Session):
    def __init__(self, provider: Fake, session: Session) -> None:
        super().__init__(session.inference)
        self._provider = provider

    def bind(self) -> Binding:
        return Counted(self._provider, self.inference)

    def run(self, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        self._provider.runs += 1
        return super().run(inputs)


class Fake(cpu.Cpu):
    """Computes as the CPU does, under another name: what is not asked of it was computed elsewhere."""

    name = "fake"

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.opened, self.copied = 0, list[str](), 0
        self.made: dict[int, Buffer] = {}  # which keeps them, so that no other gets the same id

    def open(self, bundle: Bundle, role: str, *, profile: Path | None = None) -> Session:
        self.opened.append(role)
        return CountedSession(self, super().open(bundle, role, profile=profile))

    def open_model(self, model: Path | bytes, name: str, folder: Path | None = None, *, weights: int = 0) -> Session:
        self.opened.append(name)
        return CountedSession(self, super().open_model(model, name, folder, weights=weights))

    def adopt(self, array: NDArray[Any]) -> Buffer:
        buffer = super().adopt(array)
        self.made[id(buffer)] = buffer
        return buffer

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        buffer = super().allocate(shape, dtype)
        self.made[id(buffer)] = buffer
        return buffer

    def copy_rows(self, buffer: Buffer, rows: NDArray[np.intp], start: int) -> None:
        self.copied += 1
        super().copy_rows(buffer, rows, start)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = save_tokenizer(folder / "tiny-t5", ["<pad>", "</s>", "<unk>"], "$A </s>")
    sizes = {"d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 1, "num_heads": 3, "decoder_start_token_id": 0}
    model = tiny_model(T5Config(vocab_size=len(tokenizer), **sizes))
    model.generation_config.update(max_length=60)
    model.save_pretrained(folder / "tiny-t5")
    return edge.export(folder / "tiny-t5", folder / "t5.edge", weights="fp32", check=False)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("whisper")
    model = tiny_whisper(max_source_positions=1500, encoder_layers=1, decoder_layers=2)
    checkpoint = write_ctranslate2(folder / "tiny-whisper", model, quantization="float32")
    return edge.export(checkpoint, folder / "x.edge", weights="fp32", check=False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A second provider, where every session and every run that is not its own fails."""
    provider, run = Fake(), ort.InferenceSession.run_with_iobinding
    runs = [0]

    def counted(self: ort.InferenceSession, *args: Any) -> None:
        runs[0] += 1
        assert runs[0] <= provider.runs, "a graph ran elsewhere"
        run(self, *args)

    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", counted)
    monkeypatch.setattr(cpu, "make", lambda *args: pytest.fail("another provider was opened"))
    return provider


def test_a_decoder_runs_on_it(tiny_bundle: Bundle, fake: Fake) -> None:
    model = edge.load(tiny_bundle.root, provider=fake)
    assert isinstance(model, edge.Model)
    said = model.generate("the moon", GenerateOptions(max_tokens=12))
    assert said.generated_tokens and fake.runs >= 2 and "decoder" in fake.opened
    chat = model.chat()
    before = fake.runs
    chat.generate("hi", GenerateOptions(max_tokens=3))
    model.generate_all(["a", "b", "c"], GenerateOptions(max_tokens=3))
    assert fake.runs > before


def test_text_to_text_with_beams_runs_on_it(t5: Bundle, fake: Fake) -> None:
    model = edge.load(t5.root, provider=fake)
    assert isinstance(model, edge.Text2Text)
    model.generate(SENTENCE, edge.Text2TextOptions(max_tokens=40, beams=3))
    assert fake.opened[:2] == ["encoder", "decoder"] and fake.runs >= 3 and fake.copied
    assert model.generate(SENTENCE).text == edge.load(t5.root, provider=fake).generate(SENTENCE).text  # type: ignore


def test_speech_runs_on_it(whisper: Bundle, fake: Fake) -> None:
    model = edge.load(whisper.root, provider=fake)
    assert isinstance(model, edge.Transcriber)
    model.transcribe(np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32))
    assert set(fake.opened) == {"frontend", "encoder", "decoder"} and fake.runs >= 3


def test_segments_run_on_it(by_layer: Bundle, fake: Fake) -> None:
    model = edge.load(by_layer.root, provider=fake, skip="skipdecode:3-6")
    model.generate("the moon", GenerateOptions(max_tokens=6))  # type: ignore[arg-type]
    assert fake.runs >= 2


def test_one_that_cannot_open_a_graph_is_an_error(tiny_bundle: Bundle) -> None:
    graph = tiny_bundle.path(tiny_bundle.manifest.graph("decoder").path)
    graph.write_bytes(graph.read_bytes()[:100])
    with pytest.raises(BundleError, match="could not be loaded by onnxruntime"):
        open_provider("cpu").open(tiny_bundle, "decoder")


def test_onnxruntime_is_told_not_to_fall_back(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Refuses:
        def __init__(self, *args: Any, **options: Any) -> None:
            given.update(options)
            raise RuntimeError("the device is gone")

    monkeypatch.setattr(provider.ort, "InferenceSession", Refuses)
    with pytest.raises(BundleError, match="the device is gone"):
        open_provider("cpu").open(tiny_bundle, "decoder")
    assert given["providers"] == ["CPUExecutionProvider"] and given["enable_fallback"] is False


def test_providers_are_found_by_their_modules_and_others_refused(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(PROVIDERS) == ["coreml", "cpu", "cuda", "nnapi", "openvino", "qnn", "webgpu", "xnnpack"]
    check_provider("auto")
    with pytest.raises(InputError, match="There is no provider 'tpu'; choose one of coreml, cpu"):
        edge.load(tiny_bundle.root, provider="tpu")


def test_what_ran_where_is_known(tiny_bundle: Bundle) -> None:
    provider = open_provider("auto")
    session = provider.open(tiny_bundle, "decoder")
    placed = provider.placement(session)
    assert set(placed) == {"CPUExecutionProvider"} and len(placed["CPUExecutionProvider"]) > 10
    assert [device.kind for device in provider.devices()] == ["cpu"]


def test_only_the_providers_know_a_device() -> None:
    words = ("ortvalue_from_numpy", "InferenceSession(", "madvise", "import cpu", "OrtArenaCfg", "providers.cpu")
    found = [
        f"{file.relative_to(ROOT)}: {word}"
        for file in (ROOT / "runtime").rglob("*.py")
        if not {"kernels", "providers"} & {*file.parts}
        for word in words
        if word in file.read_text(encoding="utf-8")
    ]
    assert found == []


def test_the_command_takes_one(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny_bundle.root), "hi", "--raw", "--max-tokens", "2", "--provider", "cpu"]) == 0
    assert main(["run", str(tiny_bundle.root), "hi", "--provider", "tpu"]) == 2
    assert "There is no provider 'tpu'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("execution_provider", "simulated"), [("CPUExecutionProvider", True), ("QNNExecutionProvider", False)]
)
def test_a_device_is_simulated_where_the_simulator_runs_a_node(
    tiny_bundle: Bundle, execution_provider: str, simulated: bool
) -> None:
    """Not where all nodes are left to the processor, whose times are real."""
    from edge.runtime.providers.accelerator import Accelerator
    from edge.runtime.providers.provider import NPU, SIMULATES, Device

    def append(options: object) -> None:
        """onnxruntime adds the processor by itself."""

    device = Device("toy", NPU, "a simulator", SIMULATES)
    provider = Accelerator("toy", execution_provider, device, append, threads=1, arena=-1, strict=False)
    assert not provider.simulated
    provider.open(tiny_bundle, "decoder")
    assert provider.simulated is simulated
