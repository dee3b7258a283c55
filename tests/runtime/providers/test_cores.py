"""How many cores a process may use: affinity and the CPU quota of control groups, of version 1 and 2 and nested."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest

from edge.runtime.providers import cores
from edge.runtime.providers.cores import cgroup_cores, usable_cores
from edge.runtime.providers.threads import default_threads

PERIOD = 100_000
VERSIONS = ("1", "2", "both")  # both: a hybrid system, whose processor time version 1 limits


def write_group(folder: Path, version: str, quota: int | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if version == "2":
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota is None else quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{PERIOD}\n")


def make_system(root: Path, version: str, names: list[str], quotas: list[int | None], inside: int, mount: str) -> None:
    """A system whose groups `names` are nested, each with a quota, in a hierarchy that is mounted from its group
    number `inside` on, as a container sees it. quotas: of the hierarchy's root, then of each group."""
    path, shown = "/" + "/".join(names), "/" + "/".join(names[:inside])
    for depth in range(inside, len(names) + 1):
        write_group(root.joinpath(mount, *names[inside:depth]), version[0].replace("b", "1"), quotas[depth])
    one, two = f"4:memory:/other\n3:cpu,cpuacct:{path}\n", f"0::{path if version == '2' else '/'}\n"
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text({"1": one, "2": two, "both": one + two}[version])
    place = mount.replace(" ", r"\040")
    first = f"32 31 0:29 {shown} /{place} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    second = f"41 31 0:38 {shown if version == '2' else '/'} /{place if version == '2' else 'unified'} rw"
    second += " - cgroup2 cgroup2 rw\n"
    other = "33 31 0:30 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
    other += "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
    (proc / "mountinfo").write_text(other + {"1": first, "2": second, "both": first + second}[version])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(8))
def test_the_least_quota_of_all_groups_that_a_process_is_nested_in_counts(
    tmp_path: Path, version: str, seed: int
) -> None:
    draw = random.Random(seed)
    names = [f"group-{i}.slice" for i in range(draw.randint(1, 5))]
    quotas = [draw.choice([None, draw.randint(1, 16 * PERIOD)]) for _ in range(len(names) + 1)]
    inside = draw.randint(0, len(names))
    make_system(tmp_path, version, names, quotas, inside, draw.choice(["sys/fs/cgroup/cpu", "a b/groups"]))
    least = min((quota / PERIOD for quota in quotas[inside:] if quota is not None), default=None)
    assert cgroup_cores(tmp_path) == least


def test_a_container_that_sees_its_own_group_as_the_root_has_its_quota(tmp_path: Path) -> None:
    make_system(tmp_path, "2", [], [150_000], 0, "sys/fs/cgroup")
    assert cgroup_cores(tmp_path) == 1.5


def test_a_group_outside_of_what_is_mounted_is_not_looked_for(tmp_path: Path) -> None:
    make_system(tmp_path, "2", [], [250_000], 0, "sys/fs/cgroup")
    (tmp_path / "proc/self/cgroup").write_text("0::/../../elsewhere\n")
    assert cgroup_cores(tmp_path) == 2.5


@pytest.mark.parametrize("content", ["", "max", "0 0", "many few", "max 100000", "-1 100000", "1 2 3"])
def test_what_is_no_quota_limits_nothing(tmp_path: Path, content: str) -> None:
    make_system(tmp_path, "2", ["a"], [None, None], 0, "sys/fs/cgroup")
    (tmp_path / "sys/fs/cgroup/a/cpu.max").write_text(content)
    assert cgroup_cores(tmp_path) is None


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path) is None


@pytest.mark.parametrize(("bound", "quota"), [(16, None), (16, 0.2), (16, 1.0), (16, 2.5), (3, 7.0), (1, 4.0)])
def test_threads_are_as_many_as_the_smaller_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, bound: int, quota: float | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)), raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: quota)
    expected = bound if quota is None else min(bound, max(1, math.ceil(quota)))
    assert usable_cores() == expected
    assert default_threads() == min(expected, 8)
