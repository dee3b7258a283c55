"""A bundle on its way to the nodes of a cluster, where they do not have it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, RayError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from edge import __version__
from edge.bundle import Bundle, BundleWriter, open_bundle
from edge.cluster.address import Cluster, Node, node_name
from edge.errors import BundleError, EdgeError, InputError, on_one_line
from edge.home import cache_dir, drop_oldest, mark_used
from edge.lock import locked
from edge.manifest import Manifest

PIECE = 32 << 20  # bytes of an object
KEPT = 4  # bundles that a node keeps
SURVEY_S = 180.0  # in which a node says what it has; one that is busy starts a process in a minute


@dataclass(frozen=True)
class Parcel:
    """A bundle for the nodes of a cluster.

    root: where it is on the machine that sends it, and perhaps on theirs. pieces: of each of its files, in the store of
    Ray's objects; None where every node has the bundle.
    """

    root: Path
    manifest: Manifest
    pieces: dict[str, list[Any]] | None

    def opened(self) -> Bundle:
        """The bundle on this node: at its path, or in the cache folder, where it is put unless it is there.

        Raises:
            BundleError: it is not here, and the parcel has no pieces; or these are not the bundle's.
            EdgeError: the cache folder cannot be written.
        """
        if (found := _found(self.root, self.manifest)) is not None:
            return found
        if self.pieces is None:
            raise BundleError(
                f"There is no bundle like {self.root} here, and this node came after the others had been asked; run "
                "the command again."
            )
        with locked(_place(self.manifest).with_suffix(".lock"), lambda: None):
            return _found(self.root, self.manifest) or self._unpacked(self.pieces)

    def _unpacked(self, pieces: dict[str, list[Any]]) -> Bundle:
        target = _place(self.manifest)
        with BundleWriter(target, force=True) as writer:
            for name, parts in pieces.items():
                path = writer.staging / name
                with writer.writing():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as file:
                        for part in parts:
                            file.write(ray.get(part).data)
            Bundle(writer.staging, self.manifest).check_files()
            bundle = writer.commit(self.manifest)
        drop_oldest(target.parent, KEPT, made=target)
        return bundle


def packed(bundle: Bundle, cluster: Cluster) -> Parcel:
    """The parcel of a bundle for a cluster, once every node has said that it has the same edge.

    Raises:
        InputError: a node has no edge, or another version, or does not answer.
    """
    lacking = [node for node, has in _survey(bundle, cluster) if not has]
    return Parcel(bundle.root.absolute(), bundle.manifest, _pieces(bundle) if lacking else None)


def _pieces(bundle: Bundle) -> dict[str, list[Any]]:
    return {name: list(map(ray.put, _read(bundle.file(name)))) for name in bundle.sizes}


def _read(path: Path) -> Iterator[Any]:
    """The bytes of a file, piece by piece: [PIECE] uint8."""
    with path.open("rb") as file:
        while part := file.read(PIECE):
            yield np.frombuffer(part, np.uint8)


def _survey(bundle: Bundle, cluster: Cluster) -> Iterator[tuple[Node, bool]]:
    """Whether each node has the bundle."""
    root = bundle.root.absolute()
    ask = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.number, soft=False)).remote(
            root, bundle.manifest
        )
        for node in cluster.nodes
    ]
    for node, answer in zip(cluster.nodes, asked, strict=True):
        try:
            version, has = ray.get(answer, timeout=SURVEY_S)
        except GetTimeoutError:
            raise InputError(f"The node {node.name} does not answer; see ray status.") from None
        except (NodeDiedError, TaskUnschedulableError):
            raise InputError(f"The node {node.name} is no longer there; give the command again.") from None
        except RayError as e:
            raise InputError(
                f"edge cannot be used on the node {node.name}: {_why(e)}; install edge-lm {__version__} there, with "
                "the extra cluster."
            ) from None
        if version != __version__:
            raise InputError(f"The node {node.name} has edge {version}, and this machine {__version__}; install one.")
        yield node, has


def _why(error: RayError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return on_one_line(Exception(lines[-1])) if lines else type(error).__name__


def look(root: Path, manifest: Manifest) -> tuple[str, bool]:
    """What a node says of itself: the version of its edge, and whether it has a bundle."""
    return __version__, _found(root, manifest) is not None


def _found(root: Path, manifest: Manifest) -> Bundle | None:
    """The bundle, at its path or in the cache folder of this node. Its files are checked when it is loaded."""
    kept = _place(manifest)
    for path in (root, kept):
        try:
            bundle = open_bundle(path)
        except EdgeError:
            continue
        if bundle.manifest == manifest:
            if path == kept:
                mark_used(kept)
            return bundle
    return None


def _place(manifest: Manifest) -> Path:
    digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
    return cache_dir() / "cluster" / f"{digest[:32]}.edge"


@contextmanager
def named() -> Iterator[None]:
    """Put the name of the node into errors of the block."""
    try:
        yield
    except EdgeError as e:
        raise BundleError(f"On the node {node_name()}: {e}") from None


def cause_of(error: BaseException) -> EdgeError | None:
    """The error of ours that an error of Ray's came of; None where it came of none."""
    seen: Sequence[BaseException | None] = [error]
    for _ in range(10):
        for each in seen:
            if isinstance(each, EdgeError) and not isinstance(each, RayError):
                return each
        seen = [found for each in seen for found in (getattr(each, "cause", None), getattr(each, "__cause__", None))]
    return None
