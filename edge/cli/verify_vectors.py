"""`edge verify` of a bundle that makes vectors."""

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
    """Make the recorded vectors here, and print what was found, the verdict first; BundleError where that is a fault.
    files: lines about the files."""
    from edge.golden_vectors import read_vectors
    from edge.runtime.check.vectors import replay_vectors
    from edge.runtime.load import open_embedder
    from edge.runtime.load_options import LoadOptions

    golden = read_vectors(bundle)
    with (
        bar("Making recorded vectors", len(golden.cases)) as advance,
        open_embedder(bundle, LoadOptions(provider=provider), checked=True) as embedder,
    ):
        report = replay_vectors(embedder, golden, advance)
    verdict = (
        "Good: the files are intact, and the vectors are as recorded at export."
        if not report.faults
        else "Not good: the files are intact, but the vectors are others than were recorded at export."
    )
    console(wrap=True).print(f"Verdict  {verdict}")
    print(*files, sep="\n")
    print(f"Vectors  {report.texts} texts, up to {report.largest:.2g} from the recorded by the cosine; ", end="")
    print(f"{report.tolerance:.2g} is tolerated")
    if report.faults:
        more = f", and {len(report.faults) - 1} more" if len(report.faults) > 1 else ""
        raise BundleError(
            f"{bundle.root} does not make the vectors on this machine that were recorded ({report.faults[0]}{more}); "
            "the files are intact, so the fault is in the model's computation here: report it with this machine's "
            "processor."
        )
