"""Before any test imports Ray."""

from __future__ import annotations

import edge.cluster  # noqa: F401 - in the order in which a command imports them: Ray reads what it sets
