"""How a stage of an export says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]  # done, total, what is being done
