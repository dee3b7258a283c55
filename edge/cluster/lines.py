"""A file of prompts as a job of Ray Data: models that are loaded once each answer blocks of its lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import ray
import ray.data
from ray.exceptions import RayError

from edge.bundle import Bundle
from edge.cluster.address import Cluster
from edge.cluster.parcel import Parcel, cause_of, named, packed
from edge.errors import DeviceError, on_one_line
from edge.runtime.load import load
from edge.runtime.load_options import LoadOptions

BLOCK = 32  # lines of a block: several times as many as are answered side by side
AHEAD = 2  # blocks that are sent to a model at a time

Line = tuple[int, str]
"""A line and its place before it."""


class Answer(Protocol):
    """The answer to a line; a named tuple of texts, numbers and truths."""

    def _asdict(self) -> dict[str, Any]: ...


Work = Callable[[Any, Sequence[Line]], Iterable[tuple[int, Answer]]]
"""Answers lines with a model, in any order. It is sent to the nodes: a function that they can import, or a part of
one."""


@dataclass(frozen=True)
class Job:
    """Answers to lines by all nodes of a cluster. options: by which each loads the bundle."""

    cluster: Cluster
    bundle: Bundle
    options: LoadOptions

    def answers(self, lines: Sequence[Line], work: Work) -> Generator[tuple[int, dict[str, Any]], None, None]:
        """Yield the place of each line and the fields of its answer, in any order, each once. What a node that dies had
        begun, others do again.

        Raises:
            InputError: see `packed`.
            EdgeError: of the model, on a node that it names.
            DeviceError: the cluster failed.
        """
        if not lines:
            return
        options = replace(self.options, threads=self.options.threads or self.cluster.threads)
        parcel = packed(self.bundle, self.cluster)
        _be_quiet()
        size = max(1, min(BLOCK, len(lines) // self.cluster.models))
        rows = [{"place": place, "line": line} for place, line in lines]
        made = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size)).map_batches(
            Answering,
            fn_constructor_args=(parcel, options, work),
            compute=ray.data.ActorPoolStrategy(
                min_size=1,
                initial_size=self.cluster.models,
                max_size=self.cluster.models,
                max_tasks_in_flight_per_actor=AHEAD,
            ),
            num_cpus=self.cluster.threads,
            batch_size=None,
            batch_format="numpy",
        )
        waiting = {place for place, _ in lines}
        try:
            for row in made.iter_rows():
                if (place := row.pop("place")) in waiting:
                    waiting.remove(place)
                    yield place, row
        except RayError as e:
            if (cause := cause_of(e)) is not None:
                raise type(cause)(str(cause)) from None
            raise DeviceError(f"The cluster failed: {on_one_line(e)}; the same command goes on.") from None
        if waiting:
            raise DeviceError(f"The cluster left {len(waiting)} lines without an answer; the same command goes on.")


def _be_quiet() -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # each answer is given at once, and not with others of its block
    logging.getLogger("ray.data").setLevel(logging.ERROR)


class Answering:
    """What a model's process on a node does with a block of lines. The model is loaded at the first one."""

    def __init__(self, parcel: Parcel, options: LoadOptions, work: Work) -> None:
        self._parcel, self._options, self._work = parcel, options, work

    @cached_property
    def _model(self) -> Any:
        return load(self._parcel.opened().root, self._options)

    def __call__(self, block: Any) -> Iterator[dict[str, list[Any]]]:
        """Yield the answers to a block one by one, in the order of its lines: where a block is answered again, Ray
        leaves out as many answers as it has."""
        lines = list(zip(map(int, block["place"]), block["line"], strict=True))
        with named():
            for place, answer in in_order([place for place, _ in lines], self._work(self._model, lines)):
                yield {"place": [place], **{name: [value] for name, value in answer._asdict().items()}}


def in_order(places: Iterable[int], found: Iterable[tuple[int, Answer]]) -> Iterator[tuple[int, Answer]]:
    """Yield what is found in the order of the places, each as soon as it and those before it are there."""
    source, early = iter(found), dict[int, Answer]()
    for place in places:
        while place not in early:
            other, answer = next(source)
            early[other] = answer
        yield place, early.pop(place)
