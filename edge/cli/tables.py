"""What commands print: tables on the terminal, and JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def console(*, wrap: bool = False) -> Console:
    """Standard output. wrap: tables are made as narrow as the terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not wrap)


def table(
    title: str, *columns: str, text: int | Collection[str] = 0, width: int | None = None, compact: bool = False
) -> Any:
    """A rich table of numbers, in which the first `text` columns, or those of these names, are text.

    width: minimum of the first column. compact: one space between columns, and none at the edges.
    """
    from rich import box
    from rich.table import Table

    padding, header = ((0, 1, 0, 0) if compact else (0, 1)), any(columns)
    made = Table(box=box.SIMPLE, title=title or None, title_justify="left", title_style="bold", padding=padding)
    made.show_header, made.pad_edge = header, not compact
    for i, name in enumerate(columns):
        # Where there is little room, text is wrapped, but not a row's name; numbers are never cut.
        left = i < text if isinstance(text, int) else name in text
        wraps = left and not (compact and i == 0)
        justify: Any = "left" if left else "right"
        made.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold", min_width=None if i else width)
    return made


def print_json(content: object) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))
