"""`edge run --lines FILE --cluster ADDRESS`: a file's lines, answered by a cluster's nodes."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edge.extras import needing

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.cli.run.line_answers import Answers, Line
    from edge.cluster.address import Cluster
    from edge.cluster.lines import Job
    from edge.runtime.load_options import LoadOptions
    from edge.runtime.loaded import Loaded


@contextmanager
def cluster_of(args: argparse.Namespace) -> Iterator[Cluster | None]:
    """The cluster that was asked for, which is left in the end; None where none was."""
    if args.cluster is None:
        yield None
        return
    with needing("--cluster", "cluster"):
        import ray.data  # noqa: F401 - which needs more than Ray

        from edge.cluster.address import joined
    with joined(args.cluster, args.threads) as cluster:
        yield cluster


def job_of(cluster: Cluster | None, bundle: Bundle, options: LoadOptions) -> Job | None:
    """What a cluster is to do: answer lines with a bundle that each node loads by the options."""
    if cluster is None:
        return None
    from edge.cluster.lines import Job

    return Job(cluster, bundle, options)


def spread(job: Job, model: Loaded, lines: Sequence[Line], work: partial[Answers]) -> Answers:
    """The answers of a cluster to lines. model: which has checked them here, and is closed."""
    from edge.cli.run.line_answers import Answer
    from edge.runtime.decode.generate_options import never

    model.close()
    elsewhere: Callable[..., Answers] = partial(work, options=replace(work.keywords["options"], interrupted=never))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nothing here looks whether it was pressed
    try:
        for place, fields in job.answers(lines, elsewhere):
            yield place, Answer(**fields)
    finally:
        signal.signal(signal.SIGINT, before)
