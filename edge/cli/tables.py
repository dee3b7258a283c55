"""Output of commands: tables on the terminal, and JSON for scripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from edge.cli.screen import below, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

PIPE = 1000  # columns of what is no terminal


def console(*, stderr: bool = False, wrap: bool = False) -> Console:
    """Standard output, or standard error. Text means what it says: it has no markup, and its control characters are
    shown on a terminal.

    wrap: tables are made as narrow as the terminal.
    """
    from rich.console import Console

    file = below(sys.stderr if stderr else sys.stdout)
    shown = visible if file.isatty() else str

    class Visible(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(shown(text), **options)

        def render(self, *content: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*content, **options):
                yield segment if segment.control else segment._replace(text=shown(segment.text))

    width = None if file.isatty() or "COLUMNS" in os.environ else PIPE  # who reads a pipe has windows of any width
    return Visible(file=file, width=width, highlight=False, soft_wrap=not wrap, markup=False, emoji=False)


def labelled(label: str, text: str = "") -> Text:
    """A line that a label in bold begins."""
    from rich.text import Text

    return Text.assemble((label, "bold"), text)


def table(
    title: str, *columns: str, text: int | Collection[str] = 0, width: int | None = None, compact: bool = False
) -> Any:
    """A rich table of numbers, in which the first `text` columns, or those of these names, are text.

    Where there is little room text breaks between words; where that is not enough, each row becomes lines of a name and
    a value. No word and no number is cut.

    width: minimum of the first column. compact: one space between columns, and none at the edges.
    """
    from rich import box

    from edge.cli.fitting import FittingTable

    padding, header = ((0, 1, 0, 0) if compact else (0, 1)), any(columns)
    made = FittingTable(box=box.SIMPLE, title=title or None, title_justify="left", title_style="bold", padding=padding)
    made.show_header, made.pad_edge = header, not compact
    for i, name in enumerate(columns):
        left = i < text if isinstance(text, int) else name in text
        wraps = left and not (compact and i == 0)
        justify: Any = "left" if left else "right"
        made.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold", min_width=None if i else width)
    return made


def print_json(content: object) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))


def shown_bytes(count: float) -> str:
    """A number of bytes in words: kB is 1,000 of them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"
