"""Opening a bundle while its weights load in a thread of their own.

Loading the weights is ONNX Runtime's work and leaves the interpreter free: the tokenizer, the chat template and the
prompt are made ready meanwhile. `edge run` starts before it imports what only those need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from edge.bundle import Bundle, open_bundle
from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8, KV_DTYPES
from edge.runtime.engine import Engine
from edge.runtime.providers.instructions import warn_of_overflow
from edge.runtime.skip import OFF, make_policy
from edge.runtime.speculate.base import AUTO, branches, check_argument, parts_of_model

if TYPE_CHECKING:
    from edge.runtime.plan import Plan
    from edge.runtime.skip.base import SkipPolicy

T = TypeVar("T")


class Background(Generic[T]):
    """Starts `make()` in a thread at once; `result` waits for what it returns and raises what it raised."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="edge-background")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made.append(self._make())
        except BaseException as e:
            self._error = e

    def result(self) -> T:
        """What `make` returned, as soon as it has."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]


def open_engine(
    bundle: Bundle,
    skip: str = OFF,
    *,
    context: int | None = None,
    threads: int | None = None,
    plan: Plan | None = None,
    exact: bool = False,
    speculate: str = OFF,
    kv: str = AUTO,
) -> Engine:
    """The engine of a bundle: over its whole graph, that for trees where drafts branch, that over a KV cache in int8,
    or, under a skip policy or for drafts with some of its layers, over its segments.

    kv: float32, int8, or auto: as the plan says, and float32 where there is none.

    Raises:
        InputError: there is no such policy, or the bundle lacks what it needs; or as `Engine`.
        BundleError: the graph cannot be loaded.
    """
    policy = segments_policy(bundle, skip, speculate)
    kv = kv_dtypes(bundle, kv, whole=policy is None)[0] if plan is None else plan.demand.kv
    if policy is None:
        trees = branches(speculate, bundle) and not exact and kv == FLOAT32
        return Engine(bundle, context=context, threads=threads, plan=plan, exact=exact, trees=trees, kv=kv)
    from edge.runtime.skip.engine import SegmentedEngine

    return SegmentedEngine(bundle, policy, context=context, threads=threads, plan=plan, exact=exact)


def segments_policy(bundle: Bundle, skip: str, speculate: str) -> SkipPolicy | None:
    """How segments run, where the engine is one over segments; None where the whole graph runs.

    Raises:
        InputError: there is no such policy or drafter, or the bundle cannot have it, or not both together.
    """
    skipping, drafting = make_policy(skip, bundle), parts_of_model(speculate, bundle)
    if skipping is not None and drafting is not None:
        raise InputError(
            f"The drafter {speculate} leaves out layers that the whole model checks, which --skip {skip} does not run; "
            "choose one of the two."
        )
    return skipping or drafting


def kv_dtypes(bundle: Bundle, kv: str = AUTO, *, whole: bool = True) -> list[str]:
    """What the KV cache may be kept in, the best first, where `kv` is asked for: float32, int8, or auto.

    whole: whether the decoder runs as one graph.

    Raises:
        InputError: there is no such thing, or it cannot be had.
    """
    if kv not in (AUTO, *KV_DTYPES):
        raise InputError(f"There is no KV cache in {kv!r}; choose {AUTO}, {' or '.join(KV_DTYPES)}.")
    there = any(graph.role == KV8 for graph in bundle.manifest.graphs)
    if kv == INT8 and bundle.manifest.encoder is not None:
        raise InputError(f"{bundle.manifest.name} is an encoder-decoder, which keeps {FLOAT32}; leave out --kv.")
    if kv == INT8 and not there:
        raise InputError(f"{bundle.manifest.name} has no graph over a KV cache in {INT8}; export the model again.")
    if kv == INT8 and not whole:
        raise InputError(f"A KV cache in {INT8} needs all layers in one graph; leave out --kv, or what skips layers.")
    if kv == AUTO:
        return [FLOAT32, INT8] if there and whole else [FLOAT32]
    return [kv]


@dataclass(frozen=True)
class Loading:
    """A bundle whose manifest was read and whose engine is being made."""

    bundle: Bundle
    engine: Background[Engine]


def start(
    path: str | Path | Bundle,
    *,
    context: int | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    chunk: int | None = None,
    beams: int | None = None,
    speculate: str = "off",
    exact: bool | None = None,
    skip: str = OFF,
    kv: str = AUTO,
) -> Loading:
    """Read a bundle's manifest, and begin to check its files and to load its weights.

    What is wrong with the files or the options is raised by `engine.result()`.

    Args:
        path: the bundle's folder, or the bundle where it is open already: reading a manifest takes milliseconds.
        memory: most bytes that the process may have resident, as a number or like ``300MB``.
        chunk, beams: most prompt tokens of a step, and texts side by side, that the plan for the memory is made for.
        speculate: what drafts, that there must be memory for.
        exact: see `Engine`; None: a decoder's answers are, those of an encoder-decoder, where nothing drafts by itself,
            need not be.
        skip: which layers are left out, ``off`` or a policy such as ``unified:0.2``.
        kv: what the KV cache is kept in; see `open_engine`.

    Raises:
        BundleError: `path` is no bundle, or its manifest cannot be accepted.
        InputError: the memory is too small.
    """
    bundle = path if isinstance(path, Bundle) else open_bundle(path)
    warn_of_overflow(bundle.manifest)
    # What is wrong with these is said before anything is loaded.
    if chunk is not None and bundle.manifest.encoder is not None:
        raise InputError(f"{bundle.manifest.name} is an encoder-decoder and reads no prompt in chunks; leave them out.")
    if beams is not None and beams < 1:
        raise InputError(f"The number of beams must be 1 or more, not {beams}.")
    check_argument(speculate, bundle)
    whole = segments_policy(bundle, skip, speculate) is None
    decoder = bundle.manifest.encoder is None
    exact = decoder if exact is None else exact
    kinds = kv_dtypes(bundle, kv, whole=whole)
    plan = None
    if memory is not None:
        from edge.runtime.memory import rss_bytes
        from edge.runtime.plan import make_exact_plan, make_plan

        plan = (make_exact_plan if exact and decoder else make_plan)(
            bundle,
            memory,
            context=context,
            chunk=chunk,
            branches=beams,
            present=rss_bytes(),
            wide=whole,  # segments have no wide form
            kv=kinds,
            speculate=speculate,
        )
    drafts = speculate if plan is None or plan.demand.width > 1 else OFF  # else segments would stand apart for nothing

    def make() -> Engine:
        bundle.check_files_once()
        return open_engine(
            bundle,
            skip,
            context=context,
            threads=threads,
            plan=plan,
            exact=exact,
            speculate=drafts,
            kv=kinds[0],
        )

    return Loading(bundle, Background(make))
