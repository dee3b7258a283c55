"""A pip in whatever state gives a wheel or a sentence."""

from __future__ import annotations

import itertools
import time
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from edge import download as downloads
from edge import fetch, pip
from edge.catalog import Part, UrlSource
from edge.download import Unavailable
from edge.pip import PipFailed, download

BROKEN = {
    "prints nothing": ("import sys; sys.exit(1)", "pip could not download it (it ended with status 1)"),
    "prints blank lines": ("print(' \\n\\n'); exit(2)", "pip could not download it (it ended with status 2)"),
    "says why": ("exit('ERROR: no such thing.')", "pip could not download it (no such thing)"),
    "does not print text": (
        "import os; os.write(2, b'ERROR: \\xff\\xfe\\x80'); raise SystemExit(1)",
        "pip could not download it (\N{REPLACEMENT CHARACTER}",
    ),
    "raises": ("raise OSError(5, 'of its own')", "pip could not download it (OSError: [Errno 5] of its own)"),
    "cannot be read": ("def", "pip could not download it (SyntaxError"),
    "lacks a module": ("import nosuchmodule", "pip could not download it (ModuleNotFoundError"),
    "ends at once": ("import os; os._exit(3)", "pip broke off (it ended with status 3)"),
    "is ended": ("import os; os.kill(os.getpid(), 9)", "pip broke off (the system ended it with SIGKILL)"),
    "gives no wheel": ("", "pip downloaded no wheel of it"),
    "gives another file": ("open('toy.tar.gz', 'w')", "pip downloaded no wheel of it"),
    "does nothing": ("import time; time.sleep(60)", "pip did nothing for 1 s"),
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def install(code: str) -> None:
        (tmp_path / "path" / "pip").mkdir(parents=True)
        (tmp_path / "path" / "pip" / "__init__.py").touch()
        (tmp_path / "path" / "pip" / "__main__.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
        monkeypatch.syspath_prepend(tmp_path / "path")

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    return install


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_pip_gets_a_sentence(
    fault: str, fake: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, sentence = BROKEN[fault]
    fake(code)
    monkeypatch.setattr(pip, "_WAIT", 1.0 if fault == "does nothing" else 60.0)
    with pytest.raises(PipFailed) as caught:
        download("toy==1.0", tmp_path / "work", lambda size: None)
    assert str(caught.value).startswith(sentence)


def test_a_python_without_pip_gets_a_sentence(
    fake: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("")
    (tmp_path / "path" / "sitecustomize.py").write_text("import sys; sys.modules['pip'] = None")
    with pytest.raises(PipFailed, match=r"pip is not installed for this Python \(run: python -m ensurepip\)"):
        download("toy==1.0", tmp_path / "work", lambda size: None)


def test_a_pip_that_works_on_is_waited_for(
    fake: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes after nearly as long as it may take, by a clock that the sizes move: what a real one says depends
    on how busy the machine is."""
    wheel, told, grown = tmp_path / "work" / "toy.whl", list[int](), 0
    fake(
        "import os, time\n"
        "for i in range(1, 6):\n"
        f"    while not os.path.exists({str(tmp_path)!r} + f'/go-{{i}}'):\n"
        "        time.sleep(0.01)\n"
        f"    open({str(wheel)!r}, 'ab').write(b'x')"
    )

    def tell(size: int) -> None:
        nonlocal grown
        if size > max(told, default=-1):
            grown += 1
        else:  # the look after one that found more
            (tmp_path / f"go-{grown}").touch()
        told.append(size)

    monkeypatch.setattr(pip, "_WAIT", 1.0)
    monkeypatch.setattr(pip, "time", SimpleNamespace(monotonic=lambda: 0.9 * grown))
    assert download("toy==1.0", tmp_path / "work", tell) == wheel
    assert max(told) > min(told) and grown >= 5


# What comes from a server


def archive(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("toy/data", content)


def harmed(path: Path, seed: int) -> None:
    """Another byte somewhere in an archive."""
    import random

    rng, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


@pytest.mark.parametrize("seeds", [range(i, i + 50) for i in range(0, 200, 50)])
def test_a_harmed_wheel_gives_the_part_or_a_sentence(seeds: range, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20
    part = Part("toy", "1.0", "toy/data", fetch.hashlib.sha256(content).hexdigest(), len(content))
    for seed in seeds:
        archive(tmp_path / "toy.whl", content)
        harmed(tmp_path / "toy.whl", seed)
        place = tmp_path / f"place-{seed}"
        try:
            fetch._take_parts(tmp_path / "toy.whl", {part: place})
        except (Unavailable, fetch.CatalogError):
            assert not place.exists()
        else:
            assert place.read_bytes() == content


def test_a_wheel_that_unpacks_without_end_stops_at_the_parts_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "toy.whl", bytes(40 << 20))
    part, written = Part("toy", "1.0", "toy/data", "0" * 64, 1000), list[int]()
    verify = fetch._verify
    monkeypatch.setattr(fetch, "_verify", lambda path, *a: written.append(path.stat().st_size) or verify(path, *a))
    with pytest.raises(fetch.CatalogError, match="has the sha256"):
        fetch._take_parts(tmp_path / "toy.whl", {part: tmp_path / "place"})
    assert written[0] <= 1000 + fetch._CHUNK and not (tmp_path / "place").exists()


class Server(BaseHTTPRequestHandler):
    """Sends a byte at a time."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        try:
            for _ in range(2000):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None: ...


def test_a_server_that_drips_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that each look moves by 5 s."""
    monkeypatch.setattr(downloads, "time", SimpleNamespace(monotonic=itertools.count(step=5).__next__))
    server = HTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    source = UrlSource("toy.gguf", "0" * 64, f"http://127.0.0.1:{server.server_port}/toy.gguf", 1_000_000)
    try:
        start = time.monotonic()
        with pytest.raises(downloads.Unavailable, match="the server sends less than 64 kB in 30 s after"):
            downloads.download(source, tmp_path / "part", lambda *_: None)
        assert time.monotonic() - start < 60  # three requests
    finally:
        server.shutdown()
        server.server_close()
