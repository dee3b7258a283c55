"""Beam search: the texts and scores that transformers finds, from one KV cache whose rows the beams share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from path_engine import PathEngine, hashed
from transformers import T5Config, T5ForConditionalGeneration

from edge.errors import InputError
from edge.runtime.decode import beam, branches
from edge.runtime.decode.beam import Hypothesis, beam_search, new_cache, search
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.rules.forced_end import ForcedEnd
from edge.runtime.decode.rules.min_length import MinLength
from edge.runtime.decode.rules.no_repeat_ngram import NoRepeatNgrams
from edge.runtime.decode.rules.repetition_penalty import RepetitionPenalty
from edge.runtime.decode.rules.rule import Processor

EOS = 1


def found(
    engine: PathEngine,
    options: BeamOptions,
    prompt: tuple[int, ...] = (0,),
    eos: tuple[int, ...] = (EOS,),
    processors: list[Processor] | None = None,
    forced: int = 0,
) -> list[Hypothesis]:
    cache = new_cache(engine, len(prompt), options)  # type: ignore[arg-type]
    return beam_search(engine, cache, prompt, options, eos=eos, processors=processors or (), forced=forced)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def t5() -> tuple[T5ForConditionalGeneration, torch.Tensor, PathEngine]:
    """A random T5, an input, and an engine that gives its logits for that input."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = T5Config(**sizes, decoder_start_token_id=0, eos_token_id=EOS, pad_token_id=0, initializer_factor=2.0)
    model = T5ForConditionalGeneration(config).eval()
    source = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        encoded = model.get_encoder()(source)

    def next_logits(path: tuple[int, ...]) -> np.ndarray:
        with torch.no_grad():
            out = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([path]), use_cache=False)
        return out.logits[0, -1].numpy()

    return model, source, PathEngine(next_logits)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 2, "num_return_sequences": 2},
        {"length_penalty": 2.0, "num_return_sequences": 4},
        {"length_penalty": -0.5, "early_stopping": True, "num_return_sequences": 4},
        {"length_penalty": 0.0, "early_stopping": "never", "num_return_sequences": 4},
        {"length_penalty": 1.5, "early_stopping": "never", "num_return_sequences": 4},
        {"early_stopping": True, "max_length": 5, "num_return_sequences": 4},
        {"early_stopping": True, "length_penalty": 3.0, "num_return_sequences": 4},
        {"no_repeat_ngram_size": 2, "num_return_sequences": 4},
        {"no_repeat_ngram_size": 1, "repetition_penalty": 1.3, "num_return_sequences": 4},
        {"eos_token_id": [EOS, 7, 9], "num_beams": 3, "num_return_sequences": 3},
        {"min_length": 9, "early_stopping": True, "num_return_sequences": 4},
        {"forced_bos_token_id": 3, "num_return_sequences": 4},
        {"forced_bos_token_id": 3, "forced_eos_token_id": EOS, "max_length": 6, "length_penalty": 2.0},
        {"forced_bos_token_id": 3, "early_stopping": "never", "length_penalty": 2.0, "num_return_sequences": 4},
    ],
    ids=lambda settings: " ".join(f"{k}={v}" for k, v in settings.items()) or "defaults",
)
def test_texts_and_scores_are_those_of_transformers(
    t5: tuple[T5ForConditionalGeneration, torch.Tensor, PathEngine], settings: dict[str, object]
) -> None:
    model, source, engine = t5
    settings = {"num_beams": 4, "max_length": 14, "eos_token_id": EOS, **settings}
    wanted = model.generate(source, do_sample=False, output_scores=True, return_dict_in_generate=True, **settings)
    processors, prompt, eos, options = translated(settings)
    hypotheses = found(engine, options, prompt, eos, processors, forced=len(prompt) - 1)
    padded = [[*prompt, *text.token_ids] for text in hypotheses]
    width = wanted.sequences.shape[1]
    assert [text + [eos[0]] * (width - len(text)) for text in padded] == wanted.sequences.tolist()
    np.testing.assert_allclose([text.score for text in hypotheses], wanted.sequences_scores.numpy(), atol=1e-4)


