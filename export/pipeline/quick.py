"""A quick export in two stages, each of which may run in a process of its own: the memory of the libraries that write
graphs is then given back before the graphs run. `edge run` makes its bundles so, with the defaults of every option."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from edge.bundle import BundleWriter
from edge.errors import CheckpointError
from edge.export.manifest.written import write_golden
from edge.export.pipeline.finish import Staged, finish_decoder
from edge.export.quantize.base import Options
from edge.extras import needing
from edge.manifest import Manifest
from edge.runtime.mapped_file import check_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.export.facts.progress import Progress

STAGED = ".staged"  # what the first stage tells the second, a file next to the bundle's own


@needing("Exporting")
def stage(writer: BundleWriter, source: str, progress: Progress, say: Callable[[str], None]) -> None:
    """Write all that needs the checkpoint. Errors are those of `edge.export`."""
    from edge.export.checkpoint import open_checkpoint
    from edge.export.pipeline.routers import read_routers, write_routers
    from edge.export.request.choices import choose, described

    progress(0, 0, "opening the checkpoint")
    checkpoint = open_checkpoint(source, progress=progress, say=say)
    routers = read_routers(checkpoint)
    chosen = choose(checkpoint, None, None, None, quick=True)
    name = Path(checkpoint.name).name
    say(described(checkpoint, chosen.weights))
    staged: Staged | Manifest
    if checkpoint.config.get("is_encoder_decoder"):
        from edge.export.pipeline.encoder_decoder import halves, write_encoder_decoder

        pair = halves(chosen.weights, None, None)
        staged, golden = write_encoder_decoder(
            checkpoint, writer, name, pair, chosen.context, chosen.block_size, None,
            effort="quick", compare=True, progress=progress, say=say,
        )  # fmt: skip
        write_golden(writer, golden)
    else:
        from edge.export.pipeline.decoder import stage_decoder

        options = Options(chosen.block_size, None, progress, "quick")
        staged = stage_decoder(
            checkpoint, writer, name, chosen.weights, chosen.context, options, prefill=False, compare=True, say=say
        )
        write_routers(writer, staged.manifest, routers, None, say)
    check_all(CheckpointError)
    writer.write_file(STAGED, pickle.dumps(staged))


def finish(writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> Manifest:
    """Check what `stage` has written, and record golden answers. The caller commits the manifest."""
    between = writer.staging / STAGED
    staged: Staged | Manifest = pickle.loads(between.read_bytes())
    between.unlink()
    if isinstance(staged, Manifest):
        return staged
    options = Options(None, None, progress, "quick")
    manifest, golden = finish_decoder(writer, staged, options, candidates=False, draft_text=0, say=say)
    write_golden(writer, golden)
    return manifest
