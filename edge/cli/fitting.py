"""Tables that fit a terminal of any width without cutting a word or a number."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

WIDEST = 1 << 16  # columns, more than any table has
INDENT = 2


class FittingTable(Table):
    """A table whose columns of text become narrower as far as no word is cut. Where that does not suffice, each row
    becomes lines of its own, a name and a value each."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=WIDEST, max_width=WIDEST)
        measures = [self._measured(column, console, wide) for column in self.columns]
        widths = [measure.maximum for measure in measures]
        least = [m.maximum if c.no_wrap else m.minimum for c, m in zip(self.columns, measures, strict=True)]
        room = options.max_width - (Measurement.get(console, wide, self).maximum - sum(widths))
        if sum(least) > room:
            longest = max(measure.minimum for measure in measures[1:]) if measures[1:] else 0
            yield Group(*self._stacked(options.max_width - longest))
            return
        while sum(widths) > room:
            widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
            widths[widest] -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _measured(self, column: Column, console: Console, wide: ConsoleOptions) -> Measurement:
        """The longest word, and the longest line, of a column."""
        shown = [*([column.header] if self.show_header else []), *column.cells]
        found = [Measurement.get(console, wide, each) for each in shown] or [Measurement(0, 0)]
        least = max(each.minimum for each in found)
        return Measurement(least, max(column.min_width or 0, *(each.maximum for each in found)))

    def _stacked(self, room: int) -> Iterator[RenderableType]:
        """Each row as lines of its own. room: columns next to the longest word of a value."""
        if self.title:
            yield Text(str(self.title), "bold")
        headers = ["".join(str(column.header).splitlines()) for column in self.columns]
        for name, *values in zip(*(column.cells for column in self.columns), strict=True):
            words = self.columns[0].justify == "left"
            yield Text(str(name) if words else f"{headers[0]} {name}".strip(), "bold")
            named = [(header, value) for header, value in zip(headers[1:], values, strict=True) if str(value)]
            if room < 2 * INDENT + max(map(cell_len, headers)):
                yield from (Padding(each, (0, 0, 0, INDENT)) for pair in named for each in pair)
                continue
            lines = Table.grid(padding=(0, INDENT, 0, 0), pad_edge=False)
            lines.add_column(no_wrap=True)
            lines.add_column(overflow="fold")
            for pair in named:
                lines.add_row(*pair)
            yield Padding(lines, (0, 0, 0, INDENT))
        yield ""
