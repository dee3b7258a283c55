"""A cache that is larger than all memory is refused before it is made."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import KVLayer, KVLayout
from edge.runtime.control_groups import groups_of
from edge.runtime.engine import cache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.memory import limit

GIB = 1 << 30
MOUNTS = """\
31 30 0:28 / /groups rw - cgroup2 cgroup2 rw
32 30 0:29 / /groups/memory rw - cgroup cgroup rw,memory
"""


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "memory_limit", lambda: 2 * GIB)


def test_a_context_that_fills_all_memory_is_refused_with_one_that_does_not(
    pristine_tiny_bundle: Bundle, small_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(pristine_tiny_bundle.root, replace(pristine_tiny_bundle.manifest, context=2**31 - 1))
    engine = Engine(bundle, Variant(context=2**31 - 1))
    monkeypatch.setattr(cache.np, "arange", lambda *_, **__: pytest.fail("rows were made"))
    with pytest.raises(InputError, match=r"takes [\d.]+ GB, and there are 2.1 GB of memory; ask for .* at most \d+"):
        engine.new_cache()
    with pytest.raises(InputError, match="ask for a --context of at most"):
        engine.make_cache(2**40)


def test_the_largest_context_that_is_named_does(small_machine: None) -> None:
    draw = random.Random(51)
    for _ in range(50):
        layers = [KVLayer(heads=draw.randint(1, 64), head_dim=draw.choice([8, 64, 256]))] * draw.randint(1, 80)
        layout = KVLayout(layers=tuple(layers), dtype=draw.choice(["float32", "float16", "int8"]))
        remote = draw.random() < 0.5
        with pytest.raises(InputError) as refused:
            cache.check_memory(layout, draw.randint(2**29, 2**40), remote=remote)
        named = int(str(refused.value).rstrip(".").rsplit(" ", 1)[1])
        assert named > 1
        cache.check_memory(layout, named, remote=remote)


def test_a_cache_of_a_usual_size_asks_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "memory_limit", lambda: pytest.fail("asked"))
    layout = KVLayout(layers=(KVLayer(heads=8, head_dim=128),) * 28, dtype="float32")
    cache.check_memory(layout, 4096, remote=False)


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4096", "memory.max": "9999"}, 4096),
        ("0::/not/seen/here\n", {"memory.max": "5000\n"}, 5000),
        ("4:memory:/x\n3:cpu:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "777", "x/memory.max": "1"}, 777),
        ("3:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": "888"}, 888),
        ("0::/a\n", {}, GIB),
        ("nonsense\n\n", {"memory.max": "damaged"}, GIB),
        (None, {"memory.max": "1"}, GIB),
    ],
)
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: dict[str, str], found: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    if groups is not None:
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content)
    monkeypatch.setattr(limit, "groups_of", lambda controller: groups_of(controller, tmp_path))
    monkeypatch.setattr(limit, "memory_bytes", lambda: GIB)
    assert limit.memory_limit() == found
