"""Layers with states, which can be copied and put back and never cut: by a stand-in whose one layer sums its inputs and
whose other one attends to its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.manifest import KVLayer, KVLayout, State
from edge.runtime.choose import choose
from edge.runtime.decode.beam import Hypothesis, beam_search, new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import Drafts, generate
from edge.runtime.decode.sampling import greedy
from edge.runtime.engine.binding import LAST_ROW
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.protocol import Graphs
from edge.runtime.engine.memory_of_text import TextMemory
from edge.runtime.engine.slots import Slots
from edge.runtime.engine.states import LASTING, States
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import PLAIN, Variant
from edge.runtime.engine.want import LOGITS
from edge.runtime.load_options import LoadOptions
from edge.runtime.model import Model
from edge.runtime.providers import open_provider
from edge.runtime.text.tokenizer import Text

WIDTH = 8
CPU = open_provider("cpu")


class Summing:
    """Graphs of two layers: the first keeps the sum of all inputs, the second a row for each."""

    long_rope = encoder = routes = target = None
    takes_trees = True
    chooses = ranks = remote = False
    chunk, side_by_side = 128, 8
    variant = PLAIN
    kv = KVLayout("float32", [KVLayer(1, 1)])  # of the second layer
    session: Any = SimpleNamespace(independent=True, inputs=frozenset(), outputs=frozenset())

    def __init__(self, bundle: Bundle, context: int = 400) -> None:
        self.context, vocab = context, bundle.manifest.dims.vocab_size
        rng = np.random.default_rng(7)
        self._inputs = rng.standard_normal((vocab, WIDTH)).astype(np.float32)
        self._head = rng.standard_normal((WIDTH, vocab)).astype(np.float32)
        self.ran: list[int] = []  # tokens of each step
        self.batch: Any = SimpleNamespace(run=self._all)

    @property
    def sessions(self) -> dict[str, Any]:
        return {}

    def path(self, name: str) -> Path:
        raise KeyError(name)

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> KVCache:
        return KVCache(CPU, self.kv, rows, states=States(CPU, {"past.0.sum": (WIDTH,)}))

    def run(self, cache: KVCache, tokens: np.ndarray, rows: np.ndarray, tree: Tree | None, want: object) -> np.ndarray:
        states, start = cache.states, cache.length
        assert states is not None and want == LOGITS
        assert tree is not None or states.at == start, "both layers have the same tokens"
        total, kept = states.part()["past.0.sum"].array, cache.buffers[0][0][0, 0, :, 0]
        assert len(total) == (1 if tree is None else len(tokens)), "each branch has a state"
        made = []
        kept[start : start + len(tokens)] = tokens
        cache.length += len(tokens)
        for i, token in enumerate(tokens):
            state = total[0 if tree is None else i]
            state += self._inputs[token]
            seen = kept[: start + i + 1] if tree is None else kept[: cache.length][tree.bias[i] == 0]
            made.append(np.cos(state + np.float32(seen.sum())) @ self._head)
        states.at += len(tokens) if tree is None else 1
        self.ran.append(len(tokens))
        return np.stack(made)[rows]

    def _all(self, slots: Slots, tokens: np.ndarray, want: object) -> np.ndarray:
        """Each by itself, in the memory of its slot."""
        rows = [self.run(cache, tokens[i : i + 1], LAST_ROW, None, want) for i, cache in enumerate(slots.caches)]
        return np.concatenate(rows)


class Guesses(Drafts):
    """Drafts that are right up to a token that differs from draft to draft."""

    def __init__(self, truth: Sequence[int], right: Sequence[int], size: int = 4) -> None:
        self._truth, self._right, self._size = truth, [*right], size
        self._said = 1

    def propose(self) -> Draft:
        if not self._right:
            return NOTHING
        right, ahead = self._right.pop(0), [*self._truth[self._said : self._said + self._size]]
        ahead[right:] = [(token + 1) % 40 for token in ahead[right:]]
        return Draft(ahead, [0] * len(ahead))

    def accept(self, tokens: np.ndarray, rows: Any, sampled: Sequence[int]) -> None:
        self._said += len(sampled)


@pytest.fixture
def graphs(tiny_bundle: Bundle) -> Summing:
    return Summing(tiny_bundle)


@pytest.fixture
def engine(tiny_bundle: Bundle, graphs: Summing) -> Engine:
    return Engine(tiny_bundle, provider=CPU, graphs=graphs)


def answered(engine: Engine, drafts: Drafts | None = None, count: int = 30) -> tuple[list[int], KVCache]:
    cache, prompt = engine.new_cache(), np.array([5, 9, 31])
    more = {} if drafts is None else {"drafts": drafts}
    tokens = generate(engine, cache, prompt, greedy, chunk=2, interrupted=lambda: False, **more)
    return [next(tokens) for _ in range(count)], cache


def test_the_stand_in_and_both_kinds_keep_the_protocols(engine: Engine, graphs: Summing) -> None:
    given: Graphs = graphs
    cache = engine.new_cache()
    kinds: list[TextMemory] = [cache, *([] if cache.states is None else [cache.states])]
    assert given.context == engine.context and len(kinds) == 2
    assert kinds[1].nbytes == WIDTH * 4 and kinds[0].nbytes == WIDTH * 4 + 2 * 4 * cache.rows


@pytest.mark.parametrize("right", [[0], [2], [4], [0, 1, 2, 3, 4, 0, 4, 1]], ids=str)
def test_a_rejected_draft_is_rolled_back(engine: Engine, right: list[int]) -> None:
    plain, _ = answered(engine)
    drafted, cache = answered(engine, Guesses(plain, right))
    assert drafted == plain
    assert cache.states is not None and cache.states.at >= cache.length


def test_only_what_was_accepted_runs_again(engine: Engine, graphs: Summing) -> None:
    plain, _ = answered(engine)
    for right, expected in ((4, [2, 1, 5, 1]), (2, [2, 1, 5, 3, 1]), (0, [2, 1, 5, 1, 1])):
        graphs.ran.clear()
        answered(engine, Guesses(plain, [right]), count=1 + right + 1 + 1)
        assert graphs.ran == expected


def test_a_text_goes_back_to_the_last_place_that_was_marked(engine: Engine) -> None:
    cache, text = engine.new_cache(), np.arange(3, 33)
    whole = engine.step(cache, text, np.arange(len(text))).copy()
    assert cache.truncate(20) == 0, "no place was marked"
    for start in range(0, 20, 5):
        cache.mark(lasting=True)
        engine.step(cache, text[start : start + 5])
    cache.mark()
    engine.step(cache, text[20:])
    for asked, left in ((25, 20), (19, 15), (15, 15), (4, 0)):
        assert cache.truncate(asked) == left == cache.length
        again = engine.step(cache, text[left:], np.arange(len(text) - left))
        np.testing.assert_array_equal(again, whole[left:])


def test_few_places_are_remembered(engine: Engine) -> None:
    cache = engine.new_cache()
    for token in range(LASTING + 3):
        cache.mark(lasting=True)
        engine.step(cache, np.array([token]))
    assert cache.truncate(2) == 0
    cache.reset()
    assert cache.states is not None and cache.states.at == cache.length == 0 and cache.truncate(0) == 0


def test_a_snapshot_brings_back_rows_and_states(engine: Engine) -> None:
    cache = engine.new_cache()
    engine.step(cache, np.arange(3, 9))
    kept, wanted = cache.snapshot(), engine.step(cache, np.array([20, 21])).copy()
    engine.step(cache, np.array([30]))
    cache.restore(kept)
    np.testing.assert_array_equal(engine.step(cache, np.array([20, 21])), wanted)


def test_branches_are_continued_by_copies_of_their_states() -> None:
    """As a beam search does it: each branch takes its parent's."""
    states = States(CPU, {"sum": (2,)})
    states.memory["sum"].array[:] = [[1, 1]]
    assert states.widen(3) and not states.widen(2)
    states.copy_rows([0, 0, 0])
    states.memory["sum"].array[:] += [[0, 0], [1, 1], [2, 2]]
    states.copy_rows([2, 0])
    assert states.part()["sum"].array.tolist() == [[3, 3], [1, 1]]
    states.reset()
    assert states.part()["sum"].array.tolist() == [[0, 0]]


