"""Files of prompts on a cluster: the answers of one machine, nothing lost, nothing twice."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import ray_nodes
from texts import SENTENCES

from edge.bundle import Bundle
from edge.cli.main import main
from edge.cli.run.answer_output import AnswerOutput
from edge.errors import BundleError, InputError
from edge.runtime.load_options import LoadOptions

OPTIONS = ["--max-tokens", "12", "--temperature", "0.8", "--seed", "3"]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="module")
def nodes(homes: Path) -> Iterator[Any]:
    with ray_nodes(homes) as cluster:
        yield cluster


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join([*SENTENCES[:5], "", *(f"Say {i}." for i in range(12))]) + "\n")
    return file


def test_a_file_has_the_answers_of_one_machine_and_a_job_that_was_interrupted_does_only_what_is_missing(
    nodes: Any,
    pristine_tiny_bundle: Bundle,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It begins on one machine, is interrupted on the cluster, and goes on there."""
    alone, out = tmp_path / "alone.txt", tmp_path / "out.txt"
    command = ["run", str(pristine_tiny_bundle.root), "--lines", str(prompts), *OPTIONS, "--output"]
    assert main([*command, str(alone)]) == 0
    assert len(set(alone.read_text().splitlines())) > 9  # they differ, so that an order would show
    add, added = AnswerOutput.add, list[int]()

    def stop(self: AnswerOutput, place: int, shown: str) -> None:
        add(self, place, shown)
        added.append(place)
        if len(added) in (3, 9):
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswerOutput, "add", stop)
    for cluster in ([], ["--cluster", nodes.address]):
        assert main([*command, str(out), *cluster]) == 130
    assert "Stopped with 9 of 17 lines done" in capsys.readouterr().err
    assert main([*command, str(out), "--cluster", nodes.address]) == 0
    assert "9 lines were done already" in capsys.readouterr().err
    assert sorted(added) == [*range(5), *range(6, 18)]
    assert out.read_bytes() == alone.read_bytes() and not out.with_name("out.txt.part").exists()


def test_nothing_is_lost_and_nothing_comes_twice_where_a_node_dies(
    nodes: Any, pristine_tiny_bundle: Bundle, tmp_path: Path
) -> None:
    from cluster_work import capitals

    from edge.cluster.address import joined
    from edge.cluster.lines import BLOCK, Job

    # Blocks enough that some are left for the dying node, however late it comes.
    lines, found, killed = [(i, f"line {i}") for i in range(12 * BLOCK)], list[tuple[int, str]](), ""
    dying = nodes.add_node(num_cpus=1, object_store_memory=100_000_000)
    with joined(nodes.address) as cluster:
        assert len(cluster.nodes) == 4 and cluster.threads == 1 and cluster.models == 4
        for place, answer in Job(cluster, pristine_tiny_bundle, LoadOptions()).answers(
            lines, partial(capitals, log=tmp_path, dying=dying.node_id)
        ):
            found.append((place, answer["shown"]))
            if not killed and (tmp_path / dying.node_id).exists():
                killed = dying.node_id
                nodes.remove_node(dying, allow_graceful=False)
    begun = {file.name: [*map(int, file.read_text().split())] for file in tmp_path.iterdir()}
    assert killed and len(begun) > 1
    assert sorted(found) == [(i, f"LINE {i}") for i, _ in lines]
    again = [place for places in begun.values() for place in places]
    assert len(again) > len(set(again)), "what the node had begun was done again"


def test_an_error_of_the_model_names_the_node(nodes: Any, pristine_tiny_bundle: Bundle) -> None:
    from cluster_work import refusing

    from edge.cluster.address import joined
    from edge.cluster.lines import Job

    with joined(nodes.address) as cluster:
        answers = Job(cluster, pristine_tiny_bundle, LoadOptions()).answers([(0, "one")], refusing)
        with pytest.raises(BundleError, match=r"On the node .+: The line one is refused\."):
            next(answers)


