"""The cache folder keeps what was used last, and no more."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from profile_example import example_profile

from edge import bundle as bundles
from edge.bundle import Bundle
from edge.home import KEPT, drop_oldest
from edge.runtime.profile import curve, machine
from edge.runtime.profile.profile import bundle_info

DAY = 86_400


@pytest.fixture
def settled(paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle whose files count as long unchanged."""
    monkeypatch.setattr(bundles, "SETTLED_NS", -1)
    return paper_bundle


def fill(folder: Path, count: int = KEPT, *, folders: bool = False) -> list[Path]:
    """Entries of other bundles, the first ones used longest ago."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{i:08x}" for i in range(count)]
    for i, entry in enumerate(made):
        if folders:
            entry.mkdir()
            (entry / "device.json").write_text("{}")
        else:
            entry.write_text("{}")
        at = time.time() - DAY - count + i
        os.utime(entry, (at, at))
    return made


def test_stamps_of_bundles_used_long_ago_make_room(settled: Bundle, own_cache: Path) -> None:
    folder = own_cache / "checked"
    others = fill(folder)
    settled.check_files_once()
    assert len(list(folder.iterdir())) == KEPT
    assert not others[0].exists() and others[1].exists()


def test_costs_of_bundles_used_long_ago_make_room(paper_bundle: Bundle, own_cache: Path) -> None:
    folder = own_cache / "curves"
    others = fill(folder, folders=True)
    device = machine.describe("cpu", 2)
    profile = dataclasses.replace(example_profile(), device=device, bundle=bundle_info(paper_bundle))
    assert curve.store(profile).exists()
    assert len(list(folder.iterdir())) == KEPT
    assert not others[0].exists() and others[1].exists()


@pytest.mark.parametrize("what", ["stamp", "curve"])
def test_what_is_used_is_kept(settled: Bundle, own_cache: Path, what: str) -> None:
    profile = dataclasses.replace(example_profile(), device=machine.describe("cpu", 2), bundle=bundle_info(settled))
    make, use = {
        "stamp": (settled.check_files_once, settled.check_files_once),
        "curve": (lambda: curve.store(profile), lambda: curve.load_both(settled, provider="cpu", threads=2)),
    }[what]
    make()
    folder = own_cache / ("checked" if what == "stamp" else "curves")
    (own,) = folder.iterdir()
    os.utime(own, (0, 0))
    use()
    others = fill(folder)
    drop_oldest(folder)
    assert own.exists() and not others[0].exists()


def test_processes_that_make_room_at_a_time_do_not_trip(own_cache: Path) -> None:
    """Each writes entries of its own among those that all remove."""
    folder = own_cache / "checked"
    fill(folder, 2 * KEPT, folders=True)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from edge.home import drop_oldest, replace_text\n"
        "folder = Path(sys.argv[1])\n"
        "for i in range(60):\n"
        "    replace_text(folder / f'{sys.argv[2]}-{i}' / 'device.json', '{}')\n"
        "    drop_oldest(folder)\n"
        "    assert (folder / f'{sys.argv[2]}-{i}' / 'device.json').exists()\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), str(i)], stderr=subprocess.PIPE) for i in range(3)
    ]
    assert [(each.communicate(timeout=60)[1], each.returncode) for each in running] == [(b"", 0)] * 3
    assert len(list(folder.iterdir())) <= KEPT


def test_a_folder_that_is_missing_or_no_folder_is_left_alone(own_cache: Path) -> None:
    drop_oldest(own_cache / "none")
    (own_cache / "file").write_text("")
    drop_oldest(own_cache / "file")
    assert (own_cache / "file").exists()
