"""`edge.load`: whatever a bundle holds, ready to be used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from edge.runtime.loading import Loading, start
from edge.runtime.model import PREFILL_CHUNK, Model
from edge.runtime.skip import OFF
from edge.runtime.speculate.base import AUTO, check_name
from edge.runtime.text import Text

if TYPE_CHECKING:
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.text2text import Text2Text

HEAD_START_S = 0.005  # enough for the Python code between starting the engine's thread and ONNX Runtime's own


def load(
    path: str | Path,
    *,
    context: int | None = None,
    threads: int | None = None,
    prefill_chunk: int | None = None,
    memory: int | str | None = None,
    beams: int | None = None,
    speculate: str = AUTO,
    exact: bool | None = None,
    skip: str = OFF,
    kv: str = AUTO,
) -> Model | Text2Text | Transcriber:
    """Open a bundle, check its files and load it.

    Args:
        path: the bundle's folder.
        context: most tokens of prompt and answer together; default: the bundle's, up to 4,096.
        threads: threads to compute with, shared by all models of this process: the first one decides, and another
            number afterwards is not used, which a warning of the log says once. Default: one per core, up to 8.
        prefill_chunk: most prompt tokens of a decoder to run in one step; smaller ones need less memory. Default: 128.
        memory: most bytes that this process may have resident, as a number or like ``300MB``: what fits is chosen
            before anything is loaded, the context too where none is given. What the program holds already counts.
        beams: most beams of a search that there must be memory for; default: as many as the bundle sets.
        speculate: what drafts tokens of a decoder's answer that are verified several in a step: ``auto``, ``off`` or a
            drafter's name; see docs/speculation.md.
        exact: whether the same call gives the same text, bit for bit, whatever is drafted, whatever was asked before,
            alone or among other prompts. Default: yes for decoders. False is faster: drafts then change the last bits
            of logits, and so, once in a while, a word. An encoder-decoder drafts only where it is asked to
            (`draft_from_input`); with True those drafts change nothing either, and it takes no beams.
        skip: which layers are left out of a decoder with segments: ``off``, or a policy such as ``unified:0.2``; see
            docs/skipping.md.
        kv: what a decoder's KV cache is kept in: ``float32``, ``int8``, which takes a quarter of the memory, or
            ``auto``: float32, or int8 where `memory` has room for no other. After long prompts int8 is the faster one
            for plain decoding; see docs/kv-cache.md.

    Returns:
        A `Model` that answers prompts; of an encoder-decoder a `Text2Text`, or a `Transcriber` where it reads audio.

    Raises:
        BundleError: the bundle is missing, damaged or of another version.
        InputError: an option out of its range, or too little memory.
    """
    check_name(speculate)
    loading = start(
        path,
        context=context,
        threads=threads,
        memory=memory,
        chunk=prefill_chunk,
        beams=beams,
        speculate=speculate,
        exact=exact,
        skip=skip,
        kv=kv,
    )
    # Loading a tokenizer holds the interpreter's lock until it is done. The engine's thread must be past its own
    # Python code and inside ONNX Runtime by then, or loading the two would take the sum of their times.
    time.sleep(HEAD_START_S)
    try:
        return _model(loading, PREFILL_CHUNK if prefill_chunk is None else prefill_chunk, speculate)
    finally:
        loading.engine.result()  # damage that the sha256s show explains more than what else may have failed


def _model(loading: Loading, prefill_chunk: int, speculate: str) -> Model | Text2Text | Transcriber:
    bundle, engine = loading.bundle, loading.engine
    if bundle.manifest.speech is not None:
        from edge.runtime.speech.transcribe import Transcriber
        from edge.runtime.speech.words import spoken

        return Transcriber(bundle, engine, spoken(bundle))
    text = Text(bundle)
    if bundle.manifest.text is not None:
        from edge.runtime.text2text import Text2Text

        return Text2Text(bundle, engine, text)
    return Model(bundle, engine, text, prefill_chunk=prefill_chunk, speculate=speculate)
