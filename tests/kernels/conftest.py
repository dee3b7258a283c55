"""The library of kernels, where it is installed and this processor can run it."""

from __future__ import annotations

import os

import pytest

from edge.runtime.providers.kernels import Kernels, find_kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    found = find_kernels()
    if found is None:
        assert "EDGE_TEST_KERNELS_REQUIRED" not in os.environ, "they must be built, and run here"
        pytest.skip("edge-lm-kernels is not installed, or this processor cannot run it")
    return found
