"""An export whose two stages each run in a process of their own: the memory of the libraries that write graphs is then
given back before the graphs run. `edge run` makes its bundles so."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from edge.bundle import BundleWriter
from edge.errors import CheckpointError
from edge.export.pipeline.finish import Staged, finish
from edge.export.request.export_request import ExportRequest
from edge.extras import needing
from edge.manifest import Manifest
from edge.runtime.mapped_file import check_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.export.facts.progress import Progress

STAGED = ".staged"  # what the first stage tells the second, a file next to the bundle's own


@needing("Exporting")
def stage_apart(request: ExportRequest, writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> None:
    """Write all that needs the checkpoint. Errors are those of `edge.export`."""
    from edge.export.checkpoint import open_checkpoint
    from edge.export.pipeline.settle import settle
    from edge.export.pipeline.stage import stage

    progress(0, 0, "opening the checkpoint")
    checkpoint = open_checkpoint(str(request.source), progress=progress, say=say)
    staged = stage(settle(request, checkpoint, say), writer, progress, say)
    check_all(CheckpointError)
    writer.write_file(STAGED, pickle.dumps(staged))


def finish_apart(
    request: ExportRequest, writer: BundleWriter, progress: Progress, say: Callable[[str], None]
) -> Manifest:
    """Run what `stage_apart` has written. The caller commits the manifest."""
    between = writer.staging / STAGED
    staged: Staged = pickle.loads(between.read_bytes())
    between.unlink()
    return finish(request, writer, staged, progress, say)
