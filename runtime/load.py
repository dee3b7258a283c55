"""`edge.load`: a bundle of any kind, ready to be used. The only place that opens one.

Loading the weights is ONNX Runtime's work and leaves the interpreter free: the tokenizer, the chat template and the
prompt are made ready meanwhile. `edge run` starts before it imports what only those need.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from edge.bundle import Bundle, open_bundle
from edge.embedding_format import EMBEDDER
from edge.errors import InputError
from edge.manifest import FLOAT32
from edge.runtime.background import Background
from edge.runtime.choose import answers_nothing, choose
from edge.runtime.costs.measured import best_provider, open_for
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.fits import check_stated
from edge.runtime.engine.variant import AUTO, OFF, Variant
from edge.runtime.keywords import LoadKeywords
from edge.runtime.load_options import LoadOptions
from edge.runtime.options import kind_of, shown, with_keywords
from edge.runtime.providers import check_provider, provider_name
from edge.runtime.providers.provider import Provider
from edge.runtime.speculate.drafter import check_name
from edge.targets import CUDA, check_listed, target_for

if TYPE_CHECKING:
    from edge.runtime.embed.embedder import Embedder
    from edge.runtime.embed.reranker import Reranker
    from edge.runtime.model import Model
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.text2text import Text2Text


K = TypeVar("K", "Model", "Text2Text", "Transcriber", "Embedder", "Reranker")
DEFAULTS = LoadOptions()
OF_EMBEDDERS = ("threads", "context", "provider", "strict", "memory")  # options that models for vectors obey


@dataclass(frozen=True)
class Loading:
    """A bundle whose manifest was read and whose engine is being made."""

    bundle: Bundle
    options: LoadOptions
    variant: Variant
    engine: Background[Engine]

    def model(self) -> Model | Text2Text | Transcriber:
        """Return the model that answers with the bundle. Its engine may still be loading."""
        speculate = self.options.speculate
        if self.bundle.manifest.speech is not None:
            from edge.runtime.speech.transcribe import Transcriber
            from edge.runtime.speech.words import spoken

            return Transcriber(self.bundle, self.engine, spoken(self.bundle), speculate=speculate)
        from edge.runtime.text.tokenizer import Text

        text = Text(self.bundle, spare=self.variant.plan is None)
        if self.bundle.manifest.text is not None:
            from edge.runtime.text2text import Text2Text

            return Text2Text(self.bundle, self.engine, text, speculate=speculate)
        from edge.runtime.model import Model

        chunk, day = self.options.prefill_chunk, self.options.date
        return Model(self.bundle, self.engine, text, prefill_chunk=chunk, speculate=speculate, day=day)


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
        path: the bundle's folder.
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
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"A bundle is loaded by the path of its folder, and not by {shown(path)}.")
    if options is not None and not isinstance(options, LoadOptions):
        raise InputError(f"Bundles are loaded by LoadOptions, not by {type(options).__name__}.")
    if kind is not None and not isinstance(kind, type):
        raise InputError(f"The kind must be a class such as edge.Model, not {shown(kind)}.")
    own, bundle = with_keywords(DEFAULTS if options is None else options, keywords), open_bundle(path)
    model: Model | Text2Text | Transcriber | Embedder | Reranker
    if bundle.manifest.embedding is not None:
        model = open_embedder(bundle, own)
    else:
        loading = start(bundle, own)
        try:
            model = loading.model()
        finally:
            loading.engine.result()  # damage that the sha256s show explains more than what else may have failed
    if kind is not None and not isinstance(model, kind):
        raise InputError(f"{path} is loaded as a {type(model).__name__}, and not as a {kind.__name__}.")
    return model


def start(path: str | Path | Bundle, options: LoadOptions = DEFAULTS) -> Loading:
    """Read a bundle's manifest, choose how it is loaded, and begin to check its files and to load its weights.

    What is wrong with the files is raised by `engine.result()`.

    Args:
        path: the bundle's folder, or the bundle where it is open already: reading a manifest takes milliseconds.

    Raises:
        BundleError: `path` is no bundle, or its manifest cannot be accepted.
        InputError: as `load`, before anything is loaded.
    """
    check_name(options.speculate)
    bundle, variant = chosen(path if isinstance(path, Bundle) else open_bundle(path), options)

    def opened() -> Engine:
        return make_engine(bundle, variant, options.provider, options.threads, options.strict)

    def make() -> Engine:
        bundle.check_files_once()
        if options.skip == OFF or options.skip_anyway:
            return opened()
        from edge.runtime.skip.loss import unless_ruined

        return unless_ruined(bundle, options.skip, opened)

    return Loading(bundle, options, variant, Background(make))


def check_loads(bundle: Bundle, options: LoadOptions) -> None:
    """Raise what loading a bundle would raise, as far as its manifest, the options and this process's memory tell."""
    if bundle.manifest.embedding is None:
        check_name(options.speculate)
        chosen(bundle, options)
        return
    from edge.runtime.embed.memory import room_of
    from edge.runtime.memory.process import private_bytes

    room_of(bundle, options.memory, options.context, private_bytes())


