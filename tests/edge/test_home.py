"""The cache folder keeps what was used last, and no more."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from profile_example import example_profile

from edge import bundle as bundles
from edge import catalog, home
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.home import KEPT, cache_dir, drop_oldest, open_own, read_own_json, replace_text
from edge.lock import locked
from edge.runtime.costs import curve, machine
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


def test_no_time_makes_an_entry_stay_for_ever_or_go_at_once(own_cache: Path) -> None:
    """Whatever the clocks of those that wrote the others: what was just made stays, and the others leave in turn."""
    folder, choose = own_cache / "checked", random.Random(51)
    folder.mkdir()
    for i in range(20):
        (folder / f"old{i}").write_text("{}")
        at = time.time() + choose.choice([-DAY, -1, 1, DAY, 10**9])
        os.utime(folder / f"old{i}", (at, at))
    made = list[Path]()
    for i in range(30):
        made.append(folder / f"new{i}")
        made[-1].write_text("{}")
        drop_oldest(folder, 5, made=made[-1])
        assert len(list(folder.iterdir())) == 5
        assert all(entry.exists() for entry in made[-3:])
        time.sleep(0.01)
    assert {*folder.iterdir()} == {*made[-5:]}


def test_links_and_folders_go_as_entries_and_nothing_behind_them(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    folder = own_cache / "checked"
    folder.mkdir()
    (folder / "folder").symlink_to(tmp_path / "outside")
    (folder / "file").symlink_to(tmp_path / "outside" / "precious")
    (folder / "nothing").symlink_to(tmp_path / "none")
    drop_oldest(folder, 0)
    assert list(folder.iterdir()) == []
    assert (tmp_path / "outside" / "precious").read_text() == "precious"


def test_whoever_makes_something_in_the_cache_makes_it_for_its_owner(
    settled: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "above" / "home"))
    profile = dataclasses.replace(example_profile(), device=machine.describe("cpu", 2), bundle=bundle_info(settled))
    entry = dataclasses.replace(catalog.entries()[0], terms=catalog.Terms("terms", "https://example.org"))
    mask = os.umask(0)
    try:
        settled.check_files_once()
        curve.store(profile)
        catalog.accept(entry)
        with locked(cache_dir() / "bundles" / "x.lock"):
            pass
        replace_text(tmp_path / "report" / "a.txt", "a user's own file")
    finally:
        os.umask(mask)
    folders = {path.name for path in cache_dir().iterdir()}
    assert folders == {"checked", "curves", "accepted", "bundles"}
    for path in (cache_dir(), *cache_dir().rglob("*")):
        assert path.name == "x.lock" or path.stat().st_mode & 0o077 == 0, path
    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o777  # no folder of the cache
    assert (tmp_path / "report" / "a.txt").stat().st_mode & 0o777 == 0o666
    assert catalog.accepted(entry)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners")
def test_what_belongs_to_another_user_is_not_used_and_said_once(
    settled: Bundle, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home._warn_of.cache_clear()
    profile = dataclasses.replace(example_profile(), device=machine.describe("cpu", 2), bundle=bundle_info(settled))
    entry = dataclasses.replace(catalog.entries()[0], terms=catalog.Terms("terms", "https://example.org"))
    settled.check_files_once()
    curve.store(profile)
    catalog.accept(entry)
    assert curve.load_both(settled, provider="cpu", threads=2) and catalog.accepted(entry)
    monkeypatch.setattr(home.os, "geteuid", lambda: 4242)
    hashed = list[Path]()
    monkeypatch.setattr(bundles, "sha256_of", lambda path, *_: hashed.append(path) or pytest.fail("enough"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not catalog.accepted(entry)
            assert not curve.load_both(settled, provider="cpu", threads=2)
            with pytest.raises(pytest.fail.Exception, match="enough"):
                settled.check_files_once()
    assert len(caplog.records) == 3
    assert all("belongs to another user and is not used" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe", b"{", b"1" * 10_000, b"", b"null"])
def test_a_stamp_that_is_none_is_as_a_missing_one(settled: Bundle, own_cache: Path, content: bytes) -> None:
    settled.check_files_once()
    (stamp,) = (own_cache / "checked").iterdir()
    whole = stamp.read_bytes()
    stamp.write_bytes(content)
    settled.check_files_once()
    assert stamp.read_bytes() == whole


@pytest.mark.parametrize("thing", ["folder", "pipe", "link", "device", "large"])
def test_only_plain_small_files_of_the_cache_are_read(
    own_cache: Path, thing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own_cache / "x.json"
    if thing == "folder":
        path.mkdir()
    elif thing == "pipe":
        os.mkfifo(path)
    elif thing == "large":
        monkeypatch.setattr(home, "SMALL", 10)
        path.write_text(json.dumps([1] * 100))
    else:
        (own_cache / "other").write_text("1")
        path.symlink_to(own_cache / "other" if thing == "link" else "/dev/zero")
    assert read_own_json(path) is None
    if thing != "large":
        with pytest.raises(OSError):
            open_own(path)
    replace_text(path, "2")
    assert read_own_json(path) == 2
    assert not (own_cache / "other").exists() or (own_cache / "other").read_text() == "1"


@pytest.mark.parametrize("named", ["~nosuchuser", "~nosuchuser/cache"])
def test_a_home_that_does_not_exist_is_a_sentence(
    tiny_bundle: Bundle, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGE_HOME", named)
    with pytest.raises(InputError, match="EDGE_HOME is '~nosuchuser.*set EDGE_HOME to a folder"):
        cache_dir()
    assert main(["run", str(tiny_bundle.root), "hi"]) == 2
    assert "EDGE_HOME" in capsys.readouterr().err


def test_without_a_home_nothing_is_kept_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("EDGE_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    home._warn_without.cache_clear()
    assert main(["run", str(tiny_bundle.root), "a b", "--max-tokens", "2", "--raw"]) == 0
    err = capsys.readouterr().err
    assert err.count("This user has no home folder, so edge keeps nothing between runs; set EDGE_HOME") == 1
    assert err.count("\n") == 2, "that, and the figures"
    assert home.why_unwritable() is not None and not cache_dir().exists()


@pytest.mark.parametrize("harm", ["a file", "a link to itself", "a link to nothing"])
def test_a_bundle_runs_without_a_cache(
    tiny_bundle: Bundle, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home"
    if harm == "a file":
        place.write_text("")
    else:
        place.symlink_to(place if harm == "a link to itself" else tmp_path / "none" / "none")
    monkeypatch.setenv("EDGE_HOME", str(place))
    assert main(["run", str(tiny_bundle.root), "a b", "--max-tokens", "2", "--raw"]) == 0


@pytest.mark.parametrize(
    ("sizes", "room", "left"),
    [
        *(([5, 5, 5], None, 3), ([5, 5, 5], 15, 3), ([5, 5, 5], 14, 2), ([5, 5, 5], 1, 1)),
        *(([50, 5, 5], 14, 2), ([5, 5, 50], 60, 3)),
    ],
)
def test_files_have_so_much_room_and_the_last_one_stays(
    own_cache: Path, sizes: list[int], room: int | None, left: int
) -> None:
    folder = own_cache / "packed"
    folder.mkdir()
    for age, size in enumerate(reversed(sizes)):
        (folder / f"{age}").write_bytes(bytes(size))
        os.utime(folder / f"{age}", (1000 - age, 1000 - age))
    drop_oldest(folder, 8, made=folder / "0", room=room)
    assert len(list(folder.iterdir())) == left and (folder / "0").exists()
