"""The protocol of drafters. A drafter guesses how the text goes on, and the model checks its guess in one step.

A drafter is one file in this folder with a name, a line of help, its traits (see `edge.registry`) and two functions:
`nbytes(setting)`, the maximum memory that it takes, known before anything is allocated, and `make(setting)`.

Every drafted token has a *grade*, a small number that says how good the evidence for it is. How often tokens of a grade
are accepted is learnt by `edge.runtime.speculate.planner`, which cuts drafts; `priors` is what is believed before.

A draft is never random: the sampler draws each token from the model's logits as without a draft, and looks for it in
the draft. A drafted token x is accepted with probability p(x), and the distribution stays the model's (Leviathan et al.
2023, appendix A.1, for a draft distribution that is 1 at x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    from edge.runtime.skip.skip_policy import SkipPolicy

DRAFTERS = Registry("edge.runtime.speculate", "drafter")
"""By name. TRAITS: which kinds of bundles one `serves` (see `KINDS`), how it is `asked` for where its name is not all,
and whether it runs `segments` of the model."""
KINDS = {
    "decoder": "which has no encoder",
    "text": "which turns one text into another",
    "audio": "which transcribes sound",
}
AUTO, OFF = "auto", "off"  # the best drafter, and none
CHOSEN = "blend"  # what auto stands for
WIDTHS = (16, 8, 4, 2)  # maximum tokens of a step, the one before the draft included, that a memory budget chooses from
EARLIER = 1500  # tokens of a transcription's earlier windows that drafts are made from
LOGITS = 8 * 2**20  # maximum bytes of the rows of logits of one step


def _always(share: float, size: int) -> bool:
    return True


class Budget(NamedTuple):
    """Limits of one draft: its maximum `tokens`, and the probability of being accepted below which a token cannot pay
    (`min_chance`).

    A drafter that runs a model calls `afford(share, size)` before each of its steps, with the share of the verifying
    model that the step runs and its tokens. It is True if the answer can lose that time, should no drafted token be
    accepted; the step then counts as run.
    """

    tokens: int
    min_chance: float = 0.0
    afford: Callable[[float, int], bool] = _always


class Drafter(Protocol):
    """Guesses how a text goes on, for one model, text after text.

    priors: for each grade, the probability that such a token is right where the one before it was. cost: an estimate of
    the time to draft a token, in the model's steps of one token; for a drafter that runs a model, the share that it
    passes to `Budget.afford`.
    """

    name: str
    priors: Sequence[float]
    cost: float = 0.0
    reads_logits: bool = False  # whether `verified` is to be called
    needs_cache: bool = False  # whether it drafts in the text's cache, which must have all but the last token

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        """Begin a text with `tokens`: the prompt with the earlier turns of a chat. source: other tokens that it may
        repeat: what an encoder read, or what was said before the prompt."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text, drafted or not."""

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        """Return a draft of what follows `context`, which is all of the text that `begin` and `accept` were given. May
        be called twice for the same text."""

    def verified(self, tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        """Learn from a step: the model ran `tokens` [S], rejected ones included, and made the logits [S, V] of what
        follows each. The next step overwrites them."""
        return

    def share(self, cache: KVCache | None) -> None:
        """Receive the next text's cache, for a drafter that runs the verifying model; None once that text has ended.
        Before and after each draft it has all of the text but the last token."""
        return


@dataclass(frozen=True)
class Setting:
    """The inputs for making a drafter.

    bundle: of the model that verifies. context: maximum tokens of a text and its source. argument: what follows ``=``
    in its name, as in ``model=PATH``. limit: maximum bytes, where a plan set it. engine: that verifies; None where only
    memory is asked for. files: whether tables that the bundle brings may be kept.
    """

    bundle: Bundle
    context: int
    argument: str | None = None
    limit: int | None = None
    threads: int | None = None
    engine: Engine | None = None
    files: bool = True

    def check_limit(self, what: str, need: int, instead: str = "lookup") -> None:
        """Raise InputError where `what` needs more bytes than the limit."""
        if self.limit is not None and need > self.limit:
            raise InputError(
                f"{what} takes at least {need} bytes, more than the {self.limit} that are left; choose --speculate "
                f"{instead}, or a larger budget."
            )


class DrafterModule(Protocol):
    """The protocol of a drafter's module."""

    def nbytes(self, setting: Setting) -> int:
        """Return the maximum bytes that the drafter takes."""

    def make(self, setting: Setting) -> Drafter:
        """Return the drafter."""


def widest_draft(vocab: int) -> int:
    """The maximum tokens of a step with a draft, by the size of the vocabulary: each has a row of logits."""
    return min(WIDTHS[0], max(WIDTHS[-1], LOGITS // (4 * vocab)))


def source_tokens(manifest: Manifest, limit: int = 0) -> int:
    """Tokens that a text may repeat besides its own: of an encoder's input (`limit`, where it is planned), or of a
    transcription's earlier windows."""
    if manifest.encoder is None:
        return 0
    return EARLIER if manifest.encoder.input == "audio" else limit or manifest.encoder.max_length


def table_bytes(name: str, bundle: Bundle, context: int, source: int = 0, *, files: bool = True) -> int:
    """The maximum bytes of a drafter or ``auto``, for texts of up to `context` tokens and of an encoder's input
    `source`, with the bundle's own tables (`files`) or without."""
    module, argument = find(name)
    return module.nbytes(Setting(bundle, context + source_tokens(bundle.manifest, source), argument, files=files))


def parts_of_model(name: str, bundle: Bundle) -> SkipPolicy | None:
    """The policy of layers for a drafter that runs parts of the decoder; None for all others; InputError where there is
    no such drafter, or the bundle has no segments for it."""
    if name in (AUTO, OFF):
        return None
    entry, argument = _parts(name)
    if not entry.traits.get("segments"):
        return None
    return cast("SkipPolicy", entry.load().policy(bundle, argument))


def runs_units(name: str) -> bool:
    """True if a drafter runs parts of the decoder; False for an unknown one."""
    entry = DRAFTERS.get(name.partition("=")[0])
    return entry is not None and bool(entry.traits.get("segments"))


def chosen(name: str, bundle: Bundle) -> str:
    """Return the drafter for a bundle where `name` is asked for: ``auto`` is ``off`` for an encoder-decoder; InputError
    where there is no such drafter, or it does not serve the bundle."""
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
    """Return the drafter like `chosen`, after a check of what follows ``=`` in the name, before anything is loaded;
    InputError or BundleError where the drafter cannot be made of it."""
    name = chosen(name, bundle)
    if "=" in name:
        module, argument = find(name)
        module.nbytes(Setting(bundle, bundle.manifest.context, argument))
    return name


def check_name(name: str) -> None:
    """Raise InputError where `name` is neither ``auto``, ``off`` nor a drafter's."""
    if name not in (AUTO, OFF):
        _parts(name)


def find(name: str) -> tuple[DrafterModule, str | None]:
    """The module of a drafter, and its argument, from a name like ``lookup`` or ``model=PATH``, or ``auto``; InputError
    where there is no such drafter, or it needs an argument, or takes none."""
    entry, argument = _parts(CHOSEN if name == AUTO else name)
    return cast(DrafterModule, entry.load()), argument


def _parts(name: str) -> tuple[Entry, str | None]:
    word, sign, argument = name.partition("=")
    if word not in DRAFTERS:
        raise InputError(f"There is no drafter {name!r}; there are {AUTO}, {OFF}, {DRAFTERS}.")
    entry = DRAFTERS[word]
    if entry.asked.startswith(f"{word}=") and not argument:
        raise InputError(f"The drafter {word} needs an argument; write it as in {entry.asked}.")
    if sign and entry.asked == word:
        raise InputError(f"The drafter {word} takes no argument; write {word} alone.")
    return entry, argument or None
