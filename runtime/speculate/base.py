"""What a drafter is: it guesses how the text goes on, and the model checks its guess in one step.

A drafter is one file in this folder that says its name, a line of help and its traits (see `edge.registry`), with two
functions: `nbytes(setting)`, the most memory it will ever take, known before anything is allocated, and
`make(setting)`, the drafter.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from edge.errors import InputError
from edge.registry import Registry
from edge.runtime.decode.draft import Draft

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge.bundle import Bundle
    from edge.manifest import Manifest
    from edge.registry import Entry
    from edge.runtime.engine.cache import KVCache
    from edge.runtime.engine.engine import Engine
    from edge.runtime.skip.base import SkipPolicy

DRAFTERS = Registry("edge.runtime.speculate", "drafter")
"""By name. TRAITS: which kinds of bundles one `serves` (see `KINDS`), how it is `asked` for where its name is not all,
whether it drafts `trees` where a step takes them, and whether it runs `segments` of the model."""
KINDS = {
    "decoder": "which has no encoder",
    "text": "which turns one text into another",
    "audio": "which transcribes sound",
}
AUTO, OFF = "auto", "off"  # the best that can be had, and none
CHOSEN = "blend"  # what auto stands for
# Most tokens of a step, the one before the draft included: what a memory budget chooses from.
WIDTHS = (16, 8, 4, 2)
EARLIER = 1500  # tokens of a transcription's earlier windows that drafts are made from
LOGITS = 8 * 2**20  # bytes of the rows of logits of one step, at most


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

    What it learns from one text and keeps for the next is its own business, within `nbytes`. priors: for each grade,
    the chance that such a token is right where the one before it was. cost: what drafting a token takes, in the model's
    own steps of one token, as far as it can be told before it was measured; 0 where it is next to nothing.
    """

    name: str
    priors: Sequence[float]
    cost: float = 0.0
    reads_logits: bool = False  # whether `verified` is to be called

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        """A text begins with `tokens`: the prompt, which holds the earlier turns of a chat. source: other tokens that
        it may repeat: what an encoder read, or what was said before the prompt."""

    def accept(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`, drafted or not."""

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        """The draft of what follows `context`, all of the text so far, to which nothing was added that `begin` and
        `accept` were not told of. Nothing is changed by asking, and it may be asked twice."""

    def verified(self, tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        """The model ran `tokens` [S], those that turned out wrong too, and made these logits [S, V] of what follows
        each; they are overwritten by the next step."""
        return

    def share(self, cache: KVCache | None) -> None:
        """The next text's cache, for a drafter that runs the model that verifies, or None once that text has ended:
        nothing keeps its cache then. Whenever the drafter is asked the cache holds all of the text but the last token,
        and does so again when it has answered."""
        return


@dataclass(frozen=True)
class Setting:
    """What a drafter is made for.

    bundle: of the model that verifies. context: most tokens of a text and its source. argument: what stood behind ``=``
    in its name, as in ``model=PATH``. limit: most bytes that it may take, where a plan set it; a drafter that needs
    more than that at its smallest raises InputError. engine: that verifies; None where only memory is asked for.
    files: whether tables that the bundle brings along may be kept.
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


def source_tokens(manifest: Manifest, limit: int = 0) -> int:
    """Tokens besides a text's own that it may repeat: of what an encoder reads, at most `limit` where memory has room
    for no more, or of a transcription's earlier windows."""
    if manifest.encoder is None:
        return 0
    return EARLIER if manifest.encoder.input == "audio" else limit or manifest.encoder.max_length


def table_bytes(name: str, bundle: Bundle, context: int, source: int = 0, *, files: bool = True) -> int:
    """Most bytes that what ``auto`` or a drafter's name stands for takes, for texts of up to `context` tokens and of an
    encoder's input `source`, with the bundle's own tables or without."""
    module, argument = find(name)
    return module.nbytes(Setting(bundle, context + source_tokens(bundle.manifest, source), argument, files=files))


def parts_of_model(name: str, bundle: Bundle) -> SkipPolicy | None:
    """How the segments of a decoder must stand apart for a drafter that runs parts of it; None for all others, which
    draft for the whole graph.

    Raises:
        InputError: there is no such drafter, or the bundle has no segments for it.
    """
    if name in (AUTO, OFF):
        return None
    entry, argument = _parts(name)
    if not entry.traits.get("segments"):
        return None
    return cast("SkipPolicy", entry.load().policy(bundle, argument))


def chosen(name: str, bundle: Bundle) -> str:
    """What drafts for a bundle where `name` is asked for: with ``auto``, nothing does for an encoder-decoder.

    Raises:
        InputError: there is no such drafter, or it does not serve the bundle.
    """
    manifest = bundle.manifest
    if name == AUTO and manifest.encoder is not None:
        return OFF
    if name in (AUTO, OFF):
        return name
    entry, _ = _parts(name)
    kind = "decoder" if manifest.encoder is None else manifest.encoder.input
    serving = [each for each, other in DRAFTERS.items() if kind in other.traits["serves"]]
    if entry.name not in serving:
        raise InputError(
            f"The drafter {entry.name} does not serve {manifest.name}, {KINDS[kind]}; choose {OFF} or one of "
            f"{', '.join(serving)}."
        )
    return name


def check_argument(name: str, bundle: Bundle) -> str:
    """`chosen`, after a check of what stands behind ``=`` in the name, as in ``model=PATH``, before anything is loaded.

    Raises:
        InputError: see `chosen`; or the drafter cannot be made of it for this bundle.
        BundleError: it names no bundle, or a damaged one.
    """
    name = chosen(name, bundle)
    if "=" in name:
        module, argument = find(name)
        module.nbytes(Setting(bundle, bundle.manifest.context, argument))
    return name


def branches(name: str, bundle: Bundle) -> bool:
    """Whether what ``auto`` or a drafter's name stands for drafts trees, and the bundle has a graph for them."""
    if name == OFF or all(graph.role != "tree" for graph in bundle.manifest.graphs):
        return False
    return bool(_parts(CHOSEN if name == AUTO else name)[0].traits.get("trees"))


def check_name(name: str) -> None:
    """Raise InputError where `name` is neither ``auto``, ``off`` nor a drafter's."""
    if name not in (AUTO, OFF):
        _parts(name)


def find(name: str) -> tuple[DrafterModule, str | None]:
    """The module of a drafter, and its argument, from a name like ``lookup`` or ``model=PATH``, or ``auto``.

    Raises:
        InputError: there is no such drafter, or it needs an argument, or takes none.
    """
    entry, argument = _parts(CHOSEN if name == AUTO else name)
    return cast(DrafterModule, entry.load()), argument


def drafter_names() -> list[str]:
    """All drafters, as they are asked for."""
    return [entry.traits.get("asked", name) for name, entry in DRAFTERS.items()]


def _parts(name: str) -> tuple[Entry, str | None]:
    word, sign, argument = name.partition("=")
    if word not in DRAFTERS:
        raise InputError(f"There is no drafter {name!r}; there are {', '.join([AUTO, OFF, *drafter_names()])}.")
    entry = DRAFTERS[word]
    asked = entry.traits.get("asked", word)
    if asked.startswith(f"{word}=") and not argument:
        raise InputError(f"The drafter {word} needs to be told which; write it as in {asked}.")
    if sign and asked == word:
        raise InputError(f"The drafter {word} takes nothing behind it; write {word} alone.")
    return entry, argument or None
