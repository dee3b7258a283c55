"""`logit_bias` and penalties: tokens are made more or less likely where they are chosen, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from running_server import running

pytest.importorskip("starlette")

from edge.bundle import Bundle
from edge.runtime.decode.sampling import greedy
from edge.serve.bias import Bias

PROMPT = "The moon shines"
LENGTH = 16


@pytest.fixture(scope="module")
def client(pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(pristine_tiny_bundle) as client:
        yield client


def said(client: httpx.Client, **more: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0} | more
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_scores_change_by_the_tokens_and_by_what_was_said() -> None:
    logits = np.array([3.0, 2.5, 0.0], np.float32)
    choose = Bias({2: 0.5}, presence=0.25, frequency=0.5).over(greedy)
    # 3 | 2.25 2.5 .5 | 2.25 1.75 .5 | 1.75 1.75 .5 | 1.25 1.75 .5
    assert [choose(logits) for _ in range(5)] == [0, 1, 0, 0, 1]
    assert logits.tolist() == [3.0, 2.5, 0.0]
    assert Bias({0: -100.0}).over(greedy)(logits) == 1 and Bias({2: 100.0}).over(greedy)(logits) == 2


def test_a_token_is_banned_and_another_is_all_that_is_said(client: httpx.Client, pristine_tiny_bundle: Bundle) -> None:
    from edge.runtime.text.tokenizer import Text

    text = Text(pristine_tiny_bundle)
    plain = said(client, logprobs=1)["logprobs"]
    (first, *_), banned = text.encode(plain["tokens"][0]), {}
    banned = {str(token): -100 for token in {first, *text.encode(plain["tokens"][1])}}
    found = said(client, logprobs=1, logit_bias=banned)["logprobs"]
    assert not {*found["tokens"]} & {text.decode([int(token)]) for token in banned}
    assert found["top_logprobs"][0] == plain["top_logprobs"][0], "log probabilities are those of the model"
    (moon,) = text.encode("x")
    assert said(client, logit_bias={str(moon): 100})["text"] == text.decode([moon] * LENGTH)


@pytest.mark.parametrize(
    "more",
    [{"logit_bias": {"7": 4, "9": -3}}, {"presence_penalty": 1.5}, {"frequency_penalty": -1, "temperature": 0.8}],
    ids=str,
)
def test_answers_are_the_same_alone_among_others_in_streams_and_with_drafts(
    client: httpx.Client, pristine_tiny_bundle: Bundle, more: dict[str, Any]
) -> None:
    more = more | {"seed": 3}
    with running(pristine_tiny_bundle, speculate="off") as other:
        alone = said(other, **more)["text"]
    assert alone != said(client)["text"], "it changes something"
    assert said(client, **more)["text"] == alone
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: said(client, **(more if i % 2 else {}))["text"], range(8)))
    assert found[1::2] == [alone] * 4 and found[::2] == [said(client)["text"]] * 4
