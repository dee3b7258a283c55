"""What a drafter is: it guesses how the text goes on, and the model checks its guess in one step.

A drafter is one file beside this one, named as in `DRAFTERS`, with two functions: `nbytes(setting)`, the most memory it
will ever take, known before anything is allocated, and `make(setting)`, the drafter.

It says nothing about how long a draft should be: the planner cuts it where the next token would cost more than it is
expected to bring. For that every drafted token has a *grade*, a small number that says how good the evidence for it is
(how many tokens matched before it, its rank in a table, a bucket of a small model's probability). How often tokens of a
grade turn out right is learnt from the answers, by `edge.runtime.speculate.planner`; `priors` is what is believed
before.

A draft is never random. The sampler draws each token from the model's logits just as it does without a draft, and what
it drew is looked for in the draft. That accepts a drafted token x with probability p(x), the most that is possible for
a draft that is not random, and leaves the distribution the model's (Leviathan et al. 2023, appendix A.1, for a draft
distribution that is 1 at x).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from edge.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge.bundle import Bundle
    from edge.runtime.cache import KVCache
    from edge.runtime.engine import Engine
    from edge.runtime.skip.base import SkipPolicy

DRAFTERS: dict[str, str] = {
    "blend": "what lookup finds, weighed, and what the model most often says by the bundle's table",
    "lookup": "what followed the same words earlier in prompt or answer",
    "recycle": "what the model held likely when it last read the same token",
    "trigram": "what most often followed the last two tokens",
    "model=PATH": "what a smaller bundle with the same tokenizer says, whose path this is",
    "self[=LAYERS]": "what the model says with some of its layers left out, over a bundle's segments",
    "cascade": "lookup, then trigram, then recycle, where those before have nothing to say",
}
"""Drafters as they are asked for, each a module of this package, and what they guess from."""
BRANCHING = ("recycle", "cascade")  # those that draft trees where a step takes them
AUTO, OFF = "auto", "off"  # the best that can be had, and none
CHOSEN = "blend"  # what auto stands for
# Most tokens of a step, the one before the draft included: what a memory budget chooses from.
WIDTHS = (16, 8, 4, 2)
LOGITS = 8 * 2**20  # bytes of the rows of logits of one step, at most


class Draft(NamedTuple):
    """Tokens that may come next.

    tokens: a token stands behind its parent. grades: of each, an index into the drafter's `priors`. parents: of each,
    the index of its parent in `tokens`, below its own, or -1 where it follows the text; None for a chain, in which each
    token follows the one before.
    """

    tokens: Sequence[int]
    grades: Sequence[int]
    parents: Sequence[int] | None = None

    def likeliest(self, chances: Sequence[float], most: int) -> tuple[list[int], list[float]]:
        """Up to so many nodes of a tree, the likeliest path first and each behind its parent, and of all nodes the
        chance that its whole path holds. chances: by grade, that a token does where its parent did."""
        assert self.parents is not None, "a chain has no order but its own"
        holds = list[float]()
        for parent, grade in zip(self.parents, self.grades, strict=True):
            holds.append((holds[parent] if parent >= 0 else 1.0) * chances[grade])
        # A node is never likelier than its parent, and of equals the parent has the smaller index.
        return sorted(range(len(holds)), key=lambda node: (-holds[node], node))[:most], holds

    def part(self, nodes: Sequence[int]) -> Draft:
        """A tree's part of these nodes, in this order, in which each stands behind its parent."""
        assert self.parents is not None, "a chain is cut by its length"
        place = {node: i for i, node in enumerate(nodes)} | {-1: -1}
        return Draft(
            [self.tokens[node] for node in nodes],
            [self.grades[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
        )


NOTHING = Draft((), ())


class Budget(NamedTuple):
    """What one draft may hold.

    tokens: at most. least: the chance that all of a token's path holds below which it cannot pay; a drafter may stop
    there, and one whose tokens cost time does. trees: whether the step takes trees; if not, it must be a chain.
    """

    tokens: int
    least: float = 0.0
    trees: bool = False


class Drafter(Protocol):
    """Guesses how a text goes on. One drafter serves one model, text after text.

    What it learns from one text and keeps for the next is its own business, within `nbytes`.
    """

    @property
    def name(self) -> str:
        """As in `DRAFTERS`."""

    @property
    def priors(self) -> Sequence[float]:
        """For each grade, the chance that such a token is right where the one before it was."""

    @property
    def cost(self) -> float:
        """What drafting a token takes, in the model's own steps of one token, as far as it can be told before it was
        measured; 0 where it is next to nothing."""

    @property
    def reads_logits(self) -> bool:
        """Whether `verified` is to be called."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A text begins with `tokens`: the prompt, which holds the earlier turns of a chat."""

    def accept(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`, drafted or not."""

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        """The draft of what follows `context`, all of the text so far, to which nothing was added that `begin` and
        `accept` were not told of. Nothing is changed by asking, and it may be asked twice."""

    def verified(self, tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        """The model ran `tokens` [S], those that turned out wrong too, and made these logits [S, V] of what follows
        each; they are overwritten by the next step."""


@runtime_checkable
class SharesCache(Protocol):
    """A drafter that runs the model that verifies, over the same KV cache."""

    def share(self, cache: KVCache | None) -> None:
        """The next text's cache, or None once that text has ended: nothing keeps its cache then. Whenever the drafter
        is asked the cache holds all of the text but the last token, and does so again when it has answered."""


@dataclass(frozen=True)
class Setting:
    """What a drafter is made for.

    bundle: of the model that verifies. context: most tokens of a text. argument: what stood behind ``=`` in its name,
    as in ``model=PATH``. limit: most bytes that it may take, where a plan set it; a drafter that needs more than that
    at its smallest raises InputError. engine: that verifies; None where only memory is asked for. files: whether
    tables that the bundle brings along may be kept.
    """

    bundle: Bundle
    context: int
    argument: str | None = None
    limit: int | None = None
    threads: int | None = None
    engine: Engine | None = None
    files: bool = True


class DrafterModule(Protocol):
    """What each module of a drafter has."""

    def nbytes(self, setting: Setting) -> int:
        """Most bytes that the drafter will take."""

    def make(self, setting: Setting) -> Drafter:
        """The drafter."""


def widest_draft(vocab: int) -> int:
    """Most tokens of a step with a draft, by the size of the vocabulary: each has a row of logits."""
    return min(WIDTHS[0], max(WIDTHS[-1], LOGITS // (4 * vocab)))


def table_bytes(name: str, bundle: Bundle, context: int, *, files: bool = True) -> int:
    """Most bytes that what ``auto`` or a drafter's name stands for takes, for texts of up to `context` tokens, with
    the bundle's own tables or without."""
    module, argument = find(name)
    return module.nbytes(Setting(bundle, context, argument, files=files))


def parts_of_model(name: str, bundle: Bundle) -> SkipPolicy | None:
    """How the segments of a decoder must stand apart for a drafter that runs parts of it; None for all others, which
    draft for the whole graph.

    Raises:
        InputError: there is no such drafter, or the bundle has no segments for it.
    """
    if name in (AUTO, OFF) or bundle.manifest.encoder is not None:
        return None
    word, argument = _parts(name)
    if word != "self":
        return None
    module = importlib.import_module("edge.runtime.speculate.self")
    return cast("SkipPolicy", module.policy(bundle, argument))


def check_argument(name: str, bundle: Bundle) -> None:
    """Check a drafter, and what stands behind ``=`` in its name, as in ``model=PATH``, before anything is loaded.

    Raises:
        InputError: the drafter cannot be made of it for this bundle, or the bundle is an encoder-decoder.
        BundleError: it names no bundle, or a damaged one.
    """
    if name in (AUTO, OFF):
        return
    if bundle.manifest.encoder is not None:
        raise InputError(f"{bundle.manifest.name} is an encoder-decoder; leave out {name}, which drafts for decoders.")
    if _parts(name)[1] is None:
        return
    module, argument = find(name)
    module.nbytes(Setting(bundle, bundle.manifest.context, argument))


def branches(name: str, bundle: Bundle) -> bool:
    """Whether what ``auto`` or a drafter's name stands for drafts trees, and the bundle has a graph for them."""
    return name in BRANCHING and any(graph.role == "tree" for graph in bundle.manifest.graphs)


def check_name(name: str) -> None:
    """Raise InputError where `name` is neither ``auto``, ``off`` nor a drafter's."""
    if name not in (AUTO, OFF):
        _parts(name)


def find(name: str) -> tuple[DrafterModule, str | None]:
    """The module of a drafter, and its argument, from a name like ``lookup`` or ``model=PATH``, or ``auto``.

    Raises:
        InputError: there is no such drafter, or it needs an argument, or takes none.
    """
    word, argument = _parts(CHOSEN if name == AUTO else name)
    return cast(DrafterModule, importlib.import_module(f"edge.runtime.speculate.{word}")), argument


def _parts(name: str) -> tuple[str, str | None]:
    word, sign, argument = name.partition("=")
    takes = {re.split(r"\W", key)[0]: key for key in DRAFTERS}
    if word not in takes:
        raise InputError(f"There is no drafter {name!r}; there are {', '.join([AUTO, OFF, *DRAFTERS])}.")
    key = takes[word]
    if "=" in key and "[" not in key and not argument:
        raise InputError(f"The drafter {word} needs to be told which; write it as in {key}.")
    if sign and "=" not in key:
        raise InputError(f"The drafter {word} takes nothing behind it; write {word} alone.")
    return word, argument or None
