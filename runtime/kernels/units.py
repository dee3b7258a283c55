"""A decoder's graph in units. An input says which units run in a step, and our kernels leave the others out.

Each unit counts the rows of the KV cache by itself, because each may have other tokens: the inputs with these counts
have a row for every unit, called `units.seqlens_k` and so on. `units.run` says which units run: [U, 1] for a whole
step, or [U, R] for each of its rows, which are R sequences of a token, or R tokens of one. `units.limits`, of the same
shape, lets the step itself decide, token by token, where the units are `limited`. A unit with a limit of 1 or less
compares each row of the stream after it with the same row before it: where their cosine is at least the limit, the
later units with such a limit are left out for this row. The output `units.ran` [U, R] says which units ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.manifest import Segment
from edge.runtime.kernels.library import DOMAIN
from edge.runtime.kernels.nodes import FLOAT
from edge.runtime.kernels.wires import INT, reads

PART, EITHER = "Part", "Either"
UNIT = "unit"  # the attribute of a node: the unit without which it is left out
BOOL = 9  # TensorProto.DataType
# Inputs that each unit has by itself, and whether a unit's row of all of them keeps the first axis, as one of 1.
OWN = {"seqlens_k": 0, "total_sequence_length": 0, "key_positions": 0, "attention_bias": 1}
STREAM = ("x", "added")  # the parts of the residual stream between two units


def cut_names(layer: int, part: str) -> tuple[str, str]:
    """Return the names that graphs give the residual stream after a layer's "attention" or "feed_forward": x, and the
    term that is added to it."""
    return f"layer.{layer}.{part}.x", f"layer.{layer}.{part}.added"


def of_all(name: str) -> str:
    """Name of the input that has a row for each unit."""
    return f"units.{name}"


ROUTE, LIMITS, RAN = of_all("run"), of_all("limits"), of_all("ran")


@dataclass(frozen=True)
class Units:
    """The units of a graph. The first and the last one always run. watched: units whose input, the residual stream, is
    an output of the graph, `at.U.x` and `at.U.added`. limited: whether the graph reads limits."""

    segments: tuple[Segment, ...]
    watched: tuple[int, ...] = ()
    limited: bool = False


def take_units(graph: Any, into: Units) -> None:
    """Divide a decoder's graph into units, whose keys and values are those of their layers.

    Raises:
        ValueError: the graph or the units are not as exporters write them.
    """
    units, watched = into.segments, into.watched
    kind, made = type(graph.node[0]), {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    streams = [_stream(unit, made) for unit in units[:-1]]
    if {len(stream) for stream in streams} not in ({1}, {2}):
        raise ValueError("the stream between the units is not named")
    if any(len(unit.layers) != 1 for unit in units if unit.part != "layers"):
        raise ValueError("halves are not of one layer")
    inside = defaultdict[int, list[int]](list)  # the units of each node
    for number, places in enumerate(_inside(graph, made, units, streams)):
        for place in places:
            inside[place].append(number)
    for name, place in made.items():
        if (name.startswith("present.") or any(name in stream for stream in streams)) and len(inside[place]) != 1:
            raise ValueError(f"{name} is not made in one unit")
    counts = {value.name for value in graph.input if value.name in OWN}  # what each unit has by itself
    asked = dict[tuple[str, int], None]()
    last = len(units) - 1
    # What reads the stream behind a unit reads this, and the unit itself what it made.
    behind = {
        name: (number, f"at.{number + 1}.{part}" if number + 1 in watched else f"{name}.after" if number else name)
        for number, stream in enumerate(streams)
        for part, name in zip(STREAM, stream, strict=False)
    }
    nodes = list[Any]()
    for place, node in enumerate(graph.node):
        numbers = inside[place]
        counted = any(name in counts for name in reads(node))
        if len(numbers) != 1 and not counted:  # one for all
            nodes.append(node)
            continue
        several = len(numbers) > 1
        for number in numbers:
            copy = kind()
            copy.CopyFrom(node)
            for i, name in enumerate(node.input):
                maker, passed = behind.get(name, (number, name))
                if name in counts:
                    copy.input[i] = _of_unit(name, number)
                    if name in OWN:
                        asked[name, number] = None
                elif maker < number:
                    copy.input[i] = passed
            if several:
                counts.update(name for name in node.output if name)
                copy.name = _of_unit(node.name, number)
                for i, name in enumerate(node.output):
                    copy.output[i] = _of_unit(name, number) if name else ""
            if 0 < number < last:
                copy.attribute.add(name=UNIT, i=number, type=INT)
            nodes.append(copy)
        for name in node.output:
            if name in behind and behind[name][1] != name:
                nodes.append(_either(name, behind, streams, kind))
    parts = [_part(name, number, kind) for name, number in asked]
    stored = (value.name for values in (graph.input, graph.initializer) for value in values)
    _check([*parts, *nodes], [value.name for value in graph.output], {*made, *stored})
    if into.limited and any(len(stream) != 2 for stream in streams):
        raise ValueError("units read no stream to which something is added")
    _replace(graph, [*parts, *nodes], {name for name, _ in asked}, len(units), limited=into.limited)
    for _, passed in behind.values():
        if passed.startswith("at."):
            graph.output.add(name=passed).type.tensor_type.elem_type = FLOAT


def _stream(unit: Segment, made: Mapping[str, int]) -> list[str]:
    """The values of the stream behind a unit, as exporters call them."""
    half = "attention" if unit.part == "attention" else "feed_forward"
    return [name for name in cut_names(unit.layers[-1], half) if name in made]


def _inside(
    graph: Any, made: Mapping[str, int], units: Sequence[Segment], streams: Sequence[Sequence[str]]
) -> Iterator[set[int]]:
    """The places of the nodes of each unit: those that make what it gives of what it reads."""
    results = [value.name for value in graph.output if not value.name.startswith("present.")]
    for number, unit in enumerate(units):
        wanted = [*(results if number == len(units) - 1 else streams[number])]
        layers = [] if unit.part == "feed_forward" else unit.layers
        wanted += [f"present.{i}.{part}" for i in layers for part in ("key", "value")]
        stops, found = {*streams[number - 1]} if number else set[str](), set[int]()
        while wanted:
            name = wanted.pop()
            place = None if name in stops else made.get(name)
            if place is not None and place not in found:
                found.add(place)
                wanted += reads(graph.node[place])
        yield found


def _of_unit(name: str, number: int) -> str:
    return f"{name}.{number}"


def _either(name: str, behind: Mapping[str, tuple[int, str]], streams: Sequence[Sequence[str]], kind: Any) -> Any:
    """The node that makes what stands behind a unit: what that one made, or what it read where it does not run."""
    number, passed = behind[name]
    read = behind[streams[number - 1][streams[number].index(name)]][1] if number else name
    node = kind(name=f"{passed}.{EITHER}", op_type=EITHER, domain=DOMAIN, input=[name, read], output=[passed])
    if number:
        node.attribute.add(name=UNIT, i=number, type=INT)
    return node


def _part(name: str, number: int, kind: Any) -> Any:
    """The node that gives a unit its row of an input."""
    own = _of_unit(name, number)
    node = kind(name=f"{own}.{PART}", op_type=PART, domain=DOMAIN, input=[of_all(name)], output=[own])
    node.attribute.add(name="at", i=number, type=INT)
    node.attribute.add(name="keep", i=OWN[name], type=INT)
    return node


def _check(nodes: Sequence[Any], wanted: Sequence[str], before: Collection[str]) -> None:
    """ValueError where the nodes do not make all outputs once, under names that had no other meaning `before`."""
    names = [name for node in nodes for name in node.output if name]
    added = [name for node in nodes if node.op_type in (PART, EITHER) for name in node.output]
    if len(set(names)) != len(names) or not set(wanted) <= {*names} or not set(added).isdisjoint(before):
        raise ValueError("its values have other names")


def _replace(graph: Any, nodes: Sequence[Any], own: Collection[str], units: int, *, limited: bool) -> None:
    """Let these be the nodes of a graph, and these of its inputs have a row for each unit."""
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.input:
        if value.name in own:
            value.name = of_all(value.name)
            value.type.tensor_type.ClearField("shape")
    for name, kind in ((ROUTE, BOOL), *(((LIMITS, FLOAT),) if limited else ())):
        said = graph.input.add(name=name).type.tensor_type
        said.elem_type = kind
        said.shape.dim.add().dim_value = units
        said.shape.dim.add().dim_param = "rows"
    if limited:
        graph.output.add(name=RAN).type.tensor_type.elem_type = BOOL
