"""`edge.load`: a bundle, or a model by its name, of which a bundle is made first and kept, as `edge run` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from edge.bundle import MANIFEST
from edge.runtime import load as bundles
from edge.runtime.keywords import LoadKeywords
from edge.runtime.load_options import LoadOptions

if TYPE_CHECKING:
    from edge.runtime.embed.embedder import Embedder
    from edge.runtime.embed.reranker import Reranker
    from edge.runtime.model import Model
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.text2text import Text2Text

K = TypeVar("K", "Model", "Text2Text", "Transcriber", "Embedder", "Reranker")


@overload
def load(
    path: str | Path, options: LoadOptions | None = None, *, kind: type[K], **keywords: Unpack[LoadKeywords]
) -> K: ...


@overload
def load(
    path: str | Path, options: LoadOptions | None = None, *, kind: None = None, **keywords: Unpack[LoadKeywords]
) -> Model | Text2Text | Transcriber | Embedder | Reranker: ...


def load(
    path: str | Path, options: LoadOptions | None = None, *, kind: type[Any] | None = None, **keywords: Any
) -> Any:
    """Open a bundle, check its files and load it.

    Args:
        path: the bundle's folder; or what `edge run` takes as well: a .gguf file, a model's folder, a name of the
            catalog or of the Hugging Face hub, or the address of a .gguf file. A bundle of that is made once, which
            takes seconds to minutes and is said on standard error, and kept in the cache.
        options: how it is loaded.
        kind: `Model`, `Text2Text`, `Transcriber`, `Embedder` or `Reranker`, for a type checker, and for an error
            where the bundle is of another kind; default: whatever it is.
        keywords: fields of `LoadOptions`, which go before those of `options`.

    Returns:
        A `Model` that answers prompts; of an encoder-decoder a `Text2Text`, or a `Transcriber` where it reads audio; an
        `Embedder` of a model that makes vectors; a `Reranker` of one that ranks documents.

    Raises:
        BundleError: the bundle is missing, damaged or of another version.
        InputError: an option out of its range, too little memory, a bundle of another kind, or one that the setting of
            `skip` ruins.
        EdgeError: no bundle can be made of the model.
    """
    if isinstance(path, str | Path) and not os.path.exists(os.path.join(path, MANIFEST)):  # noqa: PTH110, PTH118
        from edge.cli.run.source import open_source

        path = open_source(path).root
    return bundles.load(path, options, kind=kind, **keywords)
