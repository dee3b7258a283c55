"""The provider for CUDA without a GPU: what it says where something is missing, and what the host does for one."""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from decoder_configs import VOCABULARY
from fake_cuda import FakeCuda
from npu_models import CONTEXT, bundle_of, checkpoint_of, encoder_decoder_of, walk
from numpy.typing import DTypeLike

from edge.bundle import Bundle
from edge.errors import DeviceError, InputError
from edge.export.targets.kind import Wanted
from edge.runtime.choose import choose
from edge.runtime.decode.sampling import Categorical, SamplingOptions, make_sampler
from edge.runtime.engine.candidates import Candidates
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.device_cache import DeviceMemoryPool
from edge.runtime.engine.graphs.device_plan import plan_for
from edge.runtime.engine.variant import Variant
from edge.runtime.load_options import LoadOptions
from edge.runtime.providers import cuda, open_provider
from edge.runtime.providers.captures import MOST, NONE, REMEMBERED, SEEN, Captures
from edge.runtime.providers.provider import BFLOAT16, Buffer
from edge.targets import CUDA, read_device_target

TOKENS = np.random.default_rng(3).integers(3, VOCABULARY, CONTEXT)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(checkpoint_of("llama"), tmp_path_factory.mktemp("cuda"), wanted=Wanted(CUDA, weights="float16"))


@pytest.fixture
def gpu() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def engine(bundle: Bundle, gpu: FakeCuda) -> Engine:
    return Engine(bundle, Variant(target=CUDA), gpu)


