"""The engine: one ONNX Runtime session over a bundle's decoder graph, and one primitive, `Engine.step`."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import InputError
from edge.home import curves_dir
from edge.manifest import FLOAT32, KV8
from edge.runtime.cache import KVCache, untouched
from edge.runtime.encoder import Cross, Encoder, arena_bytes
from edge.runtime.memory import release_freed, release_mapped
from edge.runtime.providers import cpu
from edge.runtime.step import KEPT_STEP, LAST_ROW, Bound, Step, StepBuffers, paired

if TYPE_CHECKING:
    from edge.runtime.plan import Plan
    from edge.runtime.profile.curve import CostCurve
    from edge.runtime.wide import Wide

DEFAULT_CONTEXT = 4096
BLOCKED = np.float32(-1e9)  # added to the score of what a token must not attend to


@dataclass(frozen=True)
class Tree:
    """Tokens of one step that do not follow each other: beams, or the branches of a draft.

    positions [S]: each token's position in its text; siblings share one. bias [S, T], T the cache's length after the
    step: 0 where a token attends to a row, `BLOCKED` where it does not. A token never attends to one behind it.
    """

    positions: NDArray[np.int64]
    bias: NDArray[np.float32]


class Engine:
    """A loaded decoder, with its encoder where it has one. Conversations live in `KVCache` objects, so that one engine
    serves several.

    Args:
        bundle: an opened bundle whose files were checked.
        context: the largest KV capacity that will be asked for, in tokens; default: the bundle's, up to 4,096.
        threads: threads of the pool that all engines of this process share; the first engine decides.
        plan: what a memory budget has room for, in the place of `context`.
        exact: run an even number of tokens in every step, and of rows of logits, the last one twice where it would be
            odd. Kernels take rows by twos and a last one alone, which differs in its last bits; so an answer does not
            depend on how many tokens its steps had.
        trees: take the bundle's graph whose steps may be trees, in the place of its other one.
        kv: what the KV cache is kept in, float32 or int8.

    Raises:
        InputError: `context` is not within the bundle's, or `threads` is not positive.
        BundleError: the bundle has no such graph, or it cannot be loaded.
    """

    wide: Wide | None = None  # the form that long prompts are read in
    _several = False  # whether its session takes several sequences
    chooses: bool  # whether the graph can be asked for the likeliest tokens alone: `choose`

    def __init__(
        self,
        bundle: Bundle,
        *,
        context: int | None = None,
        threads: int | None = None,
        plan: Plan | None = None,
        exact: bool = False,
        trees: bool = False,
        kv: str = FLOAT32,
    ) -> None:
        limit = bundle.manifest.context
        self.bundle = bundle
        self.plan = plan
        self.exact = exact
        self.kv = dataclasses.replace(bundle.manifest.kv, dtype=kv)
        self._role = "tree" if trees else "decoder" if kv == FLOAT32 else KV8
        context = context if plan is None else plan.demand.context
        self.context = min(DEFAULT_CONTEXT, limit) if context is None else context
        if not 1 <= self.context <= limit:
            raise InputError(f"The context must be between 1 and {limit} tokens for this bundle, not {self.context}.")
        self.threads = cpu.share_thread_pool(threads, arena_bytes(bundle.manifest))
        # Code that comes back adds 10 ms, a thirtieth, until a decoder shows its first token, and saves little there:
        # only where somebody has set a limit.
        frugal = plan is not None or bundle.manifest.encoder is not None
        if frugal:
            cpu.release_unused()
        source = None if plan is None else plan.demand.source
        self.encoder = Encoder(bundle, source) if bundle.manifest.encoder is not None else None
        self._opening = Lock()  # held while the session is exchanged, or bound
        self._inputs = self._open_decoder()
        self.chooses = any(value.name == "tokens" for value in self._session.get_outputs())
        release_mapped(bundle.path(WEIGHTS))
        if frugal:
            cpu.release_unused()
        self._steps: WeakKeyDictionary[KVCache, dict[tuple[int, int, bool], StepBuffers]] = WeakKeyDictionary()
        self._bound: WeakKeyDictionary[KVCache, dict[str, Any]] = WeakKeyDictionary()  # by the type of the output
        self._logits: WeakKeyDictionary[KVCache, NDArray[np.float32]] = WeakKeyDictionary()

    def _open_decoder(self) -> set[str]:
        """Load the decoder; the names of its inputs."""
        self._session = cpu.open_session(self.bundle, self._role)
        if self.bundle.manifest.wide is not None and self.kv.dtype == FLOAT32:
            from edge.runtime.wide import wide_form

            self.wide = wide_form(self)
        return {value.name for value in self._session.get_inputs()}

    def new_cache(self, capacity: int | None = None, cross: Cross | None = None) -> KVCache:
        """An empty KV cache for one conversation of up to `capacity` tokens; default: the engine's context.

        cross: what the encoder made of the input, where the model has an encoder.
        """
        capacity = self.context if capacity is None else capacity
        if capacity > self.context:
            raise InputError(f"A cache of {capacity} tokens is more than the engine's context of {self.context}.")
        return self.make_cache(capacity, cross)

    def make_cache(self, rows: int, cross: Cross | None = None) -> KVCache:
        """An empty KV cache of any size: branches side by side share positions, which the context limits, not rows."""
        return KVCache(self.kv, rows, cross, spare=int(self.exact or self.wide is not None), exact=self.exact)

    @cached_property
    def costs(self) -> CostCurve | None:
        """What a step costs, as `edge profile` measured it for this bundle on this device; None where it never did, or
        where what it left cannot be used, which is logged."""
        if not curves_dir().is_dir():  # importing what reads them takes 13 ms
            return None
        from edge.runtime.profile.curve import load

        say = logging.getLogger(__name__).warning
        return load(self.bundle, provider="cpu", threads=self.threads, say=say, kv=self.kv.dtype)

    def steady(self, cache: KVCache) -> int:
        """How many tokens from the next one on one step may run, each of which comes out as in a step of its own, as
        far as steps of any size do."""
        last = self.bundle.manifest.context - 1  # where there is no row to run beside the token's: see `paired`
        return max(1, min(cache.room, last - cache.length)) if cache.exact else cache.room

    @property
    def takes_trees(self) -> bool:
        """Whether `step` can be given a `Tree`."""
        return any(name.startswith("attention_bias") for name in self._inputs)

    @property
    def takes_several(self) -> bool:
        """Whether a step can take a token of each of several sequences: `edge.runtime.batch`."""
        return self._role == "decoder" and self.encoder is None and not self.takes_trees

    def open_for_several(self) -> ort.InferenceSession:
        """Load the decoder again, for as many sequences as a step is given, instead of what was loaded. Caches in use
        are bound to it by their next steps."""
        with self._opening:
            if not self._several:
                from edge.runtime.batch.graph import several

                path, graph = self._decoder()
                # Two sessions would hold the weights twice, and what is bound to one keeps it.
                self._steps.clear()
                self._bound.clear()
                del self._session
                release_freed()  # else what the first held stays beside the second: 60 MB of SmolLM2-135M in 4 bits
                self._session = cpu.open_model(self.bundle, several(graph), path)
                release_mapped(self.bundle.path(WEIGHTS))
                release_freed()
                self._several = True
            return self._session

    def _decoder(self) -> tuple[str, bytes]:
        """What the decoder's graph is called in errors, and the bytes of the graph."""
        path = self.bundle.path(self.bundle.manifest.graph(self._role).path)
        return str(path), path.read_bytes()

    def choose(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
    ) -> NDArray[np.int64]:
        """As `step`, with the token that has the largest logit [R], the first of equals, in the place of logits, which
        stay inside the graph. Older bundles have no such output (`chooses`)."""
        return self._step(cache, tokens, rows, tree, logits=False)

    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
    ) -> NDArray[np.float32]:
        """Run `tokens` [S] at the positions that follow the cache's rows, append them to it, and return logits
        [R, V] of `rows` [R], indices into the S tokens; default: the last one. `tree` says what each token attends to,
        where they do not follow each other; while a cache holds more than one branch, every step needs one.

        The result is overwritten by the next step of the same shape on the same cache, and where there are several
        rows of logits, by the next such step of any shape.
        """
        return self._step(cache, tokens, rows, tree, logits=True)

    def _step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None,
        tree: Tree | None,
        *,
        logits: bool,
    ) -> NDArray[Any]:
        size, wanted = tokens.shape[0], LAST_ROW if rows is None else rows
        if not 1 <= size <= cache.room:
            raise ValueError(f"a step of {size} tokens on a cache with room for {cache.room}")
        if not cache.exact:
            return self._run(cache, tokens, wanted, tree, logits)
        assert tree is None, "steps over trees are not exact"
        count = wanted.shape[0]
        tokens, wanted = paired(tokens, wanted, self.bundle.manifest.context - cache.length)
        made = self._run(cache, tokens, wanted, None, logits)
        cache.length -= tokens.shape[0] - size
        return made[:count]

    def _run(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        wanted: NDArray[np.int64],
        tree: Tree | None,
        logits: bool,
    ) -> NDArray[Any]:
        """A step, as it is asked for: its logits or its likeliest tokens."""
        size, shape = tokens.shape[0], (tokens.shape[0], wanted.shape[0], logits)
        steps = self._steps.get(cache)
        if steps is None:
            steps = self._steps[cache] = {}
        step = steps.get(shape)
        if step is None:
            made = self._logits_for(cache, shape[1]) if logits else np.zeros((1, shape[1]), np.int64)
            with self._opening:
                step = self._make_step(cache, size, made)
            if size <= KEPT_STEP:
                steps[shape] = step
        step.fill(tokens, cache.length, wanted, tree)
        self._compute(cache, step, tree)
        rows: NDArray[Any] = step.made[0]
        return rows

    def _make_step(self, cache: KVCache, size: int, made: NDArray[Any]) -> StepBuffers:
        if size > KEPT_STEP:  # a prompt's chunk, whose buffers go when it ran
            return Step(Bound(self._session, self._inputs, cache, size), size, made)
        outputs = self._bound.setdefault(cache, {})
        bound: Bound | None = outputs.get(made.dtype.char)
        if bound is None:
            bound = outputs[made.dtype.char] = Bound(self._session, self._inputs, cache, KEPT_STEP)
        return Step(bound, size, made)

    def _compute(self, cache: KVCache, step: StepBuffers, tree: Tree | None) -> None:
        """Run a step that was filled, and take its tokens into the cache."""
        assert isinstance(step, Step)
        step.run(cache, tree)

    def _logits_for(self, cache: KVCache, rows: int) -> NDArray[np.float32]:
        """A buffer [1, R, V] for logits. That of several rows is shared by all such steps on the cache, so that drafts
        of many lengths take no more memory than the longest."""
        vocab = self.bundle.manifest.dims.vocab_size
        if rows == 1 or rows > KEPT_STEP:
            return np.empty((1, rows, vocab), np.float32)
        shared = self._logits.get(cache)
        if shared is None:
            shared = self._logits[cache] = np.frombuffer(untouched(KEPT_STEP * vocab * 4), np.float32)
        return shared[: rows * vocab].reshape(1, rows, vocab)
