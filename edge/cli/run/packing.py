"""The packing of a GGUF file's blocks for our kernels where a bundle is there and its packed weights are not: they were
removed for others, or the bundle is new on this machine. It is shown, and Ctrl-C ends it at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edge.errors import InterruptedExport

if TYPE_CHECKING:
    from edge.bundle import Bundle


def pack_shown(bundle: Bundle) -> None:
    """Pack the weights of a bundle, with a progress bar, where the cache lacks them. What is wrong with the bundle is
    left to the code that loads it.

    Raises:
        BundleError: they can neither be read nor be written, or have scales that are no numbers.
        InterruptedExport: Ctrl-C ended it; what is packed is kept, and the next call goes on from there.
    """
    from edge.bundle import WEIGHTS
    from edge.gguf_parts import GGUF
    from edge.runtime.kernels.library import computes_gguf, find_kernels

    if bundle.manifest.weights != GGUF or not computes_gguf(kernels := find_kernels()):
        return
    assert kernels is not None
    from edge.cli.export import stages
    from edge.home import UNWRITABLE, why_unwritable
    from edge.runtime.engine.variant import DECODER
    from edge.runtime.kernels.graph import STRANGE, pack_ahead, unkept
    from edge.runtime.kernels.packed_file import WORTH_SAYING
    from edge.runtime.kernels.packed_gguf import PACKING, gguf_path
    from edge.runtime.kernels.packed_writer import has_begun

    if gguf_path(bundle, kernels).is_file() or why_unwritable() is not None:
        return
    if bundle.size(WEIGHTS) + sum(file.size for file in bundle.manifest.external) >= WORTH_SAYING:
        print(f"The weights of {bundle.manifest.name} are packed for edge_kernels, once.", file=sys.stderr, flush=True)
    try:
        with stages() as (progress, _):
            path = bundle.path(bundle.manifest.graph(DECODER).path)
            pack_ahead(bundle, kernels, path, lambda done, total: progress(done, total, PACKING))
    except OSError as e:
        if e.errno not in UNWRITABLE:
            raise unkept(bundle, e) from None
    except STRANGE:
        pass
    except KeyboardInterrupt as e:
        left = "the next run goes on where it ended" if has_begun(gguf_path(bundle, kernels)) else "nothing was left"
        raise InterruptedExport(f"The packing of the weights of {bundle.manifest.name} was interrupted; {left}.") from e