# What is missing


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with these packages, whose onnxruntime has CUDA, loads its library and finds GPUs, or does not."""

    def installed(
        *packages: str, has: bool = True, loads: Exception | None = None, gpus: int = 0, error: int = 0
    ) -> None:
        def version(name: str) -> str:
            if name not in packages:
                raise importlib.metadata.PackageNotFoundError(name)
            return "1.31.1"

        def register() -> None:
            if loads is not None:
                raise loads

        names = ["CUDAExecutionProvider"] if has else []
        device = SimpleNamespace(metadata={"Description": "NVIDIA H200"}, vendor="NVIDIA")
        handle = SimpleNamespace(ep_name="CUDAExecutionProvider", device=device)
        monkeypatch.setattr(cuda.importlib.metadata, "version", version)
        monkeypatch.setattr(cuda.ort, "get_available_providers", lambda: [*names, "CPUExecutionProvider"])
        monkeypatch.setattr(cuda.ort, "get_ep_devices", lambda: [handle] * gpus)
        monkeypatch.setattr(cuda, "_register", register)
        monkeypatch.setattr(cuda, "_error_of_count", lambda: error)

    return installed


GPU = "onnxruntime-gpu"
DRIVER = RuntimeError("FAIL : Failed to load library x with error: libcuda.so.1: cannot open shared object file")
LIBRARY = RuntimeError("FAIL : Failed to load library x with error: libcublasLt.so.13: cannot open shared object file")


@pytest.mark.parametrize(
    ("packages", "others", "sentence"),
    [
        (["onnxruntime"], {"has": False}, "was built without CUDA; in an environment of its own run: pip .*cuda"),
        ([GPU, "onnxruntime"], {}, "are both installed, and each overwrites files of the other; keep the one for GPUs"),
        ([GPU], {"loads": DRIVER}, "no driver for NVIDIA's GPUs .libcuda is missing.; install it, or choose cpu"),
        ([GPU], {"loads": LIBRARY}, "The libraries of CUDA that onnxruntime-gpu 1.31.1 needs .* loaded .*cublas"),
        ([GPU], {"error": 35}, "older than CUDA 13, .*; install a driver of version 580 or later, or choose cpu"),
        ([GPU], {"error": 100}, "onnxruntime-gpu 1.31.1 finds no GPU of NVIDIA on this machine; choose cpu"),
    ],
)
def test_what_a_machine_lacks_is_a_sentence(
    packages: list[str], others: dict[str, Any], sentence: str, machine: Callable[..., None]
) -> None:
    machine(*packages, **others)
    found = cuda.find()
    assert found.device is None
    with pytest.raises(InputError, match=sentence):
        open_provider("cuda")


def test_gpus_are_listed_and_chosen_by_their_number(machine: Callable[..., None]) -> None:
    machine(GPU, gpus=2)
    assert [device.name for device in cuda.find().devices] == ["NVIDIA H200"] * 2
    assert open_provider("cuda:1")._number == 1  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"no GPU 2 on this machine; there is cuda:0 \(NVIDIA H200\), cuda:1 \(NVIDIA"):
        open_provider("cuda:2")
    with pytest.raises(InputError, match="a number counted from 0, as in cuda:1, not 'x'"):
        open_provider("cuda:x")
    with pytest.raises(InputError, match="cpu chooses its device by itself; leave out :1"):
        open_provider("cpu:1")


def test_a_bundle_without_graphs_for_it_is_a_sentence(tiny_bundle: Bundle) -> None:
    with pytest.raises(InputError, match="has no graphs for CUDA .*; export it with --target cuda, or choose"):
        choose(tiny_bundle, LoadOptions(provider="cuda", speculate="off"))


# Recorded steps


def test_a_step_is_recorded_when_it_comes_again_and_replayed_under_its_number(engine: Engine, gpu: FakeCuda) -> None:
    cache = engine.new_cache(CONTEXT)
    engine.step(cache, TOKENS[:20])  # a prompt, which is not
    assert gpu.seen.runs == [NONE]
    for token in TOKENS[20:26]:
        engine.step(cache, token[None], want="tokens")
    assert gpu.seen.runs[1:] == [NONE] * SEEN + [1] * 4
    for start in (26, 29, 32, 35):
        engine.step(cache, TOKENS[start : start + 3], np.arange(3), want="tokens")
    assert gpu.seen.runs[7:] == [NONE] * SEEN + [2] * 2
    engine.step(cache, TOKENS[40:41], want="tokens")
    assert gpu.seen.runs[-1] == 1


def test_the_next_text_has_the_memory_and_the_recorded_steps_of_the_last(engine: Engine, gpu: FakeCuda) -> None:
    first = walk(engine, TOKENS, [8] + [1] * 6)
    numbers = set(gpu.seen.runs)
    runs = len(gpu.seen.runs)
    second = walk(engine, TOKENS, [8] + [1] * 6)
    np.testing.assert_array_equal(first, second)
    assert set(gpu.seen.runs[runs + 1 :]) == {1} <= numbers, "no step is recorded anew"
    assert not gpu.seen.released


def test_texts_at_a_time_have_memory_of_their_own(engine: Engine) -> None:
    one, other = engine.new_cache(CONTEXT), engine.new_cache(CONTEXT)
    engine.step(one, TOKENS[:9])
    engine.step(other, TOKENS[20:40])
    alone = engine.new_cache(CONTEXT)
    wanted = [engine.step(alone, piece).copy() for piece in (TOKENS[:9], TOKENS[9:10])]
    np.testing.assert_array_equal(engine.step(one, TOKENS[9:10]), wanted[1])


def test_a_cache_of_another_size_lets_go_of_what_was_recorded(
    engine: Engine, gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.runtime.engine.graphs.device_cache.SMALLEST", 16)
    cache = engine.make_cache(10)
    for token in TOKENS[:6]:
        engine.step(cache, token[None], want="tokens")
    assert max(gpu.seen.runs) == 1
    del cache
    larger = engine.make_cache(20)
    engine.step(larger, TOKENS[:1], want="tokens")
    gc.collect()
    assert gpu.seen.released == [1]


def test_the_least_recently_replayed_step_goes_first() -> None:
    released: list[int] = []
    captures = Captures(released.append, most=2)
    for step in "aaabbbabccc":
        captures.number(step)
    assert released == [1] and len(captures) == 2, "of a and b the first was replayed longer ago than the second"
    assert captures.number("b") == 2 and captures.number("c") == 3
    captures.drop({"b", "z"})
    assert released == [1, 2]


def test_texts_of_an_encoder_leave_nothing_behind(tmp_path: Path, gpu: FakeCuda) -> None:
    """Each text's keys and values are in other memory, and of their steps no more is kept than of recorded ones."""
    bundle = encoder_decoder_of("t5", tmp_path, Wanted(CUDA))
    engine, pool = Engine(bundle, Variant(target=CUDA), gpu), set()
    assert engine.encoder is not None
    for length in range(3, 40):
        cache = engine.new_cache(CONTEXT, engine.encoder.encode_text(TOKENS[:length]))
        for token in TOKENS[:5]:
            engine.step(cache, token[None])
        pool.add(id(cache.memory_key))
        bound = engine.graphs._steps._bound[cache.memory_key]
        del cache
    assert len(pool) == 1
    known = [len(binding._bound._known) for binding in bound.values()]
    assert max(known) <= MOST + REMEMBERED and len(engine.session.captures) <= MOST