def translated(settings: dict) -> tuple[list[Processor], tuple[int, ...], tuple[int, ...], BeamOptions]:
    """transformers' settings in our terms: processors, prompt, end tokens, options."""
    eos = settings["eos_token_id"]
    ends = tuple(eos) if isinstance(eos, list) else (eos,)
    bos = settings.get("forced_bos_token_id")
    prompt = (0,) if bos is None else (0, bos)
    processors: list[Processor] = []
    if "repetition_penalty" in settings:
        processors.append(RepetitionPenalty(settings["repetition_penalty"]))
    if "no_repeat_ngram_size" in settings:
        processors.append(NoRepeatNgrams(settings["no_repeat_ngram_size"]))
    if "min_length" in settings:
        processors.append(MinLength(settings["min_length"], ends))
    if "forced_eos_token_id" in settings:
        processors.append(ForcedEnd(settings["max_length"], settings["forced_eos_token_id"]))
    options = BeamOptions(
        beams=settings["num_beams"],
        length_penalty=settings.get("length_penalty", 1.0),
        early_stopping=settings.get("early_stopping", False),
        n_best=settings.get("num_return_sequences", 1),
        max_tokens=settings["max_length"] - len(prompt),
    )
    return processors, prompt, ends, options


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize(("beams", "groups"), [(4, 2), (6, 3), (3, 3)])
def test_diverse_texts_are_those_of_the_published_procedure(
    beams: int, groups: int, early_stopping: beam.EarlyStopping, seed: int
) -> None:
    next_logits = hashed(8, EOS, seed, patience=-8)
    penalty = (2.0, 1.0, -1.0)[seed % 3]
    options = BeamOptions(beams, groups, 1.5, penalty, early_stopping=early_stopping, n_best=beams, max_tokens=12)
    wanted = diverse_search(next_logits, options)
    texts = found(PathEngine(next_logits), options)
    assert [text.token_ids for text in texts] == [tokens for _, tokens in wanted]
    np.testing.assert_allclose([text.score for text in texts], [score for score, _ in wanted], atol=1e-4)


def diverse_search(
    next_logits: Callable[[tuple[int, ...]], np.ndarray], options: BeamOptions
) -> list[tuple[float, list[int]]]:
    """Algorithm 1 of Vijayakumar et al. 2016 with the bookkeeping of transformers 4, text by text, without a cache."""
    width = options.beams // options.groups
    running: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(options.groups)]
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(options.groups)]
    done = [False] * options.groups

    def add(group: int, log_probability: float, tokens: list[int], length: int) -> None:
        score = log_probability / length**options.length_penalty
        ended[group] = sorted([*ended[group], (score, tokens)], reverse=True)[:width]

    for length in range(1, options.max_tokens + 1):
        taken: list[int] = []
        for group in range(options.groups):
            if done[group]:
                continue
            candidates = []
            for score, text in running[group]:
                logits = next_logits((0, *text)).astype(float)
                for token, logit in enumerate(logits - np.log(np.exp(logits).sum())):
                    candidates.append((score + logit - options.diversity * taken.count(token), [*text, token]))
            candidates = sorted(candidates, reverse=True)[: 2 * width]
            running[group] = []
            for rank, (score, text) in enumerate(candidates):
                if text[-1] != EOS and len(running[group]) < width:
                    running[group].append((score, text))
                elif text[-1] == EOS and rank < width:
                    add(group, score, text, length)
            taken += [text[-1] for _, text in running[group]]
            if len(ended[group]) == width:
                far = options.early_stopping == "never" and options.length_penalty > 0
                best = candidates[0][0] / (options.max_tokens if far else length) ** options.length_penalty
                done[group] = options.early_stopping is True or ended[group][-1][0] >= best
    for group in range(options.groups):
        if not done[group]:
            for score, text in running[group]:
                add(group, score, text, options.max_tokens)
    return sorted((text for group in ended for text in group), reverse=True)[: options.n_best]


@pytest.mark.parametrize("seed", range(24))
def test_groups_yield_the_tokens_of_the_best_text(seed: int) -> None:
    engine, texts = PathEngine(hashed(8, EOS, seed, patience=-8)), list[Hypothesis]()
    options = BeamOptions(4, 2, 1.5, early_stopping=True, max_tokens=12)
    tokens = search(engine, new_cache(engine, 1, options), [0], options, texts, eos=[EOS])  # type: ignore[arg-type]
    assert list(tokens) == texts[0].token_ids