class FromScratch:
    """Branches, each of which runs its text from the beginning in every step."""

    def __init__(self, engine: Engine, prompt: list[int]) -> None:
        self._engine, self._texts = engine, [prompt]

    def step(self, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        self._texts = [[*self._texts[p], token] for p, token in zip(parents, tokens.tolist(), strict=True)]
        made = [self._engine.step(self._engine.new_cache(), np.array(text)) for text in self._texts]
        return np.concatenate(made)


@pytest.mark.parametrize(("beams", "groups"), [(2, 1), (5, 1), (6, 3)])
def test_beams_are_those_of_texts_that_are_run_from_scratch(
    engine: Engine, beams: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BeamOptions(beams=beams, n_best=beams, max_tokens=40, groups=groups, diversity=0.5 if groups > 1 else 0)
    prompt = [5, 9, 31]

    def found() -> list[Hypothesis]:
        return beam_search(engine, new_cache(engine, len(prompt), options), prompt, options, eos={7})

    cached = found()
    monkeypatch.setattr("edge.runtime.decode.beam.Branches", lambda run, cache, width: FromScratch(engine, prompt))
    fresh = found()
    assert [each.token_ids for each in cached] == [each.token_ids for each in fresh]
    assert len({tuple(each.token_ids) for each in cached}) == beams
    assert np.allclose([each.score for each in cached], [each.score for each in fresh], atol=1e-5)


@pytest.mark.parametrize("width", [2, 3, 8])
def test_answers_of_a_batch_are_those_of_each_alone(tiny_bundle: Bundle, width: int) -> None:
    """Of several lengths: the last one moves to the slot that becomes free, and the next one begins in one that an
    earlier text had."""
    model = Model(tiny_bundle, Engine(tiny_bundle, provider=CPU, graphs=Summing(tiny_bundle)), Text(tiny_bundle))
    prompts = [f"The moon {i}" for i in range(7)]
    options = [GenerateOptions(max_tokens=4 + 5 * i % 7, temperature=0, circles="allow") for i in range(7)]
    alone = [model.generate(prompt, each).token_ids for prompt, each in zip(prompts, options, strict=True)]
    assert len(set(map(tuple, alone))) == 7
    assert [each.token_ids for each in model.generate_all(prompts, options, width=width)] == alone


def test_a_text_that_was_begun_takes_its_states_to_a_slot(engine: Engine) -> None:
    slots, caches = engine.new_slots(40, 3), [engine.new_cache(40) for _ in range(3)]
    for i, cache in enumerate(caches):
        engine.step(cache, np.arange(3 + i, 9))
        slots.join(cache)
    slots.leave(caches[0])
    together = engine.step_all(slots, np.array([20, 21]))
    assert slots.caches == [caches[2], caches[1]]
    for row, begun, token in zip(together, (5, 4), (20, 21), strict=True):
        alone = engine.new_cache()
        engine.step(alone, np.arange(begun, 9))
        np.testing.assert_array_equal(engine.step(alone, np.array([token]))[0], row)


def test_an_edited_turn_of_a_chat_and_one_that_nobody_heard_to_its_end(tiny_bundle: Bundle) -> None:
    def model(graphs: Summing) -> Model:
        return Model(tiny_bundle, Engine(tiny_bundle, provider=CPU, graphs=graphs), Text(tiny_bundle), speculate="off")

    graphs = Summing(tiny_bundle)
    chat, options = model(graphs).chat(), GenerateOptions(max_tokens=8, temperature=0)
    first = chat.generate("The moon", options)
    chat.generate("The sun", options)
    chat.undo()
    graphs.ran.clear()
    edited = chat.generate("A star", options)
    assert sum(graphs.ran) < edited.prompt_tokens, "what was said before is not read again from its beginning"

    fresh = model(Summing(tiny_bundle)).chat()
    assert fresh.generate("The moon", options).token_ids == first.token_ids
    assert fresh.generate("A star", options).token_ids == edited.token_ids

    for each in (chat, fresh):
        pieces = each.stream("More", options)
        assert len([next(pieces) for _ in range(3)]) == 3
        pieces.close()
    fresh._drop()  # it reads everything again
    assert fresh.generate("On", options).token_ids == chat.generate("On", options).token_ids


@pytest.fixture
def summing_bundle(tiny_bundle: Bundle) -> Bundle:
    """The tiny bundle with a sum of all embeddings before its first layer, which is a state of the graph."""
    manifest = tiny_bundle.manifest
    path = tiny_bundle.path(manifest.graph("decoder").path)
    model = onnx.load(path, load_external_data=False)
    graph, hidden = model.graph, manifest.dims.hidden_size
    place, embedding = next((i, node) for i, node in enumerate(graph.node) if "input_ids" in node.input)
    embedded, node = embedding.output[0], onnx.helper.make_node
    for other in graph.node:
        other.input[:] = ["summed" if name == embedded else name for name in other.input]
    added = [
        node("CumSum", [embedded, "sum.axis"], ["sum.new"]),
        node("Unsqueeze", ["past.0.sum", "sum.axis"], ["sum.old"]),
        node("Add", ["sum.new", "sum.old"], ["sum.all"]),
        node("Tanh", ["sum.all"], ["sum.flat"]),
        node("Add", [embedded, "sum.flat"], ["summed"]),
        node("Gather", ["sum.all", "sum.last"], ["present.0.sum"], axis=1),
    ]
    for n, each in enumerate(added, 1):
        graph.node.insert(place + n, each)
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "sum.axis"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(-1, np.int64), "sum.last"))
    for values, name in ((graph.input, "past.0.sum"), (graph.output, "present.0.sum")):
        values.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", hidden]))
    onnx.save(model, path)
    return dataclasses.replace(
        tiny_bundle, manifest=dataclasses.replace(manifest, states=[State(0, "sum", [hidden])], prefill=None)
    )


