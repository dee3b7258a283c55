"""Graphs of fixed sizes: each step runs in the smallest one that holds it, the rest of it masked."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.fits import check_given, check_shapes
from edge.runtime.engine.graphs.chain import Chain
from edge.runtime.engine.graphs.fixed_cache import FixedCache
from edge.runtime.engine.graphs.fixed_encoder import FixedEncoder, read_table
from edge.runtime.engine.graphs.fixed_mask import distances_of
from edge.runtime.engine.graphs.kept_steps import SharedLogits
from edge.runtime.engine.graphs.protocol import context_of
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import LOGITS, Want
from edge.runtime.kernels.graph_check import read_graph
from edge.runtime.limits import DEFAULT_CONTEXT, PREFILL_CHUNK, SIDE_BY_SIDE
from edge.runtime.mapped_file import mapped_file, unchanged
from edge.runtime.providers import find_support
from edge.runtime.providers.accelerator import Accelerator
from edge.runtime.providers.provider import NPU, RUNS, Provider, Session
from edge.targets import Compiled, StaticGraph, Target, read_target

_log = logging.getLogger(__name__)


class FixedGraphs:
    """See `Graphs`: a bundle's graphs of fixed sizes for one kind of device.

    Rows of the embedding are looked up on the host, and tokens chosen there. Steps of several sizes run in several
    graphs, which round differently: drafts may change an answer where two tokens are equally good.

    Raises:
        InputError: the context is more than the graphs were made for.
        BundleError: the target cannot be read, or a graph not be loaded.
    """

    long_rope = None
    chooses = ranks = remote = False
    takes_trees = True
    chunk, side_by_side = PREFILL_CHUNK, SIDE_BY_SIDE
    routes = None
    batch = None

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        assert variant.target is not None
        self.target: Target = read_target(bundle, variant.target)
        context_of(bundle, variant)  # or what is wrong with it
        self.bundle, self.variant, self.provider = bundle, variant, provider
        self.kv = dataclasses.replace(bundle.manifest.kv, dtype=variant.kv)
        self.encoder = self._open_encoder() if bundle.manifest.encoder is not None else None
        self.session = self._open()
        dims = bundle.manifest.dims
        self._logits = SharedLogits(provider, dims.vocab_size)
        tables = [table.path for table in (*self.target.tables, *self.target.biases[:1])]
        self._mapped = [mapped_file(bundle.file(path)) for path in (self.target.embedding, *tables)]
        self._embedding = np.memmap(
            bundle.file(self.target.embedding), np.float16, "r", shape=(dims.vocab_size, dims.hidden_size)
        )
        self._tables = {table.input: read_table(bundle, table) for table in self.target.tables}
        self._bias = read_table(bundle, self.target.biases[0]) if self.target.biases else None

    def _open(self) -> Session:
        limit, asked = self.target.context, self.variant.context
        if asked is not None and asked > limit:
            raise InputError(
                f"The graphs of {self.bundle.manifest.name} for {self.target.name} were made for {limit} tokens, not "
                f"{asked}; choose a --context of {limit} or less, or export it with --target-context {asked}."
            )
        self.context = min(limit, DEFAULT_CONTEXT) if asked is None else asked
        self._opened: dict[str, Session] = {}
        context, graphs = next(iter(self.target.by_context.items()))
        for graph in graphs:
            self.parts(graph, context)
        return self.opened(graphs[0].paths[0])

    def parts(self, graph: StaticGraph, context: int) -> list[Session]:
        """The sessions over a graph's parts; BundleError where these have other sizes than the target states."""
        shapes, opened = self.shapes(graph, context), [self.opened(path) for path in graph.paths]
        cross = self.bundle.manifest.cross
        layers = range(0 if cross is None else len(cross.layers))
        given = {*shapes, "cross_mask", *(f"cross.{i}.{part}" for i in layers for part in ("key", "value"))}
        for path, session in zip(graph.paths, opened, strict=True):
            check_shapes(self.bundle, session, path, shapes)
            check_given(self.bundle, session, path, given)
            given |= session.outputs
        return opened

    def shapes(self, graph: StaticGraph, context: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs and outputs of a graph over a cache of `context` rows, except an encoder's output."""
        dims, target, size = self.bundle.manifest.dims, self.target, graph.size
        masks = dims.num_heads if target.biases else 1
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (1, size, dims.hidden_size),
            "mask": (1, masks, target.groups * size, context + size),
            "logit_rows": (graph.rows,),
            "logits": (1, graph.rows, dims.vocab_size),
        }
        shapes |= {table.input: (1, size, table.columns) for table in target.tables}
        for i, layer in enumerate(self.kv.layers):
            shapes[f"past.{i}.key"] = 1, layer.heads, layer.head_dim, context
            shapes[f"past.{i}.value"] = 1, layer.heads, context, layer.head_dim
            shapes |= {f"new.{i}.{part}": (1, size, layer.heads, layer.head_dim) for part in ("key", "value")}
        return shapes

    def opened(self, path: str) -> Session:
        """A session over a graph, or a part of one. Those of longer contexts are opened when a cache needs them."""
        if path not in self._opened:
            self._opened[path] = self._session(self._files[path])
        return self._opened[path]

    def _open_encoder(self) -> Encoder:
        assert self.target.encoder is not None
        session = self._session(self._files[self.target.encoder.path])
        return FixedEncoder(self.bundle, self.target, self.provider, session)

    @cached_property
    def _files(self) -> dict[str, Path]:
        """The files to open, by the target's graphs: a compiled one where there is one for this device, else the graph
        itself."""
        paths, compiled = self.target.graph_paths, self._compiled
        return {
            path: self.bundle.path(file)
            for path, file in zip(paths, compiled.paths if compiled else paths, strict=True)
        }

    def _session(self, path: Path) -> Session:
        compiled = self._compiled
        if compiled is None:
            read_graph(path, path.parent)
            return self.provider.open_model(path, str(path))
        assert isinstance(self.provider, Accelerator), "only these have a chip"
        try:
            return self.provider.open_compiled(path)
        except BundleError as e:
            raise BundleError(
                f"What {compiled.compiler} compiled for {compiled.soc} does not open with "
                f"{find_support(self.provider.name).package}: {e}"
            ) from e

    @cached_property
    def _compiled(self) -> Compiled | None:
        """The graphs compiled for this device. None, and a warning, where there are none; a simulator needs none."""
        device = next((each for each in self.provider.devices() if each.use == RUNS and each.kind == NPU), None)
        if device is None:
            return None
        compiled = next((each for each in self.target.compiled if each.soc == device.chip), None)
        if compiled is None:
            have = ", ".join(each.soc for each in self.target.compiled) or "none"
            _log.warning(
                "%s is not compiled for this device's chip, %s (it is for: %s): every start compiles it, which takes "
                "minutes; export it with --soc.",
                self.bundle.manifest.name,
                device.chip or "which is not known",
                have,
            )
        return compiled

    @property
    def sessions(self) -> dict[str, Session]:
        steps = {name: self.opened(path) for name, path in self._named.items()}
        return (self.encoder.sessions if self.encoder is not None else {}) | steps

    def path(self, name: str) -> Path:
        encoder = self.target.encoder
        named = self._named
        return self._files[encoder.path if encoder is not None and name not in named else named[name]]

    @cached_property
    def _named(self) -> dict[str, str]:
        """The paths of steps' graphs by what these are called."""
        target, named = self.target, {}
        for context, graphs in target.by_context.items():
            for graph in graphs:
                name = f"{target.name}, steps of {graph.size}" + (f", context {context}" if target.shorter else "")
                for i, path in enumerate(graph.paths, 1):
                    named[name + (f", part {i} of {len(graph.paths)}" if len(graph.paths) > 1 else "")] = path
        return named

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> FixedCache:
        if rows > self.target.context + 1:  # of which an answer's last token is never run
            raise InputError(
                f"The graphs for {self.target.name} have room for {self.target.context} tokens, and this needs {rows}; "
                "ask for fewer beams or fewer tokens (--max-tokens)."
            )
        layout, contexts = dataclasses.replace(self.kv, dtype=self.target.kv), list(self.target.by_context)
        return FixedCache(self.provider, layout, contexts, min(rows, self.target.context), cross)

    def run(
        self, cache: KVCache, tokens: NDArray[np.int64], wanted: NDArray[np.int64], tree: Tree | None, want: Want
    ) -> Any:
        assert isinstance(cache, FixedCache), "another engine's cache"
        size, first, rows = len(tokens), cache.length, np.remainder(wanted, len(tokens))
        found: NDArray[np.float32] = self._logits.of(cache, len(rows)).array[0]
        if cache.length + size > cache.rows or not cache.length:
            cache.fit(cache.length + size)
        graphs = self.target.by_context[cache.rows]
        start = 0
        while start < size:
            graph = _choose(graphs, rows, start, size)
            count = min(graph.size, size - start)
            if graph.size not in cache.bound:
                cache.bound[graph.size] = _Bound(self, graph, cache)
            step = cache.bound[graph.size]
            step.read(cache)
            here = np.flatnonzero((rows >= start) & (rows < start + count))
            with unchanged(self._mapped):
                step.fill(self, cache, tokens[start : start + count], tree, start, first)
            step.ask(rows[here] - start, count)
            step.run()
            if tree is not None:
                cache.contiguous = False
            cache.positions[cache.length : cache.length + count] = step.positions[:count]
            cache.write(step.new, count)
            if len(here):
                found[here] = step.logits[rows[here] - start if graph.rows > 1 else np.zeros(len(here), np.intp)]
            start += count
        return found if want == LOGITS else found.argmax(axis=1)


