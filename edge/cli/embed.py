"""`edge embed`: a vector of each text, as JSON lines or as a file of numpy's."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from edge.cli.arguments import Parser, add_fields, taken
from edge.cli.of_embedders import add_machine, open_of_kind
from edge.cli.texts import given_texts
from edge.embedding_format import EMBEDDER
from edge.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge.runtime.embed.embedder import Embedder, Read

NAME = "embed"
HELP = "Make vectors of texts."
AT_A_TIME = 4096  # texts in memory, of which those of one length are computed together
NUMPY, JSON = ".npy", ".jsonl"


def add_arguments(parser: Parser) -> None:
    from edge.runtime.embed.embed_options import EmbedOptions

    model = "a bundle of a model for vectors, a model's folder or a name, as edge run takes them"
    parser.add_argument("model", metavar="MODEL", help=model)
    texts = "texts, each of which gets a vector (default: the lines of --file, or of standard input)"
    parser.add_argument("texts", metavar="TEXT", nargs="*", help=texts)
    add = parser.options("texts and vectors")
    add("-f/--file FILE", "a file with a text in each line; '-': standard input", Path)
    add("-o/--output FILE", "write vectors to FILE.npy or FILE.jsonl (default: JSON lines to standard output)", Path)
    add_fields(add, "vectors", EmbedOptions)
    add_machine(parser, "maximum tokens of a text (default: the bundle's)")


def command(args: argparse.Namespace) -> None:
    """Make a vector of each text: of the arguments, of the lines of a file, or of those of standard input. A line of
    JSON for each has its place, its number of tokens and its vector; -o FILE.npy writes an array [texts, width] of
    float32 instead. Figures go to standard error.

    A text that is longer than the model takes is refused, unless --truncate has it cut. A vector is the same whichever
    texts are next to it.
    """
    from edge.runtime.embed.embed_options import EmbedOptions
    from edge.runtime.embed.embedder import Embedder
    from edge.runtime.load import open_embedder
    from edge.runtime.load_options import LoadOptions

    texts = given_texts(args.texts, args.file)
    open_output = _output(args.output)
    options = EmbedOptions(**taken(args, EmbedOptions))
    bundle = open_of_kind(args.model, EMBEDDER)
    with open_embedder(bundle, LoadOptions(**taken(args, LoadOptions))) as model:
        assert isinstance(model, Embedder), "its manifest says so"
        model.check(options)
        model.wait()
        started, count, tokens, cut = time.perf_counter(), 0, 0, 0
        with open_output(options.dimensions or model.width) as output:
            while window := list(itertools.islice(texts, AT_A_TIME)):
                read = model.read(window, options, first=count)
                output.write(count, read, model.vectors(read.ids, options))
                count, tokens, cut = count + len(window), tokens + read.tokens, cut + read.cut
        if not count:
            raise InputError("There is no text to make a vector of.")
        _tell(count, tokens, cut, time.perf_counter() - started, model)


def _tell(count: int, tokens: int, cut: int, seconds: float, model: Embedder) -> None:
    from edge.cli.run.terminal import note

    few = "1 text" if count == 1 else f"{count:,} texts"
    note(f"{few}, {tokens:,} tokens, vectors of {model.width}; {count / seconds:,.1f} texts/s")
    if cut:
        was = "was" if cut == 1 else "were"
        note(f"{cut:,} of {count:,} texts {was} longer than {model.engine.room.context} tokens, and {was} cut.")


class _Output(Protocol):
    def write(self, first: int, read: Read, vectors: NDArray[np.float32]) -> None:
        """Write vectors [texts, width]. first: the place of the first one."""


class _JsonLines:
    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write

    def write(self, first: int, read: Read, vectors: NDArray[np.float32]) -> None:
        for i, (ids, vector) in enumerate(zip(read.ids, vectors.tolist(), strict=True), first):
            numbers = ", ".join(map("{:.9g}".format, vector))  # as many digits as a float32 has
            self._write(f'{{"index": {i}, "tokens": {len(ids)}, "embedding": [{numbers}]}}\n')


class _Array:
    """numpy's format, whose first line is written again once the number of vectors is known."""

    def __init__(self, file: BinaryIO, width: int) -> None:
        self._file, self._width, self._count = file, width, 0
        self._header()

    def _header(self) -> None:
        from numpy.lib import format as numpy_format

        about = {"descr": "<f4", "fortran_order": False, "shape": (self._count, self._width)}
        numpy_format.write_array_header_1_0(self._file, about)  # which has room for any number of rows

    def write(self, first: int, read: Read, vectors: NDArray[np.float32]) -> None:
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self._count += len(vectors)

    def end(self) -> None:
        self._file.seek(0)
        self._header()


def _output(path: Path | None) -> Callable[[int], Any]:
    """Return what opens the output for vectors of a width. A file appears once it is complete.

    Raises:
        InputError: there can be no such file.
    """
    from edge.cli.reports import check_target, is_device
    from edge.home import replacing

    if path is not None and path.suffix not in (NUMPY, JSON):
        raise InputError(f"Vectors are written to a file that ends with {NUMPY} or {JSON}, not to {path}.")
    if path is not None:
        if is_device(path):
            raise InputError(f"{path} is no file; leave --output out for standard output.")
        check_target(path, "file")

    @contextmanager
    def opened(width: int) -> Iterator[_Output]:
        if path is None:
            yield _JsonLines(sys.stdout.write)
            return
        try:
            with ExitStack() as stack:
                part = stack.enter_context(replacing(path.resolve()))
                file = stack.enter_context(part.open("w+b"))
                array = _Array(file, width) if path.suffix == NUMPY else None
                yield array or _JsonLines(lambda text: file.write(text.encode()))
                if array is not None:
                    array.end()
                file.flush()
                os.fsync(file.fileno())  # some file systems tell only now that the disk is full
        except OSError as e:
            raise InputError(
                f"The file {path} could not be written: {e.strerror}; nothing new was left there."
            ) from None

    return opened
