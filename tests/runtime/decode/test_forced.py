"""Forced tokens: a form's only choices run together in one step, and change no token of an answer."""

from __future__ import annotations

from typing import Any

import pytest
from fake_drafters import AllOfIt, Guesser

import edge
from edge.bundle import Bundle
from edge.runtime.decode.draft import Draft
from edge.runtime.decode.grammar import Constrained
from edge.runtime.model import Model
from edge.runtime.speculate.speculation import Speculation

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "temperature": {"enum": ["temperate", "tempered"]},
        "several words": {"const": "that are always the same"},
        "number": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["temperature", "several words", "number"],
    "additionalProperties": False,
}
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.5, "seed": 3},
    {"temperature": 0.7, "seed": 4, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 0, "repetition_penalty": 1.2},
    {"temperature": 0, "max_tokens": 17},
]
PROMPT = "The moon and the tide"


def answers(model: Model) -> list[tuple[list[int], str, int]]:
    found = [model.generate(PROMPT, **({"json_schema": SCHEMA, "max_tokens": 90} | each)) for each in OPTIONS]
    return [(each.token_ids, each.text, each.forced_tokens) for each in found]


@pytest.fixture(scope="module")
def unforced(pristine_tiny_bundle: Bundle) -> list[tuple[list[int], str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Constrained, "force", lambda self, most: [])
        return answers(edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off"))


@pytest.mark.parametrize("drafter", ["off", "lookup", "recycle", "blend"])
@pytest.mark.parametrize("more", [{}, {"prefill_chunk": 3}, {"kv": "int8"}], ids=["", "chunk", "int8"])
def test_an_answer_has_the_tokens_that_it_has_without_forced_ones(
    pristine_tiny_bundle: Bundle, unforced: list[tuple[list[int], str, int]], drafter: str, more: dict[str, Any]
) -> None:
    model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate=drafter, **more)
    found = answers(model)
    assert [ids for ids, _, _ in found] == [ids for ids, _, _ in unforced] or more == {"kv": "int8"}
    for ids, _, forced in found:
        assert len(ids) // 4 < forced < len(ids)


def test_forced_tokens_take_no_steps_of_their_own(pristine_tiny_bundle: Bundle) -> None:
    model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")
    sizes, run = list[int](), model.engine.step

    def step(cache: Any, tokens: Any, rows: Any = None, **more: Any) -> Any:
        sizes.append(len(tokens))
        made = run(cache, tokens, rows, **more)
        assert len(sizes) == 1 or made.shape[0] == 1  # no logits of what is certain
        return made

    model.engine.step = step  # type: ignore[method-assign, assignment]
    found = model.generate(PROMPT, json_schema=SCHEMA, max_tokens=90)
    steps = sizes[1:]  # after the prompt
    assert sum(steps) == found.generated_tokens - 1 and len(steps) == sum(steps) - found.forced_tokens


def test_an_answer_that_is_alone_in_a_batch_has_forced_tokens(pristine_tiny_bundle: Bundle) -> None:
    model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")
    alone = model.generate(PROMPT, json_schema=SCHEMA, max_tokens=90)
    (found,) = model.generate_all([PROMPT], json_schema=SCHEMA, max_tokens=90)
    assert found.token_ids == alone.token_ids
    assert (found.forced_tokens > 0) == model.engine.independent


def test_of_a_draft_nothing_is_run_that_the_form_forbids(pristine_tiny_bundle: Bundle) -> None:
    model = edge.load(pristine_tiny_bundle.root, kind=Model, speculate="off")
    plain = model.generate(PROMPT, regex="[0-9]{8}", max_tokens=20)
    (digit,), wrong = model.text.encode("7"), model.text.encode("moon")[0]
    guesser = Guesser(lambda text, budget: Draft([digit, wrong, digit][: budget.tokens], [0] * min(3, budget.tokens)))
    model.__dict__["speculation"] = Speculation(guesser, AllOfIt())
    found = model.generate(PROMPT, regex="[0-9]{8}", max_tokens=20)
    assert found.token_ids == plain.token_ids and found.speculation is not None
    assert 0 < found.speculation["drafted"] <= found.speculation["steps"]


def test_a_model_that_drafts_in_its_own_cache_waits_while_tokens_are_forced(by_layer: Bundle) -> None:
    found = {
        name: answers(edge.load(by_layer.root, kind=Model, speculate=name, context=200)) for name in ("off", "self")
    }
    assert found["self"] == found["off"]