def test_groups_find_different_texts() -> None:
    next_logits = hashed(30, EOS)
    plain = found(PathEngine(next_logits), BeamOptions(4, n_best=4, max_tokens=10))
    diverse = found(PathEngine(next_logits), BeamOptions(4, 4, 50.0, n_best=4, max_tokens=10))
    assert len({text.token_ids[0] for text in diverse}) == 4 > len({text.token_ids[0] for text in plain})


@pytest.mark.parametrize(
    ("early_stopping", "best"), [(True, [2, EOS]), (False, [2] * 9 + [EOS]), ("never", [2] * 9 + [EOS])]
)
def test_early_stopping_ends_the_search_before_a_better_text_is_found(
    early_stopping: beam.EarlyStopping, best: list[int]
) -> None:
    def patience_pays(path: tuple[int, ...]) -> np.ndarray:
        end = 0.4 if len(path) <= 2 else 0.999 if len(path) == 10 else 0.001
        return np.log(np.array([1e-9, end, 1 - end]), dtype=np.float32)

    (text,) = found(PathEngine(patience_pays), BeamOptions(2, early_stopping=early_stopping, max_tokens=20))
    assert text.token_ids == best


def test_beams_are_rows_of_one_step_and_the_prompt_runs_once() -> None:
    engine = PathEngine(hashed(30, EOS))
    found(engine, BeamOptions(4, max_tokens=8, early_stopping="never"), prompt=(0, 5, 6))
    assert engine.steps[0] == 3 and set(engine.steps[1:]) == {4}


def test_a_long_prompt_runs_in_chunks() -> None:
    engine = PathEngine(hashed(30, EOS))
    found(engine, BeamOptions(2, max_tokens=2), prompt=tuple(range(2, 30)) * 10)
    assert engine.steps[:4] == [128, 128, 24, 2]


def test_groups_with_the_same_text_share_its_row() -> None:
    sure = lambda path: np.where(np.arange(30) == len(path) + 1, 100, np.arange(30) % 7)  # noqa: E731
    engine = PathEngine(sure)
    found(engine, BeamOptions(2, 2, 0.5, max_tokens=5))
    assert set(engine.steps) == {1}, "a small diversity keeps no group from what the model is sure of"


def test_rows_of_dead_branches_are_given_up() -> None:
    options = BeamOptions(5, max_tokens=120, early_stopping="never", length_penalty=0.0)
    engine = PathEngine(hashed(30, None))
    found(engine, options, eos=())
    assert sum(engine.steps) > 550, "the search would have needed as many rows"
    assert engine.longest < (121 + 5 * 6) + branches.SPARE_ROWS


def test_moving_rows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    options = BeamOptions(4, n_best=4, max_tokens=40, early_stopping="never")
    monkeypatch.setattr(branches, "SPARE_ROWS", 10**6)
    never, engine = found(PathEngine(hashed(30, None)), options), PathEngine(hashed(30, None))
    monkeypatch.setattr(branches, "SPARE_ROWS", -(10**6))
    assert found(engine, options) == never
    assert engine.longest < sum(engine.steps) * 0.7


def test_a_small_cache_is_used_to_its_end_and_then_the_texts_end_there() -> None:
    engine, options = PathEngine(hashed(30, None)), BeamOptions(3, max_tokens=60)
    whole = found(engine, options, eos=())
    (cut,) = beam_search(engine, engine.new_cache(40), (0,), options, eos=())  # type: ignore[arg-type]
    assert cut.finish_reason == "context" and 20 < len(cut.token_ids) < 40
    assert whole[0].finish_reason == "length" and len(whole[0].token_ids) == 60


def test_what_a_cache_holds_stands_before_the_prompt() -> None:
    engine, options = PathEngine(hashed(30, EOS)), BeamOptions(3, max_tokens=9)
    cache = new_cache(engine, 4, options)  # type: ignore[arg-type]
    engine.step(cache, np.array([0, 5, 6]))
    assert beam_search(engine, cache, [7], options, eos=[EOS]) == found(engine, options, (0, 5, 6, 7))  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_tokens_stream_once_they_are_certain(seed: int, groups: int) -> None:
    engine = PathEngine(hashed(30, EOS, seed))
    options = BeamOptions(4, groups, 0.3 if groups > 1 else 0.0, max_tokens=20, early_stopping="never")
    texts = list[Hypothesis]()
    steps = search(engine, new_cache(engine, 1, options), (0,), options, texts, eos=[EOS])  # type: ignore[arg-type]
    streamed = [(token, bool(texts)) for token in steps]
    assert [token for token, _ in streamed] == texts[0].token_ids
    if groups == 1 and len(streamed) > 8:
        assert not streamed[0][1], "something is certain before the end"


