"""The engine: one ONNX Runtime session over a bundle's decoder graph, and one primitive, `Engine.step`."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import KV8
from edge.runtime.costs.measured import costs
from edge.runtime.engine.binding import KEPT_STEP, LAST_ROW, Step, StepBuffers, WholeBinding, pad_to_even
from edge.runtime.engine.cache import KVCache, Seat, check_memory
from edge.runtime.engine.candidates import Candidates
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.fits import check_fits
from edge.runtime.engine.long_rope import long_rope
from edge.runtime.engine.prefill_engine import PrefillEngine
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import PLAIN, Variant
from edge.runtime.kernels.nodes import LIKELIEST_COUNT, LIKELIEST_LOGARITHMS, LIKELIEST_TOKENS
from edge.runtime.limits import DEFAULT_CONTEXT, PREFILL_CHUNK
from edge.runtime.memory.shares import Shares, closed
from edge.runtime.providers import AUTO, open_provider
from edge.runtime.providers.base import Buffer, Provider, Session

if TYPE_CHECKING:
    from edge.runtime.costs.curve import CostCurve
    from edge.runtime.skip.engine import SegmentedEngine
    from edge.targets import DeviceTarget, Target

LOGITS, TOKENS, CANDIDATES = "logits", "tokens", "candidates"  # what a step may be asked for
Wanted = str | int  # how many of the likeliest tokens


class Likeliest(NamedTuple):
    """The likeliest tokens of each row, the best first, and the logarithms of their probabilities, both [R, count]."""

    logarithms: NDArray[np.float32]
    tokens: NDArray[np.int64]


class Engine:
    """A loaded decoder, with its encoder where it has one. Conversations live in `KVCache` objects, so that one engine
    serves several.

    Args:
        bundle: an opened bundle whose files were checked.
        variant: which of its graphs are opened, and how steps are run; see `edge.runtime.choose.choose`.
        provider: what runs them; default: the best that this machine has.

    Raises:
        InputError: the variant's context is not within the bundle's.
        BundleError: the bundle has no such graph, or it cannot be loaded.
    """

    chooses: bool  # whether the graph can be asked for the likeliest tokens alone: `choose`
    ranks = False  # whether the graph can be asked for the likeliest tokens and their probabilities: `likeliest`
    takes_trees: bool  # whether `step` can be given a `Tree`
    chunk = PREFILL_CHUNK  # prompt tokens of one step, where nobody says how many
    # Prompts that are answered at a time: 16 were as fast in 8 bits and 10% faster in 4, with twice the memory.
    side_by_side = 8
    turns = True  # whether steps of one graph may turn positions by other factors: `edge.runtime.engine.long_rope`
    closed = False  # whether no more steps are to run
    shares: Shares | None = None  # of a memory limit
    target: Target | DeviceTarget | None = None  # what the graphs were made for, where that is one kind of device
    remote = False  # whether logits are in another memory than the host's, from which few are read sooner: `candidates`

    def __init__(self, bundle: Bundle, variant: Variant = PLAIN, provider: Provider | None = None) -> None:
        limit = bundle.manifest.context
        self.bundle, self.variant, self.plan, self.exact = bundle, variant, variant.plan, variant.exact
        self.kv = dataclasses.replace(bundle.manifest.kv, dtype=variant.kv)
        context = variant.context if variant.plan is None else variant.plan.demand.context
        self.context = min(DEFAULT_CONTEXT, limit) if context is None else context
        if variant.plan is not None:
            total = variant.plan.answers_bytes
            self.shares = Shares(total, refuse=variant.refuse, name=bundle.manifest.name)
        if not 1 <= self.context <= limit:
            raise InputError(f"The context must be between 1 and {limit} tokens for this bundle, not {self.context}.")
        self.provider = provider or open_provider(AUTO, manifest=bundle.manifest)
        self.threads = self.provider.threads
        self.long_rope = long_rope(bundle.manifest) if self.turns else None
        source = None if variant.plan is None else variant.plan.demand.source
        encoded = bundle.manifest.encoder is not None
        self.encoder = self._open_encoder(source) if encoded else None
        self.session = self._open()
        # Reads long prompts.
        self.prefill = PrefillEngine(bundle, self.provider, self.long_rope, self._again) if variant.prefill else None
        self._look_at(self.session)
        self._check_fits()
        self._steps: WeakKeyDictionary[Seat, dict[tuple[int, int, Wanted], StepBuffers]] = WeakKeyDictionary()
        self._bound: WeakKeyDictionary[Seat, dict[tuple[str, ...], Any]] = WeakKeyDictionary()  # by outputs
        self._logits: WeakKeyDictionary[Seat, Buffer] = WeakKeyDictionary()

    def close(self) -> None:
        """End what is under way at its next step."""
        self.closed = True
        if self.prefill is not None:
            self.prefill.closed = True
        if self.shares is not None:
            self.shares.close()

    def check_open(self) -> None:
        """Raise InputError where no more steps are to run."""
        if self.closed:
            raise InputError(closed(self.bundle.manifest.name))

    def _open_encoder(self, source: int | None) -> Encoder:
        """The encoder of an encoder-decoder. source: most tokens of a text, where memory has room for fewer."""
        return Encoder(self.bundle, self.provider, source)

    def _open(self) -> Session:
        """The session over the variant's graph, or over the first of several."""
        return self.provider.open(self.bundle, self.variant.role)

    def _check_fits(self) -> None:
        """BundleError where a graph has other sizes than the manifest states, of which memory is taken."""
        turned = self.encoder is not None and self.encoder.turned
        for name, session in self.sessions.items():
            check_fits(self.bundle, session, name, turned=turned)

    def _look_at(self, session: Session) -> None:
        """See what its graph can do."""
        self.chooses = "tokens" in session.outputs
        self.ranks = LIKELIEST_TOKENS in session.outputs
        self.takes_trees = self.long_rope is None and any("attention_bias" in n for n in session.inputs)

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
        check_memory(self.kv, rows, remote=self.remote)
        spare = int(self.pads or self.prefill is not None)
        return KVCache(self.provider, self.kv, rows, cross, spare, self.pads)

    @property
    def routes(self) -> SegmentedEngine | None:
        """What says which units run in a step; None where all of the decoder does."""
        return None

    @property
    def independent(self) -> bool:
        """Whether a row of a step is the same, bit for bit, whatever stands next to it: all steps are exact then."""
        return self.session.independent

    @property
    def pads(self) -> bool:
        """Whether exact steps run an even number of tokens: see `pad_to_even`."""
        return self.exact and not self.independent

    @cached_property
    def costs(self) -> CostCurve | None:
        """What a step costs on this device: see `edge.runtime.costs.measured.costs`."""
        return costs(self.bundle, self.provider.name, self.threads, self.kv.dtype)

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions that are open, by the roles of their graphs."""
        prefill = self.prefill.opened if self.prefill is not None else {}
        return (self.encoder.sessions if self.encoder is not None else {}) | {self.variant.role: self.session} | prefill

    def path(self, name: str) -> Path:
        """The file of the graph of one of `sessions`."""
        return self.bundle.path(self.bundle.manifest.graph(name).path)

    def max_exact_step(self, cache: KVCache) -> int:
        """How many tokens from the next one on one step may run, each of which comes out as in a step of its own, as
        far as steps of any size do."""
        last = self.bundle.manifest.context - 1  # where there is no row to run beside the token's: see `pad_to_even`
        room = cache.room if self.long_rope is None else min(cache.room, self.long_rope.room(cache))
        return max(1, min(room, last - cache.length)) if cache.exact else room

    @property
    def supports_batching(self) -> bool:
        """Whether a step can take a token of each of several sequences: `edge.runtime.batch`."""
        if self.long_rope is not None:  # each may have other factors
            return False
        kv8 = self.variant.role == KV8 and self.session.supports_batching
        return kv8 or self.bundle.manifest.graph(self.variant.role).batch

    def choose(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
    ) -> NDArray[np.int64]:
        """As `step`, with the token that has the largest logit [R], the first of equals, in the place of logits, which
        the graph keeps to itself; -1 where that logit is not finite. Older bundles have no such output (`chooses`)."""
        return self._step(cache, tokens, rows, tree, TOKENS)

    def likeliest(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        count: int,
    ) -> Likeliest:
        """As `step`, with the `count` likeliest tokens of each row [R] instead of its logits. Engines whose graph
        cannot say them have none (`ranks`)."""
        self.check_open()
        cache.check_room(tokens.shape[0])
        if self.long_rope is not None:
            self.long_rope.place(cache, tokens, self._again)
        made = self._ran(cache, tokens, LAST_ROW if rows is None else rows, tree, count).outputs
        return Likeliest(made[LIKELIEST_LOGARITHMS].array, made[LIKELIEST_TOKENS].array)

    def candidates(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
    ) -> list[Candidates]:
        """As `step`, with the likeliest tokens of each row [R] in the place of its logits, which stay on the device.
        Engines whose logits are in the host's memory have none (`remote`)."""
        raise NotImplementedError("logits are in the host's memory")

    def candidates_of(self, logits: Buffer) -> list[Candidates]:
        """The likeliest tokens of each row of logits [1, R, V] or [R, 1, V]."""
        raise NotImplementedError("logits are in the host's memory")

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
        return self._step(cache, tokens, rows, tree, LOGITS)

    def _step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None,
        tree: Tree | None,
        asked: Wanted,
    ) -> NDArray[Any]:
        self.check_open()
        cache.check_room(tokens.shape[0])
        if self.long_rope is not None:
            self.long_rope.place(cache, tokens, self._again)
        return self._placed(cache, tokens, LAST_ROW if rows is None else rows, tree, asked)

    def _again(self, cache: KVCache, tokens: NDArray[np.int64]) -> NDArray[Any]:
        """Run tokens whose text has its factors."""
        return self._placed(cache, tokens, LAST_ROW, None, LOGITS)

    def _placed(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        wanted: NDArray[np.int64],
        tree: Tree | None,
        asked: Wanted,
    ) -> NDArray[Any]:
        """A step of a text that has its factors (`long_rope`)."""
        size = tokens.shape[0]
        if not cache.exact:
            return self._run(cache, tokens, wanted, tree, asked)
        assert tree is None, "steps over trees are not exact"
        count = wanted.shape[0]
        tokens, wanted = pad_to_even(tokens, wanted, self.bundle.manifest.context - cache.length)
        made = self._run(cache, tokens, wanted, None, asked)
        cache.length -= tokens.shape[0] - size
        return made[:count]

    def _run(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        wanted: NDArray[np.int64],
        tree: Tree | None,
        asked: Wanted,
    ) -> NDArray[Any]:
        """A step, as it is asked for: its logits or its likeliest tokens."""
        first = cache.length <= cache.prompt  # the first step of an answer
        step = self._ran(cache, tokens, wanted, tree, asked)
        rows: NDArray[Any] = step.made[0]
        if asked == TOKENS:
            logits = None if self.remote else step.outputs["logits"].array[0]
            _check_tokens(rows, logits, self.bundle.manifest.dims.vocab_size, first)
        return rows

    def _ran(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        wanted: NDArray[np.int64],
        tree: Tree | None,
        asked: Wanted,
    ) -> StepBuffers:
        """A step that was run, on the memory that is kept for all of its shape."""
        size, rows = tokens.shape[0], wanted.shape[0]
        shape = size, rows, asked
        steps = self._steps.get(cache.seat)
        if steps is None:
            steps = self._steps[cache.seat] = {}
        try:
            step = steps.get(shape)
            if step is None:
                step = self._make_step(cache, size, rows, self._outputs_for(cache, rows, asked))
                if isinstance(asked, int):
                    step.inputs[LIKELIEST_COUNT] = self.provider.adopt(np.array([asked], np.int64))
                if size <= KEPT_STEP:
                    steps[shape] = step
            step.fill(tokens, cache.length, wanted, tree)
            self._compute(cache, step, tree)
        except FAILURES as e:
            raise failed(self.bundle, e) from e
        return step

    def _make_step(self, cache: KVCache, size: int, rows: int, outputs: dict[str, Buffer]) -> StepBuffers:
        return Step(self._binding_for(cache, size, outputs), cache, size, rows, outputs)

    def _binding_for(self, cache: KVCache, size: int, outputs: dict[str, Buffer]) -> Any:
        """What a step of this size shares with all kept ones that write the same outputs; larger ones, a prompt's
        chunks, have one of their own, which goes when they ran."""
        if size > KEPT_STEP:
            return self._bind(cache, size)
        kept, written = self._bound.setdefault(cache.seat, {}), tuple(outputs)
        if written not in kept:
            kept[written] = self._bind(cache, KEPT_STEP)
        return kept[written]

    def _bind(self, cache: KVCache, maximum: int) -> Any:
        return WholeBinding(self.session, cache, maximum)

    def _compute(self, cache: KVCache, step: StepBuffers, tree: Tree | None) -> None:
        """Run a step that was filled, and take its tokens into the cache."""
        assert isinstance(step, Step)
        if self.long_rope is not None:
            self.long_rope.turn(cache, step.positions)
        step.run(cache, tree)

    def _outputs_for(self, cache: KVCache, rows: int, asked: Wanted) -> dict[str, Buffer]:
        allocate = self.provider.allocate
        if isinstance(asked, int):
            return {
                LIKELIEST_TOKENS: allocate((rows, asked), np.int64),
                LIKELIEST_LOGARITHMS: allocate((rows, asked), np.float32),
            }
        if asked == TOKENS:
            tokens = {"tokens": allocate((1, rows), np.int64)}
            return tokens if self.remote else {**tokens, "logits": self._logits_for(cache, rows)}
        return {"logits": self._logits_for(cache, rows)}

    def _logits_for(self, cache: KVCache, rows: int) -> Buffer:
        """A buffer [1, R, V] for logits. That of several rows is shared by all such steps on the cache, so that drafts
        of many lengths take no more memory than the longest."""
        vocab, provider = self.bundle.manifest.dims.vocab_size, self.provider
        if rows == 1 or rows > KEPT_STEP:
            return provider.allocate((1, rows, vocab), np.float32)
        shared = self._logits.get(cache.seat)
        if shared is None:
            shared = self._logits[cache.seat] = provider.allocate((KEPT_STEP, vocab), np.float32)
        return provider.part(shared, (1, rows, vocab))


def _check_tokens(tokens: NDArray[np.int64], logits: NDArray[np.float32] | None, vocab: int, whole: bool) -> None:
    """Put -1 in place of tokens [R] that a model does not have, or that have no finite logit in `logits` [R, V]: a
    graph passes over what is no number. whole: whether to look at all logits: one token may have none in every step."""
    if tokens.size == 1 and logits is not None and not whole:  # nearly every step
        token = tokens.item(0)
        if 0 <= token < vocab and math.isfinite(logits.item(token)):
            return
    for row, token in enumerate(tokens.tolist()):
        if not 0 <= token < vocab or (
            logits is not None and not math.isfinite(logits[row].max() if whole else logits.item(row, token))
        ):
            tokens[row] = -1
