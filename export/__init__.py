"""Torch checkpoint -> bundle. May import torch, transformers, onnx and onnxscript; this file alone does not.

`edge.export` is this package and also the function that does its work: ``edge.export("model/", "model.edge")`` calls
`export` below. Importing any part of a package sets the package as an attribute of its parent, so that a plain
function of the same name in `edge` would vanish with the first such import; the package itself is callable instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Unpack

from edge.bundle import Bundle
from edge.export.facts.progress import Progress
from edge.export.request.export_request import ExportRequest
from edge.export.request.keywords import ExportKeywords
from edge.extras import needing


@needing("Exporting", instead="or for a .gguf file choose --effort quick")
def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    expect: Callable[[str, Callable[[], float]], None] | None = None,
    **options: Unpack[ExportKeywords],
) -> Bundle:
    """Turn a checkpoint into a bundle.

    Args:
        source: a model directory, a .gguf file, a catalog name or a hub id.
        out: the bundle to write; default: NAME.edge in the current folder.
        progress: told how far each stage is; a total of 0 is one that is not known.
        say: told in sentences what is done to the model.
        expect: told before that how long it takes, where that is known: a sentence, and a function that returns how
            many seconds are left.
        options: fields of `ExportRequest`; docs/reference/options.md says what each means.

    Returns:
        The bundle, written whole; where anything fails, nothing is left at `out`.

    Raises:
        EdgeError: one of its subclasses, with a sentence that says what is wrong.
    """
    request = ExportRequest(source, out, **options)
    from edge.export.pipeline.export import export_bundle

    return export_bundle(request, progress, say, expect)


class _CallablePackage(ModuleType):
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _CallablePackage
