"""The progress report of an export's stages."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]  # done, total, what is being done
