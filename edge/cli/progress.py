"""Progress bars of the commands: on standard error, gone when done, and silent where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edge.cli.screen import install
from edge.cli.tables import console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


OF_BYTES = ("packing weights",)  # stages whose totals are bytes


@contextmanager
def bar(title: str, total: float, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Shows how far a task of `total` has come; yields the function that is told of each step's size.

    With the unit ``bytes`` amount and speed are shown as bytes.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn()
    with drawn(*columns) as progress:
        task = progress.add_task(title, total=total)
        yield lambda step: progress.advance(task, step)


@contextmanager
def drawn(*columns: ProgressColumn) -> Iterator[Progress]:
    """Draws bars on standard error, a terminal, and prints above them what is printed meanwhile. What goes to a file
    or a pipe goes on there."""
    from rich.progress import Progress

    to_screen = sys.stdout.isatty()
    with Progress(*columns, console=console(stderr=True), transient=True, redirect_stdout=to_screen) as progress:
        install()  # before what rich prints with: it obeys escape sequences
        yield progress


def amount_column() -> ProgressColumn:
    """Shows how many bytes are done and how many there are, of the stages in `OF_BYTES` alone."""
    from rich.progress import DownloadColumn, Task
    from rich.text import Text

    class AmountColumn(DownloadColumn):
        def render(self, task: Task) -> Text:
            return super().render(task) if task.description in OF_BYTES and task.total else Text()

    return AmountColumn()


class Countdown:
    """Seconds that all tasks together still take; None while that is unknown."""

    def __init__(self) -> None:
        self.left: Callable[[], float | None] = lambda: None


def time_column(countdown: Countdown) -> ProgressColumn:
    """Shows the time that is left, as it goes by; where that is unknown that of a stage of bytes, else the time that a
    task has taken."""
    from rich.progress import Task, TimeElapsedColumn
    from rich.text import Text

    class TimeColumn(TimeElapsedColumn):
        def render(self, task: Task) -> Text:
            left = countdown.left()
            if left is None and task.description in OF_BYTES:
                left = task.time_remaining
            if left is None:
                return super().render(task)
            from edge.export.request.timeline import in_words

            return Text(f"{in_words(left)} left", style="progress.remaining")

    return TimeColumn()
