"""Chains: operators of our kernels that follow each other, joined into one. Threads start once for all of them, and
onnxruntime does not handle the values between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from edge.runtime.kernels.largest import LARGEST
from edge.runtime.kernels.library import DOMAIN, INT8_DOMAIN
from edge.runtime.kernels.nodes import ATTENTION, FLOAT, FULL, INT64, LIKELIEST, NORM, POSITION_BIAS, PRODUCT
from edge.runtime.kernels.units import EITHER, LIMITS, PART, RAN, ROUTE, UNIT
from edge.runtime.kernels.wires import INT, NUMBER, numbers, reads

CHAIN, GATHER = "Chain", "Gather"
# That chains are made of, as the library numbers them.
OPS = (PRODUCT, ATTENTION, NORM, GATHER, FULL, POSITION_BIAS, LIKELIEST, LARGEST)
NOTHING = -1  # in place of a value that a node does without


def take_chains(graph: Any) -> dict[str, list[str]]:
    """Join operators of ours into one node wherever no operator of onnxruntime's is between them. Returns the names of
    the joined nodes by the name of the new one."""
    whole_numbers = {value.name for value in graph.input if value.type.tensor_type.elem_type == INT64}
    groups = list[list[Any]]()
    chain, made, downstream = list[Any](), set[str](), set[str]()  # downstream: made of what it gives
    for node in graph.node:
        read = set(reads(node))
        ours = node.domain in (DOMAIN, INT8_DOMAIN) and node.op_type in (*OPS, PART, EITHER)
        if not ours and not (_picks_rows(node, made) and node.input[1] in whole_numbers):
            groups.append([node])
            if read & (made | downstream):
                downstream.update(node.output)
            continue
        if not chain or read & downstream:
            chain, made, downstream = [], set(), set()
            groups.append(chain)
        chain.append(node)
        made.update(node.output)
    typed = {value.name for values in (graph.output, graph.value_info) for value in values}
    outside = {output.name for output in graph.output}
    limited = any(value.name == LIMITS for value in graph.input)
    readers = Counter(name for node in graph.node for name in {*reads(node)})
    ordered, inside = list[Any](), dict[str, list[str]]()
    for group in _in_order(groups):
        if len(group) < 2:
            ordered += group
            continue
        here = Counter(name for node in group for name in {*reads(node)})
        made_here = {name for node in group for name in node.output}
        wanted = {name for name in made_here if name in outside or readers[name] > here[name]}
        node = _as_one(group, wanted, limited=limited)
        ordered.append(node)
        inside[node.name] = [each.name for each in group]
        for name in node.output:
            if name not in typed:  # then it is no cache
                graph.value_info.add(name=name).type.tensor_type.elem_type = FLOAT
    del graph.node[:]
    graph.node.extend(ordered)
    return inside


def are_one(graph: Any) -> bool:
    """True if all nodes that units leave out are in one chain. Only then can it leave them out."""
    chains = [node for node in graph.node if node.op_type == CHAIN and ROUTE in node.input]
    others = (node for node in graph.node if node.op_type in (PART, EITHER) or UNIT in numbers(node))
    return len(chains) == 1 and next(others, None) is None


def _picks_rows(node: Any, made: set[str]) -> bool:
    """True if a node is onnxruntime's Gather of some rows of a value in `made`."""
    if (node.op_type, node.domain) != (GATHER, "") or node.input[0] not in made:
        return False
    return [(attribute.name, attribute.i) for attribute in node.attribute] == [("axis", 1)]


def _in_order(groups: list[list[Any]]) -> Iterator[list[Any]]:
    """The groups, each after those that make what it reads; else as they are: as a walk through those that are left, in
    which each goes as soon as nothing it reads is missing, walk after walk. ValueError where they are in a circle."""
    makers = {name: place for place, group in enumerate(groups) for node in group for name in node.output if name}
    missing, needed_by = list[int](), defaultdict[int, list[int]](list)
    for place, group in enumerate(groups):
        makes = {makers[name] for node in group for name in reads(node) if name in makers} - {place}
        missing.append(len(makes))
        for maker in makes:
            needed_by[maker].append(place)
    ready = [(0, place) for place, count in enumerate(missing) if not count]  # in which walk, and where in it
    for _ in groups:
        if not ready:
            raise ValueError("operators read what is made of what they give")
        walk, place = heappop(ready)
        yield groups[place]
        for reader in needed_by[place]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (walk + (reader < place), reader))


def _as_one(nodes: list[Any], read: set[str], *, limited: bool) -> Any:
    """One node that does what these do. read: what others need of them. limited: whether units have limits."""
    parts, passes = ([node for node in nodes if node.op_type == kind] for kind in (PART, EITHER))
    computing = [node for node in nodes if node.op_type not in (PART, EITHER)]
    # What stands behind a unit is what the unit makes, or what it was handed then; the first one always runs.
    handed = {node.output[0]: node.input[0] for node in passes}
    passes = [node for node in passes if UNIT in numbers(node)]
    made = [name for node in (*parts, *computing) for name in node.output if name]
    inside = {*made, *handed}
    taken = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in inside))
    units = [number for node in nodes if (number := numbers(node).get(UNIT)) is not None]
    taken += [ROUTE, LIMITS][: 1 + limited] if units else []
    given = [name for name in (*made, *handed) if name in read]
    outside = {handed.get(name, name) for name in given}
    given += [RAN] if units and limited else []
    values = {name: place for place, name in enumerate([*taken, *(handed.get(name, name) for name in given)])}
    for name in made:
        if name not in outside:
            values[name] = len(values)
    values |= {name: values[unit_makes] for name, unit_makes in handed.items()}
    one = type(nodes[0])(name=f"{nodes[0].name}.{CHAIN}", op_type=CHAIN, domain=DOMAIN, input=taken, output=given)

    def note(name: str, number: int) -> None:
        one.attribute.add(name=name, i=number, type=INT)

    note("taken", len(taken))
    note("given", len(given))
    note("nodes", len(computing))
    for place, node in enumerate(computing):
        note(f"{place}.op", OPS.index(node.op_type))
        for kind, names in (("input", node.input), ("output", node.output)):
            note(f"{place}.{kind}s", len(names))
            for k, name in enumerate(names):
                note(f"{place}.{kind}.{k}", values[name] if name else NOTHING)
        for attribute in node.attribute:
            if attribute.type == NUMBER:
                one.attribute.add(name=f"{place}.{attribute.name}", f=attribute.f, type=NUMBER)
            elif attribute.type == INT:
                note(f"{place}.{attribute.name}", attribute.i)
    if units:
        note("route", values[ROUTE])
        if limited:
            note("limits", values[LIMITS])
            note("ran", given.index(RAN))
        note("units", max(units) + 2)  # the last one always runs, as the first does
        note("parts", len(parts))
        note("passes", len(passes))
    for place, node in enumerate(parts):
        note(f"part.{place}.of", values[node.input[0]])
        for name, number in numbers(node).items():
            note(f"part.{place}.{name}", number)
    for place, node in enumerate(passes):
        note(f"pass.{place}.unit", numbers(node)[UNIT])
        for name, value in zip(("made", "read"), node.input, strict=True):
            note(f"pass.{place}.{name}", values[value])
    return one
