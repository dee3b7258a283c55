"""Operators of ours as one: the same bits as apart, in an order that a graph may have, and errors that are said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.tree import BLOCKED, Tree
from edge.runtime.kernels import graph as kernel_graph
from edge.runtime.kernels.chains import CHAIN, take_chains
from edge.runtime.kernels.library import DOMAIN, Kernels
from edge.runtime.load import open_engine
from edge.runtime.onnx_proto import ModelProto
from edge.runtime.providers import cpu

SOURCE, TARGET = np.arange(3, 20), np.arange(4, 13)


def graph_of(bundle: Bundle, role: str, kernels: Kernels) -> Any:
    found = kernel_graph.kernel_graph(bundle, bundle.path(bundle.manifest.graph(role).path), kernels)
    assert found is not None
    return found.model.graph


def decoded(engine: Engine, sizes: Iterator[int]) -> NDArray[np.float32]:
    """Logits of TARGET in steps of these sizes, after SOURCE where there is an encoder."""
    cross = None if engine.encoder is None else engine.encoder.encode_text(SOURCE)
    cache, found, at = engine.new_cache(64, cross), [], 0
    while at < len(TARGET):
        piece = TARGET[at : at + next(sizes)]
        found.append(engine.step(cache, piece, np.arange(len(piece))).copy())
        at += len(piece)
    return np.concatenate(found)


def always(size: int) -> Iterator[int]:
    while True:
        yield size


def branched(engine: Engine) -> NDArray[np.float32]:
    """Logits of three tokens that all follow the same two."""
    assert engine.encoder is not None
    cache = engine.new_cache(64, engine.encoder.encode_text(SOURCE))
    engine.step(cache, TARGET[:2])
    bias = np.full((3, 5), BLOCKED, np.float32)
    bias[:, :2] = 0
    np.fill_diagonal(bias[:, 2:], 0)
    return engine.step(cache, TARGET[2:5], np.arange(3), tree=Tree(np.full(3, 2), bias)).copy()


def test_a_step_is_one_node_beside_the_embedding(tiny_bundle: Bundle, t5: Bundle, kernels: Kernels) -> None:
    kinds = Counter(node.op_type for node in graph_of(t5, "decoder", kernels).node)
    assert kinds == {CHAIN: 2, "GatherBlockQuantized": 1, "Mul": 1}, "what its head reads is scaled, by onnxruntime"
    assert sum(node.op_type == CHAIN for node in graph_of(t5, "encoder", kernels).node) == 1
    graph = graph_of(tiny_bundle, "decoder", kernels)
    (chain,) = (node for node in graph.node if node.op_type == CHAIN)
    (count,) = (attribute.i for attribute in chain.attribute if attribute.name == "nodes")
    assert count >= 5 * tiny_bundle.manifest.dims.num_layers


def test_it_gives_the_bits_of_its_operators_apart(
    tiny_bundle: Bundle, t5: Bundle, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = [decoded(open_engine(bundle), always(3)) for bundle in (tiny_bundle, t5)] + [branched(open_engine(t5))]
    monkeypatch.setattr(kernel_graph, "take_chains", lambda graph: {})
    apart = [decoded(open_engine(bundle), always(3)) for bundle in (tiny_bundle, t5)] + [branched(open_engine(t5))]
    for mine, theirs in zip(together, apart, strict=True):
        np.testing.assert_array_equal(mine.view(np.uint32), theirs.view(np.uint32))


def test_a_t5_decoder_computes_what_onnxruntimes_kernels_do(
    t5: Bundle, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = decoded(open_engine(t5), always(4)), branched(open_engine(t5))
    monkeypatch.setattr(cpu, "find_kernels", lambda: None)
    theirs = decoded(open_engine(t5), always(4)), branched(open_engine(t5))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine != other).any(), "the kernels are others"
        np.testing.assert_allclose(mine, other, atol=0.01 * np.abs(other).max())  # a value may be rounded to the next


def test_how_many_tokens_a_step_of_a_t5_has_makes_no_difference(t5: Bundle, kernels: Kernels) -> None:
    engine = open_engine(t5)
    whole = decoded(engine, always(len(TARGET)))
    for size in (1, 2, 5):
        np.testing.assert_array_equal(decoded(engine, always(size)).view(np.uint32), whole.view(np.uint32))


def test_what_fails_in_a_chain_is_said_and_the_next_run_goes_on(t5: Bundle, kernels: Kernels) -> None:
    engine = open_engine(t5)
    before = decoded(engine, always(3))
    cache = engine.new_cache(64, engine.encoder.encode_text(SOURCE) if engine.encoder else None)
    engine.step(cache, TARGET[:1], tree=Tree(np.array([10**6]), np.zeros((1, 1), np.float32)))
    with pytest.raises(Exception, match="a distance that the table has not"):
        engine.step(cache, TARGET[:1], tree=Tree(np.array([0]), np.zeros((1, 2), np.float32)))
    np.testing.assert_array_equal(decoded(engine, always(3)), before)


def test_programs_threads_run_chains_side_by_side(tiny_bundle: Bundle, t5: Bundle, kernels: Kernels) -> None:
    """Each has caches of its own, and all of them one pool of threads."""
    wanted = [decoded(open_engine(bundle), always(2)) for bundle in (tiny_bundle, t5)]

    def again(which: int) -> bool:
        engine = open_engine((tiny_bundle, t5)[which])
        return all((decoded(engine, always(2)) == wanted[which]).all() for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(again, [0, 1, 0, 1]))


def node(op_type: str, inputs: str, outputs: str, domain: str = DOMAIN) -> dict[str, Any]:
    return {"op_type": op_type, "domain": domain, "input": inputs.split(), "output": outputs.split(), "name": outputs}


def chained(*nodes: dict[str, Any], outputs: str) -> list[Any]:
    """The nodes of a graph whose operators of ours were put together."""
    values = [{"name": name} for name in outputs.split()]
    model = ModelProto(graph={"node": nodes, "input": [{"name": "x"}], "output": values})
    take_chains(model.graph)
    made = {"x"}
    for each in model.graph.node:
        assert made.issuperset(filter(None, each.input)), "a node comes before what it reads"
        made.update(each.output)
    assert made.issuperset(outputs.split())
    return list(model.graph.node)


def test_others_between_operators_of_ours_part_them(kernels: Kernels) -> None:
    first, second = node("MatMulNBits", "x", "a"), node("MatMulNBits", "a", "b")
    third, fourth = node("MatMulNBits", "c", "d"), node("MatMulNBits", "d", "e")
    kinds = [each.op_type for each in chained(first, second, node("Gelu", "b", "c", ""), third, fourth, outputs="e")]
    assert kinds == [CHAIN, "Gelu", CHAIN]


def test_others_that_only_read_them_do_not(kernels: Kernels) -> None:
    first, second, third = (node("MatMulNBits", *pair) for pair in (("x", "a"), ("a", "b"), ("b", "c")))
    found = chained(first, node("Gelu", "a", "side", ""), second, third, outputs="c side")
    assert [each.op_type for each in found] == [CHAIN, "Gelu"]
    assert [*found[0].output] == ["a", "c"]


def test_what_a_later_operator_needs_of_others_comes_first(kernels: Kernels) -> None:
    first, second = node("MatMulNBits", "x", "a"), node("SkipSimplifiedLayerNormalization", "a more", "b")
    found = chained(first, node("Gelu", "x", "more", ""), second, outputs="b")
    assert [each.op_type for each in found] == ["Gelu", CHAIN]


def test_one_operator_alone_stays_as_it_is(kernels: Kernels) -> None:
    found = chained(node("Gelu", "x", "a", ""), node("MatMulNBits", "a", "b"), outputs="b")
    assert [each.op_type for each in found] == ["Gelu", "MatMulNBits"]