def test_sessions_of_steps_alone_are_recorded(engine: Engine, gpu: FakeCuda) -> None:
    engine.step(engine.new_cache(CONTEXT), TOKENS[:4], want="candidates")
    assert [options.get("enable_cuda_graph") for options in gpu.seen.options] == ["1", None]


# Memory


def test_parts_share_the_memory_of_a_buffer_and_the_host_sees_what_is_there(gpu: FakeCuda) -> None:
    whole = gpu.allocate((4, 6), np.float32)
    whole.array[:] = np.arange(24).reshape(4, 6)
    part = gpu.part(whole, (2, 6), 6)
    np.testing.assert_array_equal(part.array, whole.array[1:3])
    assert part.pointer - whole.pointer == 24  # type: ignore[attr-defined]
    assert (part.shape, part.dtype, part.nbytes) == ((2, 6), np.float32, 48)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_rows_are_moved_and_copied_on_the_device(dtype: DTypeLike, gpu: FakeCuda) -> None:
    before, after = (gpu.allocate((1, 2, 6, 4), dtype) for _ in range(2))
    values = np.arange(48, dtype=np.uint16).reshape(1, 2, 6, 4)
    fill(before, values)
    gpu.copy(before, after, 6)
    np.testing.assert_array_equal(content(gpu, after), values)
    gpu.copy_rows(after, np.array([3, 5]), 1)
    np.testing.assert_array_equal(content(gpu, after)[:, :, :3], values[:, :, [0, 3, 5]])


def fill(buffer: Buffer, values: Any) -> None:
    array = values.view(BFLOAT16) if buffer.dtype == BFLOAT16 else values.astype(buffer.dtype)
    buffer.array[...] = array
    buffer.memory.send()  # type: ignore[attr-defined]


def content(gpu: FakeCuda, buffer: Buffer) -> Any:
    found = gpu.read(buffer)
    return found.view(np.uint16) if buffer.dtype == BFLOAT16 else found


def test_keys_values_and_logits_stay_on_the_device(engine: Engine, bundle: Bundle) -> None:
    cache = engine.new_cache(CONTEXT)
    engine.step(cache, TOKENS[:20])
    engine.step(cache, TOKENS[20:21], want="tokens")
    engine.step(cache, TOKENS[21:22], want="candidates")
    assert all(buffer.memory.host is None for pair in cache.memory for buffer in pair)  # type: ignore[attr-defined]
    results = {asked: step.result for (_, _, asked), step in engine.graphs._steps._steps[cache.memory_key].items()}
    assert results["candidates"].memory.host is None  # type: ignore[attr-defined]
    assert results["tokens"].memory.host is not None  # type: ignore[attr-defined]


