"""The engine: one primitive, `step`, whose results do not depend on how tokens are cut into steps."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.manifest import KVLayer, KVLayout
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.want import TOKENS
from edge.runtime.load import open_engine
from edge.runtime.memory.process import private_bytes
from edge.runtime.providers import open_provider

IDS = np.array([5, 80, 3, 200, 41, 9, 77, 120, 33, 8, 250, 61], np.int64)


@pytest.fixture(scope="module")
def engine(pristine_tiny_bundle: Bundle) -> Engine:
    return open_engine(pristine_tiny_bundle, context=64, threads=2)


def all_rows(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64)


def test_chunks_of_two_or_more_give_bitwise_the_same_logits(engine: Engine) -> None:
    cache = engine.new_cache()
    whole = engine.step(cache, IDS, all_rows(len(IDS))).copy()
    for size in (2, 3, 4, 6):
        cache.reset()
        for start in range(0, len(IDS), size):
            got = engine.step(cache, IDS[start : start + size], all_rows(size))
            np.testing.assert_array_equal(got, whole[start : start + size])


def test_steps_of_many_sizes_take_turns_on_one_cache(engine: Engine) -> None:
    """Whichever output they ask for, each reads the cache and gets what it would have alone."""
    cache, whole = engine.new_cache(), engine.step(engine.new_cache(), IDS, all_rows(len(IDS))).copy()
    for size in (2, 6, 4, 1, 6, 2, 8):
        tokens, rows = IDS[4 : 4 + size], all_rows(size)
        for _ in range(2):
            cache.truncate(0)
            engine.step(cache, IDS[:4], all_rows(4))
            got = engine.step(cache, tokens, rows)
            if size > 1:
                np.testing.assert_array_equal(got, whole[4 : 4 + size])
            cache.truncate(4)
            np.testing.assert_array_equal(engine.step(cache, tokens, rows, want=TOKENS), got.argmax(axis=1))


def test_single_steps_agree_with_the_whole_prompt(engine: Engine) -> None:
    cache = engine.new_cache()
    whole = engine.step(cache, IDS, all_rows(len(IDS))).copy()
    cache.reset()
    for i in range(len(IDS)):
        np.testing.assert_allclose(engine.step(cache, IDS[i : i + 1])[0], whole[i], atol=0.05 * np.abs(whole).max())


def test_a_step_returns_the_last_row_unless_rows_are_named(engine: Engine) -> None:
    cache = engine.new_cache()
    named = engine.step(cache, IDS[:5], np.array([4, 1], np.int64)).copy()
    cache.reset()
    last = engine.step(cache, IDS[:5])
    assert last.shape == (1, engine.bundle.manifest.dims.vocab_size)
    np.testing.assert_array_equal(last[0], named[0])
    assert not np.array_equal(named[0], named[1])


def test_truncating_the_cache_forgets_what_came_after(engine: Engine) -> None:
    cache = engine.new_cache()
    engine.step(cache, IDS[:4])
    expected = engine.step(cache, IDS[4:8]).copy()
    cache.truncate(4)
    engine.step(cache, IDS[6:12])
    cache.truncate(4)
    np.testing.assert_array_equal(engine.step(cache, IDS[4:8]), expected)


def test_two_caches_of_one_engine_do_not_mix(engine: Engine) -> None:
    one, other = engine.new_cache(), engine.new_cache(32)
    expected = engine.step(one, IDS[:6]).copy()
    one.reset()
    engine.step(one, IDS[:3])
    engine.step(other, IDS[6:12])
    np.testing.assert_array_equal(engine.step(one, IDS[3:6]), expected)
    assert (one.length, other.length) == (6, 6)


def test_the_capacity_of_a_cache_does_not_change_the_logits(engine: Engine) -> None:
    large, small = engine.new_cache(64), engine.new_cache(len(IDS))
    np.testing.assert_array_equal(engine.step(large, IDS).copy(), engine.step(small, IDS))
    assert small.room == 0
    with pytest.raises(ValueError, match="room for 0"):
        engine.step(small, IDS[:1])


def test_a_context_outside_the_bundles_is_refused(pristine_tiny_bundle: Bundle) -> None:
    limit = pristine_tiny_bundle.manifest.context
    for context in (0, -1, limit + 1):
        with pytest.raises(InputError, match=f"between 1 and {limit}"):
            open_engine(pristine_tiny_bundle, context=context)
    with pytest.raises(InputError, match="at least 1"):
        open_engine(pristine_tiny_bundle, threads=0)


def test_a_graph_that_onnxruntime_refuses_is_a_bundle_error(tiny_bundle: Bundle) -> None:
    tiny_bundle.path("graphs/decoder.onnx").write_bytes(b"\x08\x0a\x12nothing")
    with pytest.raises(BundleError, match=r"decoder\.onnx could not be loaded"):
        open_engine(tiny_bundle)


def test_what_onnxruntime_says_of_a_damaged_graph_is_one_sentence(
    tiny_bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own wrapper would write to standard output that it tries the same again."""
    path = tiny_bundle.path("graphs/decoder.onnx")
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"weights\xff\nin"))
    with pytest.raises(BundleError, match=r"decoder\.onnx could not be loaded by") as e:
        open_engine(tiny_bundle)
    assert str(e.value).endswith("; export or copy the bundle again.")
    assert "\n" not in str(e.value)
    assert capfd.readouterr().out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_two_models_in_one_process_share_one_thread_pool(pristine_tiny_bundle: Bundle) -> None:
    """A second pool would have two more for good; a thread that ends soon is waited for."""
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        import edge

        def threads():
            return len(list(Path("/proc/self/task").iterdir()))

        first = edge.load({str(pristine_tiny_bundle.root)!r}, threads=3)
        first.generate("a b c", raw=True)
        with_one = threads()
        second = edge.load({str(pristine_tiny_bundle.root)!r}, threads=3)
        second.generate("a b c", raw=True)
        until = time.monotonic() + 20
        while threads() != with_one and time.monotonic() < until:
            time.sleep(0.05)
        print(first.engine.threads, second.engine.threads, with_one, threads())
    """)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second, with_one, with_two = map(int, run.stdout.split())
    assert (first, second) == (3, 3)
    assert with_two == with_one


@pytest.mark.skipif(sys.platform != "linux", reason="Windows counts what is promised, too")
def test_a_large_cache_costs_memory_only_for_the_rows_that_are_written(engine: Engine) -> None:
    layer = KVLayer(heads=4, head_dim=64)
    before = private_bytes()
    cache = KVCache(open_provider("cpu"), KVLayout("float32", [layer] * 8), 100_000)
    assert cache.nbytes == 8 * 2 * 4 * 100_000 * 64 * 4
    assert private_bytes() - before < 2 << 20  # of which positions take 0.8 MB
    for key, value in cache.buffers:
        key[:, :, :100] = value[:, :, :100] = 1
    assert private_bytes() - before < 8 << 20


def test_a_cache_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit in memory"):
        KVCache(open_provider("cpu"), KVLayout("float32", [KVLayer(heads=1024, head_dim=1024)] * 1000), 1 << 40)


@pytest.mark.parametrize("chosen", [None, "0"])
def test_onnxruntime_reports_to_nobody_unless_somebody_wants_it(tmp_path: Path, chosen: str | None) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    variables |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    if chosen is not None:
        variables["ORT_DISABLE_TELEMETRY"] = chosen
    code = "import os, edge, onnxruntime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (chosen or "1")
    if chosen is None:
        assert not list(tmp_path.rglob("*onnxruntime*"))  # else its wheels keep a database there


def test_reproducible_steps_may_fill_all_of_the_context(tiny_bundle: Bundle) -> None:
    context = tiny_bundle.manifest.context
    engine = open_engine(tiny_bundle, context=context, exact=True)
    cache = engine.new_cache()
    engine.step(cache, np.full(context - 1, 5))  # an odd number
    logits = engine.step(cache, np.array([7]))
    assert context % 2 == 0 and cache.length == context and np.isfinite(logits).all()