def _choose(graphs: Sequence[StaticGraph], rows: NDArray[np.int64], start: int, size: int) -> StaticGraph:
    """The graph of the next part: the smallest that holds what is left, else the largest whose rows with logits are
    enough."""
    fitting = next((graph for graph in graphs if graph.size >= size - start), graphs[-1])
    within = np.count_nonzero((rows >= start) & (rows < start + fitting.size))
    if within <= 1 or fitting.rows == fitting.size:
        return fitting
    return max((graph for graph in graphs if graph.rows == graph.size), key=lambda graph: graph.size)


class _Bound:
    """A graph bound to a cache, with what the host writes and reads."""

    def __init__(self, graphs: FixedGraphs, graph: StaticGraph, cache: FixedCache) -> None:
        provider, target = graphs.provider, graphs.target
        self.graph, self._capacity = graph, cache.rows
        binding = Chain(provider, graphs.parts(graph, cache.rows))
        size, width, shapes = graph.size, cache.rows + graph.size, graphs.shapes(graph, cache.rows)
        given = {
            "rows": provider.allocate(shapes["rows"], np.float32),
            "mask": provider.allocate(shapes["mask"], np.float32),
            "logit_rows": provider.allocate(shapes["logit_rows"], np.int32),
        }
        tables = {table.input: provider.allocate((1, size, table.columns), np.float32) for table in target.tables}
        given |= tables
        for name, buffer in given.items():
            binding.input(name, buffer)
        self.rows, self.asked = given["rows"].array, given["logit_rows"].array
        self.tables = {name: buffer.array[0] for name, buffer in tables.items()}
        self.positions = np.zeros(size, np.intp)
        self.mask = given["mask"].array.reshape(-1, size, width)
        self._binding = binding
        self._cross: Cross | None = None
        made = provider.allocate(shapes["logits"], np.float32)
        binding.output("logits", made)
        self.logits = made.array[0]
        self.new: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._kept = [*given.values(), made]  # which the binding does not keep alive
        for i, ((key, value), layer) in enumerate(zip(cache.memory, graphs.kv.layers, strict=True)):
            binding.input(f"past.{i}.key", key)
            binding.input(f"past.{i}.value", value)
            new_key, new_value = (
                provider.allocate((1, size, layer.heads, layer.head_dim), key.array.dtype) for _ in range(2)
            )
            binding.output(f"new.{i}.key", new_key)
            binding.output(f"new.{i}.value", new_value)
            self.new.append((new_key.array, new_value.array))
            self._kept += [new_key, new_value]
        self.run = binding.run

    def read(self, cache: FixedCache) -> None:
        """Bind the cache's encoder output, unless it is bound already."""
        if cache.cross is not None and cache.cross is not self._cross:
            for name, buffer in cache.cross.named.items():
                self._binding.input(name, buffer)
            self._cross = cache.cross

    def fill(
        self,
        graphs: FixedGraphs,
        cache: FixedCache,
        tokens: NDArray[np.int64],
        tree: Tree | None,
        start: int,
        first: int,
    ) -> None:
        """Write the inputs for `tokens`, the part of a step from its token `start` on. The cache had `first` rows
        before the step."""
        count, length, capacity = len(tokens), cache.length, self._capacity
        self.rows[0, :count] = graphs._embedding[tokens]
        self.rows[0, count:] = 0
        if tree is None:
            self.positions[:] = np.minimum(np.arange(length, length + self.graph.size), capacity - 1)
        else:
            self.positions[:count] = tree.positions[start : start + count]
            self.positions[count:] = 0
        for name, rows in self.tables.items():
            rows[:] = graphs._tables[name][self.positions]
        mask = self.mask
        mask[:] = masked = graphs.target.masked
        if tree is None:
            mask[:, :, :length] = 0
            mask[..., capacity:][..., *np.tril_indices(self.graph.size)] = 0
        else:
            bias = np.maximum(tree.bias[start : start + count, : first + start + count], masked)
            mask[:, :count, :length] = bias[:, :length]
            mask[:, :count, capacity : capacity + count] = bias[:, length:]
            padding = np.arange(count, self.graph.size)
            mask[:, padding, capacity + padding] = 0  # a row that attends to nothing would be an average of everything
        if graphs._bias is not None:
            mask += distances_of(graphs._bias, self.positions, cache.positions)

    def ask(self, rows: NDArray[np.int64], count: int) -> None:
        """Set the rows of the step that have logits: all, or one."""
        if self.graph.rows > 1:
            self.asked[:] = np.arange(self.graph.rows)
        else:
            self.asked[0] = rows[0] if len(rows) else count - 1