def test_a_graph_with_states_is_run_as_its_manifest_says(summing_bundle: Bundle) -> None:
    """Chunks, single tokens, drafts, and texts side by side."""
    engine = Engine(summing_bundle, Variant(exact=True, context=200), CPU)
    text, cache = np.arange(3, 43), engine.new_cache()
    whole = engine.step(cache, text, np.arange(len(text))).copy()
    other = engine.new_cache()
    for start, end in ((0, 20), (20, 21), (21, 22), (22, 40)):
        cut = engine.step(other, text[start:end], np.arange(end - start))
        np.testing.assert_allclose(cut, whole[start:end], rtol=0, atol=1e-4)
    assert other.states is not None and other.states.at == 40 == other.length
    assert other.truncate(30) == 0
    np.testing.assert_array_equal(engine.step(other, text, np.arange(len(text))), whole)

    options, prompts = GenerateOptions(max_tokens=20), ["The moon", "A train leaves at nine", "Kaffee"]
    answers = {}
    for speculate in ("lookup", "off"):
        model = Model(summing_bundle, engine, Text(summing_bundle), speculate=speculate)
        answers[speculate] = [model.generate(prompt, options).token_ids for prompt in prompts]
    assert answers["off"] == answers["lookup"]
    together = model.generate_all(prompts, options)
    assert [each.token_ids for each in together] == answers["off"]
    # Answers to one prompt, which is read once for those that begin together.
    drawn = [GenerateOptions(max_tokens=20, temperature=1.5, seed=seed) for seed in range(5)]
    alone = [model.generate(prompts[1], each).token_ids for each in drawn]
    for width in (3, 8):
        together = model.generate_all([prompts[1]] * 5, drawn, width=width)
        assert [each.token_ids for each in together] == alone


