"""What is known of the machine: its energy meters, its neighbours, what its page cache holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge.runtime.costs.machine import Energy, Neighbours, cpu_name, describe, drop_from_page_cache, resident_bytes
from edge.runtime.providers.cores import usable_cores
from edge.runtime.providers.threads import default_threads

linux = pytest.mark.skipif(sys.platform != "linux", reason="what Linux tells")


def write(folder: Path, **files: str | int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def test_rapl_counts_all_processors_and_their_overflow(tmp_path: Path) -> None:
    first = write(tmp_path / "powercap" / "intel-rapl:0", name="package-0", energy_uj=1_000_000)
    second = write(
        tmp_path / "powercap" / "intel-rapl:1", name="package-1", energy_uj=9_500_000, max_energy_range_uj=10_000_000
    )
    write(tmp_path / "powercap" / "intel-rapl:0:0", name="core", energy_uj=5)  # a part of package-0
    energy = Energy(tmp_path)
    assert energy.of == "package-0, package-1"
    with energy.metered() as joules:
        write(first, energy_uj=3_000_000)
        write(second, energy_uj=500_000)  # begun again at zero
    assert joules == [3.0]


@pytest.mark.parametrize("files", [{"power_now": 5_000_000}, {"voltage_now": 4_000_000, "current_now": -1_250_000}])
def test_a_battery_that_runs_the_device_is_a_meter(tmp_path: Path, files: dict[str, int]) -> None:
    seconds = iter([10.0, 12.0])
    supply = write(tmp_path / "power_supply" / "BAT0", type="Battery", status="Discharging", **files)
    energy = Energy(tmp_path, clock=lambda: next(seconds))
    assert energy.of == "battery"
    with energy.metered() as joules:
        if "power_now" in files:
            write(supply, power_now=7_000_000)
    assert joules == [12.0 if "power_now" in files else 10.0]


def test_without_a_meter_there_is_no_energy(tmp_path: Path) -> None:
    write(tmp_path / "power_supply" / "BAT0", type="Battery", status="Charging", power_now=5_000_000)
    write(tmp_path / "power_supply" / "AC", type="Mains", online=1)
    energy = Energy(tmp_path)
    with energy.metered() as joules:
        pass
    assert energy.of is None and joules == []


def test_a_meter_that_goes_away_leaves_no_energy(tmp_path: Path) -> None:
    zone = write(tmp_path / "powercap" / "intel-rapl:0", name="package-0", energy_uj=1_000_000)
    energy = Energy(tmp_path)
    with energy.metered() as joules:
        (zone / "energy_uj").unlink()
    assert joules == []


def test_this_machine_has_a_name() -> None:
    device = describe("cpu", 3)
    assert device.threads == 3 and device.provider == "CPUExecutionProvider" and device.cores >= 1
    assert device.runtime.startswith("onnxruntime ") and device.cpu == cpu_name() != ""


def test_the_share_of_others_is_a_share() -> None:
    neighbours = Neighbours()
    sum(range(200_000))
    share = neighbours.share()
    assert share is None or 0 <= share <= 1


@linux
def test_a_file_can_be_dropped_from_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    assert resident_bytes(path) == 1 << 20
    if not drop_from_page_cache([path]):
        pytest.skip("the temporary folder's file system lives in memory")
    assert resident_bytes(path) == 0


@linux
def test_a_mapped_file_stays_in_the_page_cache_and_that_is_noticed(tmp_path: Path) -> None:
    import mmap

    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0  # every page is in use
        assert not drop_from_page_cache([path])


def test_cores_are_counted_where_the_system_knows_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == default_threads() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: 20)
    assert default_threads() == 8
