"""Fixtures of what lies around the package: a hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from web_servers import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    files = {"config.json": b"{}", "model.safetensors": b"weights", "model.onnx": b"x", "pytorch_model.bin": b"y"}
    made = Hub(files)
    address = f"http://127.0.0.1:{made.http.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    yield made
    made.http.shutdown()
    made.http.server_close()
