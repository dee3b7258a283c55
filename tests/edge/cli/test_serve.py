"""`edge serve` as a command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from edge.bundle import Bundle
from edge.cli.main import main

pytest.importorskip("uvicorn")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--parallel", "0"], "--parallel must be from 1 to 64"),
        (["--queue", "-1"], "--queue must be from 0"),
        (["--replicas", "2"], "name it with --cluster ADDRESS"),
        (["--cluster", "local", "--log"], "--log tells of answers of this machine"),
        (["--host", "0.0.0.0"], "--api-key"),
        (["--host", "no.such.host.invalid", "--api-key", "x"], "cannot listen at no.such.host.invalid"),
        ([], "There is no bundle here yet"),
        (["no-such-model.edge"], "There is no bundle at no-such-model.edge"),
    ],
)
def test_what_cannot_be_served_is_said(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGE_API_KEY", raising=False)
    assert main(["serve", "--port", "0", *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "Traceback" not in said


def test_a_port_in_use_is_said_before_anything_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "no-such-model.edge", "--port", str(port)]) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_said_before_anybody_asks(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tiny_bundle.root), "--port", "0", "--memory", "10MB"]) == 2
    said = capsys.readouterr().err
    assert "does not fit into 10 MB; the smallest budget that would do is" in said and "Serving" not in said


@pytest.mark.parametrize("given", ["0", "x", "4-2", "-3", "1-", "1-2-3", "²"])
def test_odd_numbers_of_replicas_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--cluster", "local", f"--replicas={given}"]) == 2
    assert "replicas are a number such as 4, or MIN-MAX such as 1-4" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in [name for name in sys.modules if name.startswith("edge.cluster")]:
        monkeypatch.delitem(sys.modules, each)  # of tests before
    for each in ("grpc", "ray"):
        monkeypatch.setitem(sys.modules, each, None)
    assert main(["serve", str(tiny_bundle.root), "--port", "0", "--cluster", "local"]) == 2
    said = capsys.readouterr().err
    assert "--cluster needs" in said and "[cluster]" in said


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_it_serves_until_it_is_interrupted(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """And needs no Ray for it, even where there is one."""
    (tmp_path / "ray.py").write_text("raise SystemExit('Ray was imported.')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "edge.cli.main", "serve", str(tiny_bundle.root), "--port", "0", "--log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths})
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", first)
        assert found is not None, first
        body = json.dumps({"prompt": "The moon", "max_tokens": 4, "temperature": 0}).encode()
        request = urllib.request.Request(f"{found[0]}/v1/completions", body)
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "Traceback" not in rest
    assert "4 of answer" in rest and "The moon" not in rest
