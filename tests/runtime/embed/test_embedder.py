"""`Embedder`: vectors that do not depend on their neighbours, lengths, prompts, dimensions, memory."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tiny_embedders import TEXTS, by_hand, cosine, tiny_embedder

import edge
from edge.bundle import Bundle
from edge.errors import InputError

PROMPTS = {"query": "the train: ", "document": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_embedder(tmp_path_factory.mktemp("models") / "tiny-bert", prompts=PROMPTS, length=32)


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return edge.export(folder, tmp_path_factory.mktemp("bundles") / "tiny.edge", check=False)


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> edge.Embedder:
    return edge.load(bundle.root, kind=edge.Embedder)


def many() -> list[str]:
    """Texts of every length, several of each."""
    words = " ".join(TEXTS).split()
    return [" ".join(words[i % 5 : i % 5 + n]) for i in range(7) for n in range(1, 17)]


def test_a_vector_does_not_depend_on_its_neighbours(model: edge.Embedder) -> None:
    if not model.engine.independent:
        pytest.skip("edge-lm-kernels do not run here")
    texts = many()
    together = model.embed(texts)
    alone = np.concatenate([model.embed([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)


def test_vectors_come_in_the_order_of_the_texts(model: edge.Embedder) -> None:
    texts = many()
    together = model.embed(texts)
    np.testing.assert_allclose(model.embed(texts[::-1]), together[::-1], atol=1e-5)
    assert model.embed([]).shape == (0, 64)
    np.testing.assert_array_equal(model.embed(TEXTS[0]), model.embed([TEXTS[0]]))


def test_texts_of_one_length_are_computed_together(model: edge.Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    step = model.engine.step
    monkeypatch.setattr(model.engine, "step", lambda ids, types: (shapes.append(ids.shape), step(ids))[1])
    model.embed(["the old clock", "a", "a ball in", "the", "in the house"])
    assert shapes == [(3, 5), (2, 3)]
    shapes.clear()
    model.embed(["the clock is old"] * 400)
    assert all(count * length <= model.engine.room.step for count, length in shapes) and len(shapes) > 1


def test_a_prompt_stands_before_the_text(model: edge.Embedder, folder: Path) -> None:
    (made,) = model.embed([f"  {TEXTS[1]} "], prompt="query")
    np.testing.assert_array_equal(made, model.embed([PROMPTS["query"] + TEXTS[1]])[0])
    assert 1 - cosine(made, by_hand(folder, PROMPTS["query"] + TEXTS[1])) < 0.01
    with pytest.raises(InputError, match="has no prompt 'summary'; it has query"):
        model.embed(TEXTS, prompt="summary")


def test_fewer_dimensions_have_length_1_again(model: edge.Embedder) -> None:
    made, whole = model.embed(TEXTS, dimensions=16), model.embed(TEXTS)[:, :16]
    np.testing.assert_allclose(made, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)
    with pytest.raises(InputError, match="64 numbers, of which 65"):
        model.embed(TEXTS, dimensions=65)


def test_a_text_that_is_too_long_is_refused_or_cut(model: edge.Embedder) -> None:
    long = " ".join(["clock"] * 31)
    with pytest.raises(InputError, match=r"Text 2 has 33 tokens, and tiny-bert takes 32 at most.*--truncate"):
        model.embed(["a", long])
    read = model.read(["a", long], edge.EmbedOptions(truncate=True))
    assert read.cut == 1 and len(read.ids[1]) == 32 and read.ids[1][-1] == 3
    np.testing.assert_array_equal(model.embed(long, truncate=True), model.embed(" ".join(["clock"] * 30)))


def test_control_tokens_that_somebody_typed_are_text(model: edge.Embedder) -> None:
    assert 3 not in model.read(["a [SEP] b"]).ids[0][1:-1]


def test_an_empty_text_has_a_vector_too(model: edge.Embedder) -> None:
    assert model.read(["", " "]).ids == [[2, 3], [2, 3]]


@pytest.mark.parametrize("texts", [b"bytes", 3, None, [3], [None], {"a": 1}])
def test_what_is_no_text_is_refused(model: edge.Embedder, texts: object) -> None:
    with pytest.raises(InputError, match="Vectors are made of texts|reads texts, not"):
        model.embed(texts)  # type: ignore[arg-type]


def test_half_a_character_is_refused(model: edge.Embedder) -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        model.embed(["\ud800"])


def test_memory_limits_the_length_and_names_the_smallest_budget(bundle: Bundle) -> None:
    with pytest.raises(InputError, match="smallest budget that would do is") as refused:
        edge.load(bundle.root, memory="1MB")
    smallest = str(refused.value).rpartition("would do is ")[2].rstrip(".").replace(" ", "")
    assert edge.load(bundle.root, kind=edge.Embedder, memory=smallest).engine.room.context >= 18
    assert edge.load(bundle.root, kind=edge.Embedder, memory="4GB").engine.room.context == 32
    assert edge.load(bundle.root, kind=edge.Embedder, context=20).engine.room.context == 20
    with pytest.raises(InputError, match="between 1 and 32"):
        edge.load(bundle.root, context=33)


@pytest.mark.parametrize("option", [{"speculate": "off"}, {"skip": "first"}, {"kv": "int8"}, {"prefill_chunk": 4}])
def test_options_of_models_that_answer_are_refused(bundle: Bundle, option: dict[str, object]) -> None:
    with pytest.raises(InputError, match="for models that answer"):
        edge.load(bundle.root, **option)  # type: ignore[call-overload]


def test_a_closed_model_says_so(bundle: Bundle) -> None:
    with edge.load(bundle.root, kind=edge.Embedder) as model:
        model.embed("a")
    with pytest.raises(InputError, match="closed"):
        model.embed("a")


def test_several_threads_may_use_it(model: edge.Embedder) -> None:
    texts, found = many(), list[np.ndarray]()
    threads = [threading.Thread(target=lambda: found.append(model.embed(texts))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(np.array_equal(found[0], each) for each in found)


def test_scores_that_attention_keeps_count_with_the_square_of_a_text(tmp_path: Path) -> None:
    from edge.runtime.embed.memory import room_of, step_bytes

    settings = {"local_attention": 6, "num_hidden_layers": 2, "global_attn_every_n_layers": 2}
    folder = tiny_embedder(tmp_path / "tiny", "modernbert", max_position_embeddings=4096, **settings)
    bundle = edge.export(folder, tmp_path / "m.edge", check=False)
    assert bundle.manifest.graph("embedder").scores
    heads, length = bundle.manifest.dims.num_heads, 4096
    assert step_bytes(bundle, length, length) > heads * length**2 * 4
    assert room_of(bundle, "200MB", None, 0).context < length == room_of(bundle, "4GB", None, 0).context