def test_a_full_device_says_what_would_fit(engine: Engine, gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    room, allocate = 40_000, FakeCuda.allocate

    def some(self: FakeCuda, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        if len(shape) == 4 and np.prod(shape) > room:
            raise MemoryError
        return allocate(self, shape, dtype)

    monkeypatch.setattr(FakeCuda, "allocate", some)
    engine.graphs.device_cache = DeviceMemoryPool(2**14)
    cache = engine.make_cache(2**13)
    with pytest.raises(
        InputError, match=r"for a KV cache of 8192 tokens, and would have some for \d+; choose --context"
    ):
        engine.step(cache, TOKENS[:1])


def test_a_device_that_is_full_in_the_middle_is_a_sentence(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 7")

    monkeypatch.setattr(engine.session.inference, "run_with_iobinding", fails)
    with pytest.raises(DeviceError, match="no memory left for this step, .*; choose a smaller --context"):
        engine.step(engine.new_cache(CONTEXT), TOKENS[:1])


def test_a_memory_limit_is_kept_by_a_shorter_context_or_refused(bundle: Bundle, gpu: FakeCuda) -> None:
    plan = plan_for(bundle, read_device_target(bundle, CUDA), CONTEXT)
    assert plan.row == 2 * 2 * sum(layer.heads * layer.head_dim for layer in bundle.manifest.kv.layers)
    limit = plan.weights + plan.workspace + 40 * plan.row
    engine = Engine(bundle, Variant(target=CUDA, limit=limit), gpu)
    assert engine.context == 40
    assert gpu.seen.options[0]["gpu_mem_limit"] == str(limit - 40 * plan.row), "what the KV cache leaves"
    with pytest.raises(InputError, match="of 64 tokens, and --memory gives it .* MB; a context of 40 would fit"):
        Engine(bundle, Variant(target=CUDA, limit=limit, context=64), gpu)
    with pytest.raises(InputError, match="that is too little for its weights"):
        Engine(bundle, Variant(target=CUDA, limit=1000), gpu)


# Sampling


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ({"top_k": 5}, False),
        ({"top_k": 5, "top_p": 0.7}, False),
        ({"top_k": 7, "min_p": 0.2}, False),
        ({"min_p": 0.2}, False),
        ({"min_p": 1e-9}, True),
        ({"top_p": 0.9}, True),
        ({"top_k": 20}, True),
        ({}, True),
    ],
)
def test_candidates_give_the_token_that_all_logits_give(options: dict[str, Any], whole: bool) -> None:
    """The same numbers are drawn, and the row is read only where the candidates do not decide."""
    rng, read = np.random.default_rng(0), list[int]()
    samplers = [make_sampler(SamplingOptions(temperature=0.8, seed=1, **options)) for _ in range(2)]
    assert isinstance(samplers[0], Categorical)
    for i in range(200):
        row = rng.normal(0, 3, 100).astype(np.float32)
        row[rng.integers(0, 100, 4)] = row.max()  # equals
        order = np.argsort(-row, kind="stable")[:16]

        def wanted(row: Any = row, i: int = i) -> Any:
            read.append(i)
            return row

        assert samplers[0].among(Candidates(order, row[order], wanted)) == samplers[1](row)
    assert (len(read) > 150) == whole


def test_equals_at_the_edge_of_the_candidates_are_looked_up() -> None:
    row = np.zeros(100, np.float32)
    order, read = np.arange(16), list[int]()
    sampler = make_sampler(SamplingOptions(temperature=1, top_k=4, seed=1))
    assert isinstance(sampler, Categorical)
    assert sampler.among(Candidates(order, row[order], lambda: read.append(1) or row)) < 100  # type: ignore[func-returns-value]
    assert read == [1]


def test_the_largest_logits_are_the_same_everywhere(gpu: FakeCuda) -> None:
    here, there = open_provider("cpu"), gpu
    rows = np.random.default_rng(0).integers(0, 40, (1, 3, 97)).astype(np.float32)  # with equals
    found = []
    for provider in (here, there):
        logits = provider.allocate(rows.shape, np.float32)
        logits.array[...] = rows
        found.append(provider.largest(logits, 8))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_it_is_onnxruntimes_name() -> None:
    assert cuda.EXECUTION_PROVIDER in ort.get_all_providers()
    assert Path(cuda.__file__).stem == cuda.NAME
