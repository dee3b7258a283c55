"""Locks between processes: one holder at a time, nothing left, and no foreign file touched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edge.errors import InputError
from edge.lock import locked

# Each adds to a number in a file, under the lock.
ADDS = """
import sys, time
from pathlib import Path
from edge import lock
lock.PAUSE_S = 0.001
number = Path(sys.argv[2])
for _ in range(30):
    with lock.locked(Path(sys.argv[1]), lambda: None) as free:
        assert free
        before = int(number.read_text())
        time.sleep(0.001)
        number.write_text(str(before + 1))
"""


def test_a_lock_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.lock"
    with locked(path) as free:
        assert free and path.exists()
        with locked(path) as second:
            assert not second
        assert path.exists()
    assert not path.exists()


def test_processes_that_remove_and_make_it_never_hold_it_together(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    runs = [subprocess.Popen([sys.executable, "-c", ADDS, tmp_path / "a.lock", number]) for _ in range(4)]
    assert [each.wait() for each in runs] == [0] * 4
    assert number.read_text() == "120" and sorted(path.name for path in tmp_path.iterdir()) == ["number"]


def test_another_holders_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with locked(path):
        path.unlink()
        path.write_text("of another")
    assert path.read_text() == "of another"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other kinds of files")
@pytest.mark.parametrize("kind", ["link", "link to nothing", "link to a pipe", "link to a folder", "folder", "pipe"])
def test_what_is_no_file_is_refused_and_left_alone(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "a.lock", tmp_path / "other"
    if kind == "link to a pipe":
        os.mkfifo(other)
    elif kind == "link to a folder":
        other.mkdir()
    elif kind == "link":
        other.write_text("somebody's")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    done = threading.Event()

    def lock() -> None:
        with pytest.raises(InputError, match="a.lock is a link, a folder or a pipe where a file belongs"):
            locked(path).__enter__()
        done.set()

    threading.Thread(target=lock, daemon=True).start()
    assert done.wait(60)
    assert os.path.lexists(path) and (kind != "link" or other.read_text() == "somebody's")


def test_a_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    script = "import os, sys; from pathlib import Path; from edge.lock import locked\n"
    script += "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", script, path]).returncode == -9
    assert path.exists()
    with locked(path) as free:
        assert free
    assert not path.exists()
