"""Writing a report: whole or not at all, and where it was asked for."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest

from edge.cli.reports import check_target, write_report
from edge.home import replacing

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")


def plant(folder: Path, victim: Path, name: str) -> None:
    """Links in the folder by every name that a process of this number may choose for a file in the making."""
    for dot, end in itertools.product(("", "."), (".part", ".new", ".tmp")):
        for number in (f".{os.getpid()}", f".{os.getpid()}-{threading.get_ident()}", ""):
            (folder / f"{dot}{name}{number}{end}").symlink_to(victim)


@pytest.mark.parametrize("there", [None, "", "mine"])
def test_links_in_a_strangers_folder_lead_no_report_elsewhere(tmp_path: Path, there: str | None) -> None:
    folder, victim = tmp_path / "downloaded", tmp_path / "victim"
    folder.mkdir()
    if there is not None:
        victim.write_text(there)
    plant(folder, victim, "report.html")
    check_target(folder / "report.html")
    write_report(folder / "report.html", "<html>")
    with replacing(folder / "report.html") as part:
        part.write_text("<html>")
    assert (folder / "report.html").read_text() == "<html>"
    assert (victim.read_text() if victim.exists() else None) == there


def test_a_link_that_is_the_report_leads_on(tmp_path: Path) -> None:
    (tmp_path / "latest.html").symlink_to(tmp_path / "july.html")
    write_report(tmp_path / "latest.html", "new")
    assert (tmp_path / "july.html").read_text() == "new" and (tmp_path / "latest.html").is_symlink()


def test_a_report_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    write_report(tmp_path / "report.html", "")
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_report_goes_into_a_pipe_that_has_no_name_of_its_own() -> None:
    """As of `--html /dev/stdout | less`: what the link leads to is no path."""
    reading, writing = os.pipe()
    try:
        write_report(Path(f"/dev/fd/{writing}"), "<html>")
        assert os.read(reading, 100) == b"<html>"
    finally:
        os.close(reading)
        os.close(writing)