def chosen(bundle: Bundle, options: LoadOptions, present: int | None = None) -> tuple[Bundle, Variant]:
    """A bundle, in units where these are asked for, and its variant for the options. present: private bytes of this
    process; default: what it takes now. Errors are those of `choose`."""
    from edge.runtime.memory.process import private_bytes

    bundle = as_asked(bundle, options)
    return bundle, choose(bundle, options, present=private_bytes() if present is None else present)


def open_embedder(bundle: Bundle, options: LoadOptions = DEFAULTS, *, checked: bool = False) -> Embedder | Reranker:
    """Load a bundle whose model makes vectors, or ranks documents. checked: its files were looked through, or are being
    written.

    Raises:
        InputError: as `load`; or an option of `LoadOptions` that such models do not have.
        BundleError: a file of the bundle is damaged, or its graph cannot be loaded.
    """
    from edge.runtime.embed.embedder import Embedder
    from edge.runtime.embed.engine import EmbedEngine
    from edge.runtime.embed.memory import room_of
    from edge.runtime.embed.reranker import Reranker
    from edge.runtime.memory.process import private_bytes
    from edge.runtime.text.tokenizer import Text

    for field in dataclasses.fields(options):
        if field.name not in OF_EMBEDDERS and getattr(options, field.name) != field.default:
            raise InputError(
                f"{bundle.manifest.name} answers nothing, and the option {field.name} is for models that answer."
            )
    room = room_of(bundle, options.memory, options.context, private_bytes())
    check_provider(options.provider)

    def opened() -> EmbedEngine:
        if not checked:
            bundle.check_files_once()
        return EmbedEngine(bundle, open_for(bundle, options.provider, options.threads, options.strict), room)

    engine = Background(opened)
    try:
        text = Text(bundle, spare=options.memory is None)
    finally:
        engine.result()
    made = Embedder if kind_of(bundle.manifest) == EMBEDDER else Reranker
    return made(bundle, engine.result(), text)


def as_asked(bundle: Bundle, options: LoadOptions) -> Bundle:
    """Return the bundle in units, where a policy or a drafter leaves layers out and our kernels can: see `in_units`."""
    from edge.runtime.skip import of_halves
    from edge.runtime.skip.units import in_units
    from edge.runtime.speculate.drafter import runs_units

    if options.skip == OFF and not runs_units(options.speculate):
        return bundle
    provider = options.provider
    if provider == AUTO:
        provider = best_provider(bundle, options.threads, options.strict)
    return in_units(bundle, provider, halves=of_halves(options.skip))


def open_engine(bundle: Bundle, **keywords: Unpack[LoadKeywords]) -> Engine:
    """Open the engine of a bundle whose files are trusted, at once; without other options it drafts nothing, its steps
    need not be exact, and its KV cache is in float32. Errors are those of `start`."""
    target = target_for(bundle, provider_name(keywords.get("provider", AUTO)))  # whose graphs have caches of their own
    options = LoadOptions(speculate=OFF, exact=False, kv=FLOAT32 if target is None else AUTO)
    options = dataclasses.replace(options, **keywords)
    bundle = as_asked(bundle, options)
    return make_engine(bundle, choose(bundle, options), options.provider, options.threads, options.strict)


def make_engine(
    bundle: Bundle,
    variant: Variant,
    provider: str | Provider,
    threads: int | None = None,
    strict: bool | None = None,
) -> Engine:
    """An engine over the variant's graphs.

    Raises:
        InputError: there is no such provider, it cannot run here, or the context is not within the bundle's.
        MissingExtraError: the provider's package is not installed.
        BundleError: a graph cannot be loaded, or the provider is strict and does not run all of it.
    """
    if bundle.manifest.embedding is not None:
        raise InputError(answers_nothing(bundle.manifest))
    check_stated(bundle)
    opened = open_for(bundle, provider, threads, strict)
    if variant.target not in (None, CUDA):
        check_listed(bundle, variant.target)
    return Engine(bundle, variant, opened)
