"""`edge verify` of a bundle that makes vectors, or ranks documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.cli.progress import bar
from edge.cli.tables import console
from edge.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge.bundle import Bundle
    from edge.runtime.providers.provider import Provider


def verify_vectors(bundle: Bundle, files: Sequence[str], provider: Provider) -> None:
    """Make the recorded vectors or scores here, and print what was found, the verdict first; BundleError where that is
    a fault. files: lines about the files."""
    from edge.golden_vectors import read_vectors
    from edge.runtime.check.vectors import replay_vectors
    from edge.runtime.load import open_embedder
    from edge.runtime.load_options import LoadOptions

    golden = read_vectors(bundle)
    assert bundle.manifest.embedding is not None
    what, each = ("vectors", "texts") if bundle.manifest.embedding.pair is None else ("scores", "pairs")
    with (
        bar(f"Making recorded {what}", len(golden.cases)) as advance,
        open_embedder(bundle, LoadOptions(provider=provider), checked=True) as model,
    ):
        report = replay_vectors(model, golden, advance)
    verdict = (
        f"Good: the files are intact, and the {what} are as recorded at export."
        if not report.faults
        else f"Not good: the files are intact, but the {what} are others than were recorded at export."
    )
    console(wrap=True).print(f"Verdict  {verdict}")
    print(*files, sep="\n")
    by = "by the cosine" if what == "vectors" else "of their size"
    print(f"{what.capitalize():8} {report.texts} {each}, up to {report.largest:.2g} from the recorded {by}; ", end="")
    print(f"{report.tolerance:.2g} is tolerated")
    if report.faults:
        more = f", and {len(report.faults) - 1} more" if len(report.faults) > 1 else ""
        raise BundleError(
            f"{bundle.root} does not make the {what} on this machine that were recorded ({report.faults[0]}{more}); "
            "the files are intact, so the fault is in the model's computation here: report it with this machine's "
            "processor."
        )