def test_graphs_that_keep_no_states_are_refused(by_layer: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = dataclasses.replace(by_layer.manifest, states=[State(0, "sum", [8])])
    bundle = dataclasses.replace(by_layer, manifest=manifest)
    with pytest.raises(InputError, match="has layers with states, which only its graph of all layers has"):
        choose(bundle, LoadOptions(skip="unified:0.2"))
    monkeypatch.setattr("edge.runtime.choose.target_for", lambda bundle, provider: "cuda")
    with pytest.raises(InputError, match="choose the provider cpu"):
        choose(bundle, LoadOptions())


def test_a_state_of_another_shape_than_the_manifest_states_is_refused(summing_bundle: Bundle) -> None:
    wider = dataclasses.replace(summing_bundle.manifest, states=[State(0, "sum", [3])])
    with pytest.raises(BundleError, match=r"past\.0\.sum of the graph decoder has the shape .* the manifest states 3"):
        Engine(dataclasses.replace(summing_bundle, manifest=wider), PLAIN, CPU)


def test_a_layer_may_keep_states_alone() -> None:
    layout = KVLayout("float32", [KVLayer(0, 0), KVLayer(1, 8)])
    first, second = (KVCache(CPU, layout, 10, states=States(CPU, {"past.0.sum": (3,)})) for _ in range(2))
    slots = Slots(first, 2)
    slots.join(first)
    assert second.states is not None and second.nbytes == 3 * 4 + 10 * layout.bytes_per_token
    second.length = second.states.at = 2
    second.states.memory["past.0.sum"].array[:] = 5
    slots.join(second)
    slots.leave(first)
    second.restore(second.snapshot())
    assert second.states.part()["past.0.sum"].array.tolist() == [[5, 5, 5]]


def test_a_step_that_would_be_filled_up_is_refused() -> None:
    with pytest.raises(AssertionError, match="filled|fills"):
        KVCache(CPU, Summing.kv, 8, exact=True, states=States(CPU, {"sum": (2,)}))
