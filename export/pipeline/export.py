"""A whole export in this process: its stages, and the time that they take."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edge.bundle import Bundle, BundleWriter
from edge.errors import CheckpointError, ExportError
from edge.export.facts.progress import Progress
from edge.export.graph.families import FAMILIES
from edge.export.request.choices import Named, described_default
from edge.export.request.export_request import ExportRequest
from edge.export.request.forecast import forecast
from edge.export.request.glance import glance_at
from edge.export.request.timeline import Timeline
from edge.runtime.mapped_file import check_all

Expect = Callable[[str, Callable[[], float]], None]


def export_bundle(
    request: ExportRequest, progress: Progress | None, say: Callable[[str], None] | None, expect: Expect | None
) -> Bundle:
    """Turn a checkpoint into a bundle; arguments and errors are those of `edge.export`."""
    tell, line = say or _silent, Timeline(progress or _silent)
    line(0, 0, "opening the checkpoint")

    def begin(model: Named) -> bool:
        if model.config.get("model_type") not in (None, *FAMILIES) or (found := forecast(request, model)) is None:
            return False
        sentence, stages = found
        line.begin(stages)
        if expect is not None:
            expect(sentence, line.left)
        return True

    glance = glance_at(str(request.source))
    begun = glance is not None and begin(glance)

    from edge.export.checkpoint import open_checkpoint
    from edge.export.pipeline.finish import finish
    from edge.export.pipeline.settle import settle
    from edge.export.pipeline.stage import stage

    checkpoint = open_checkpoint(str(request.source), progress=line, say=say, floats=not request.quick)
    if not begun:
        begin(checkpoint)
    plan = settle(request, checkpoint, tell)
    if request.weights is None and (reason := described_default(checkpoint, plan.chosen.weights)) is not None:
        tell(reason)
    place = Path(f"{plan.name}.edge" if request.out is None else request.out)
    with _no_folders_left(place), BundleWriter(place, force=request.force) as writer:
        manifest = finish(request, writer, stage(plan, writer, line, tell), line, tell)
        check_all(CheckpointError)
        line(0, 0, "hashing the bundle")
        return writer.commit(manifest)


@contextlib.contextmanager
def _no_folders_left(target: Path) -> Iterator[None]:
    """Remove the parent folders of `target` that did not exist before, if writing it fails.

    Raises:
        ExportError: one of its parents is not a folder.
    """
    missing = []
    for folder in target.parents:
        if os.path.lexists(folder):
            if not folder.is_dir():
                raise ExportError(f"{target} cannot be written: {folder} is not a folder.")
            break
        missing.append(folder)
    try:
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):  # never made, or another program has put something there
                folder.rmdir()
        raise


def _silent(*args: Any) -> None:
    pass