def test_a_node_that_lacks_the_bundle_gets_it_once_and_whole(
    nodes: Any, homes: Path, pristine_tiny_bundle: Bundle
) -> None:
    import ray
    from cluster_work import where
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from edge.cluster import parcel
    from edge.cluster.address import joined

    def opened(sent: parcel.Parcel) -> Bundle:
        strategy = NodeAffinitySchedulingStrategy(nodes.of_home["1"].node_id, soft=False)
        found: Bundle = ray.get(ray.remote(num_cpus=0)(where).options(scheduling_strategy=strategy).remote(sent))
        return found

    with joined(nodes.address) as cluster:
        assert parcel.packed(pristine_tiny_bundle, cluster).pieces is None, "all nodes see the folder"
        pieces = parcel._pieces(pristine_tiny_bundle)
        elsewhere = Path("/nowhere/tiny.edge")
        damaged = pieces | {"tokenizer.json": [*pieces["tokenizer.json"], *pieces["tokenizer.json"]]}
        with pytest.raises(BundleError, match=r"tokenizer\.json"):
            opened(parcel.Parcel(elsewhere, pristine_tiny_bundle.manifest, damaged))
        assert list((homes / "1" / "cluster").iterdir()) == []
        with pytest.raises(BundleError, match="came after the others had been asked"):
            opened(parcel.Parcel(elsewhere, pristine_tiny_bundle.manifest, None))
        found = opened(parcel.Parcel(elsewhere, pristine_tiny_bundle.manifest, pieces))
        found.check_files()
        assert found.root.parent == homes / "1" / "cluster"
        there = opened(parcel.Parcel(elsewhere, pristine_tiny_bundle.manifest, None))
        assert there.root == found.root and len(list(found.root.parent.iterdir())) == 1


def test_another_version_on_a_node_is_refused(
    nodes: Any, pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge.cluster import parcel
    from edge.cluster.address import joined

    monkeypatch.setattr(parcel, "__version__", "9.9")
    with joined(nodes.address) as cluster, pytest.raises(InputError, match=r"has edge \S+, and this machine 9\.9"):
        parcel.packed(pristine_tiny_bundle, cluster)


def test_a_node_that_died_before_ray_noticed_is_not_told_to_install_edge(
    nodes: Any, pristine_tiny_bundle: Bundle
) -> None:
    from edge.cluster import parcel
    from edge.cluster.address import joined

    with joined(nodes.address) as cluster:
        dead = replace(cluster.nodes[0], number="ab" * 28, name="gone (10.0.0.1)")
        with pytest.raises(InputError, match=r"The node gone \(10\.0\.0\.1\) is no longer there"):
            parcel.packed(pristine_tiny_bundle, replace(cluster, nodes=[dead]))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("nowhere", "is none of auto"),
        ("localhost:x", "is none of auto"),
        ("ray://localhost:10001", "an address of Ray's client"),
        ("127.0.0.1:1", "No cluster answers at 127.0.0.1:1"),
    ],
)
def test_an_address_that_leads_to_no_cluster_is_said(address: str, sentence: str) -> None:
    pytest.importorskip("ray", reason="needs the extra cluster")
    from edge.cluster.address import joined

    with pytest.raises(InputError, match=re.escape(sentence)), joined(address):
        pass


def test_a_server_that_is_no_cluster_is_told_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra cluster")
    from edge.cluster import address

    monkeypatch.setattr(address, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=f"No cluster answers at {at}"), address.joined(at):
            pass


def test_what_asks_after_a_cluster_was_left_starts_no_other() -> None:
    """As a thread of Ray's may that outlives it."""
    pytest.importorskip("ray", reason="needs the extra cluster")
    code = (
        "from edge.cluster.address import joined\n"
        "import ray\n"
        "with joined('local'): ray.put(1)\n"
        "try: ray.put(1)\n"
        "except ray.exceptions.RaySystemError: print('not', ray.is_initialized())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert found.stdout == "not False\n", found.stderr


def test_more_threads_than_a_node_has_are_refused(nodes: Any) -> None:
    from edge.cluster.address import joined

    with pytest.raises(InputError, match="No node of the cluster has 5 processors"), joined(nodes.address, 5):
        pass


def test_answers_come_in_the_order_of_their_block() -> None:
    """Ray counts them when a block is done again."""
    pytest.importorskip("ray", reason="needs the extra cluster")
    from edge.cli.run.line_answers import Answer
    from edge.cluster.lines import in_order

    found = [(2, Answer("c")), (0, Answer("a")), (1, Answer("b"))]
    assert [place for place, _ in in_order([0, 1, 2], iter(found))] == [0, 1, 2]


def test_without_ray_the_extra_is_named(
    pristine_tiny_bundle: Bundle, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main(["run", str(pristine_tiny_bundle.root), "--lines", str(prompts), "--cluster", "local"]) == 2
    said = capsys.readouterr().err
    assert "--cluster needs ray" in said and "[cluster]" in said