def test_an_interruption_ends_the_search_with_the_best_so_far() -> None:
    engine = PathEngine(hashed(30, EOS))
    options = BeamOptions(3, n_best=3, max_tokens=30, interrupted=lambda: len(engine.steps) == 5)
    texts = found(engine, options, eos=())
    assert [len(text.token_ids) for text in texts] == [4, 4, 4]
    assert {text.finish_reason for text in texts} == {"interrupted"}
    (nothing,) = found(engine, BeamOptions(3, interrupted=lambda: True))
    assert nothing.token_ids == []


def test_an_interruption_prefers_texts_that_ended_where_they_score_better() -> None:
    def ends_at_once(path: tuple[int, ...]) -> np.ndarray:
        return np.array([0, 9 if len(path) == 1 else 0, 0, 0, 0], np.float32)

    engine = PathEngine(ends_at_once)
    options = BeamOptions(2, max_tokens=30, early_stopping="never", interrupted=lambda: len(engine.steps) == 3)
    (best,) = found(engine, options)
    assert (best.token_ids, best.finish_reason) == ([EOS], "stop")


def test_a_vocabulary_smaller_than_the_beams_is_searched_whole() -> None:
    texts = found(PathEngine(hashed(3, EOS)), BeamOptions(8, n_best=8, max_tokens=3))
    assert len({tuple(text.token_ids) for text in texts}) == 8


def test_a_step_without_any_allowed_token_ends_the_texts() -> None:
    def nothing_after(texts: np.ndarray, scores: np.ndarray) -> None:
        if texts.shape[1] == 4:
            scores[:] = -np.inf

    texts = found(PathEngine(hashed(30, None)), BeamOptions(3, n_best=3), eos=(), processors=[nothing_after])
    assert [len(text.token_ids) for text in texts] == [3, 3, 3]


def test_a_score_is_the_log_probability_over_the_length_to_the_power_of_the_penalty() -> None:
    for text in found(PathEngine(hashed(30, EOS)), BeamOptions(4, n_best=4, length_penalty=0.7, max_tokens=9)):
        assert math.isclose(text.score, text.log_probability / len(text.token_ids) ** 0.7, rel_tol=1e-6)
        assert (text.token_ids[-1] == EOS) == (text.finish_reason == "stop")


@pytest.mark.parametrize("shape", [(1, 5), (1, 63), (3, 64), (4, 1000), (5, 7001)])
def test_the_largest_scores_are_found(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    scores = rng.permutation(math.prod(shape)).reshape(shape).astype(np.float32)
    scores[rng.random(shape) < 0.3] = -np.inf
    found = beam._best(scores, 8)
    assert [value for value, _, _ in found] == sorted(scores[scores > -np.inf], reverse=True)[:8]
    assert all(scores[row, token] == value for value, row, token in found)


def test_an_engine_that_takes_no_trees_gets_a_sentence() -> None:
    engine = PathEngine(hashed(30, EOS))
    engine.takes_trees = False
    with pytest.raises(InputError, match="no beams can be searched"):
        found(engine, BeamOptions(2))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beams": 0}, "number of beams must be 1 or more, not 0"),
        ({"beams": 2.5}, "number of beams must be 1 or more, not 2.5"),
        ({"beams": 2, "n_best": 3}, "2 beams cannot give 3 texts"),
        ({"beams": 4, "groups": 3, "diversity": 1.0}, "4 beams cannot be split into 3 groups"),
        ({"groups": 2}, "2 beam groups need a diversity above 0"),
        ({"diversity": 0.5}, "A diversity needs beam groups"),
        ({"diversity": -1.0}, "diversity must be a number of 0 or more"),
        ({"length_penalty": math.nan}, "length penalty must be a number"),
        ({"early_stopping": "soon"}, "true, false or never, not 'soon'"),
        ({"max_tokens": 0}, "maximum of tokens to generate must be 1 or more"),
    ],
)
def test_options_that_make_no_search_get_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        BeamOptions(**options)  # type: ignore[arg-type]
