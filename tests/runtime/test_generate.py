"""The decode loop and one answer: what is run, what ends it, and what the figures say."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_engine import BOS, END, START, fake_model, says, tokens_in

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.runtime.decode.answer import Piece, collect
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import generate
from edge.runtime.decode.sampling import greedy
from edge.runtime.load import load, start

PROMPT = [BOS, START, *b"user\nhi", END, *b"\n", START, *b"assistant\n"]


def test_the_prompt_runs_in_chunks_and_then_one_token_at_a_time(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, says("yes"), prefill_chunk=8)
    assert model.generate("hi").text == "yes"
    assert tokens_in(engine.steps) == [*PROMPT, *b"yes"]
    assert [len(step) for step in engine.steps] == [8, 8, len(PROMPT) - 16, 1, 1, 1]


def test_the_loop_runs_a_token_only_when_the_next_is_asked_for(tmp_path: Path) -> None:
    _, engine = fake_model(tmp_path, lambda history: history[-1] + 1)
    cache = engine.new_cache(6)
    tokens = generate(engine, cache, np.array([1, 2, 3]), greedy, chunk=9, interrupted=lambda: False)
    assert next(tokens) == 4 and engine.steps == [[1, 2, 3]]
    assert next(tokens) == 5 and engine.steps == [[1, 2, 3], [4]]
    assert list(tokens) == [6, 7], "the last token has no room in the cache, and ends the loop"
    assert cache.length == cache.capacity == 6


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_chunks_do_not_change_the_answer_of_a_real_bundle(tiny_bundle: Bundle, chunk: int) -> None:
    whole = load(tiny_bundle.root, threads=2).generate("The moon changes", GenerateOptions(max_tokens=8))
    parts = load(tiny_bundle.root, prefill_chunk=chunk).generate("The moon changes", GenerateOptions(max_tokens=8))
    assert parts.token_ids == whole.token_ids and len(whole.token_ids) == whole.generated_tokens


def test_an_end_token_stops_the_answer_and_is_counted(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("yes"))
    result = model.generate("hi")
    assert (result.text, result.finish_reason) == ("yes", "stop")
    assert result.token_ids == [*b"yes", END] and result.generated_tokens == 4
    assert result.prompt_tokens == len(PROMPT)


def test_max_tokens_ends_the_answer(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, says("a long answer"))
    result = model.generate("hi", GenerateOptions(max_tokens=6))
    assert (result.text, result.finish_reason, result.generated_tokens) == ("a long", "length", 6)
    assert tokens_in(engine.steps) == [*PROMPT, *b"a lon"], "the last token is not run"


def test_an_end_token_at_the_limit_is_a_stop(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("yes"))
    assert model.generate("hi", GenerateOptions(max_tokens=4)).finish_reason == "stop"
    assert model.generate("hi", GenerateOptions(max_tokens=3)).finish_reason == "length"


@pytest.mark.parametrize("room", [0, 1, 5])
def test_a_full_context_ends_the_answer(tmp_path: Path, room: int) -> None:
    model, _ = fake_model(tmp_path, says("a long answer"), context=len(PROMPT) + room)
    result = model.generate("hi")
    assert result.finish_reason == "context"
    assert result.text == "a long answer"[: room + 1], "the last token needs no room"


def test_a_full_context_ends_the_answer_of_a_real_bundle(tiny_bundle: Bundle) -> None:
    result = load(tiny_bundle.root, context=40).generate("The moon changes", GenerateOptions(max_tokens=100))
    assert result.finish_reason == "context"
    assert result.prompt_tokens + result.generated_tokens == 41


def test_a_prompt_longer_than_the_context_gets_one_sentence(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, says("a"), context=len(PROMPT) - 1)
    with pytest.raises(InputError, match=rf"prompt has {len(PROMPT)} tokens and the context holds {len(PROMPT) - 1}"):
        model.generate("hi")
    assert engine.steps == []


def test_a_stop_string_over_several_tokens_ends_the_answer_before_it(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, says("one STOP two"))
    result = model.generate("hi", GenerateOptions(stop=["STOP", "never"]))
    assert (result.text, result.finish_reason) == ("one ", "stop")
    assert result.token_ids == list(b"one STOP")
    assert tokens_in(engine.steps) == [*PROMPT, *b"one STO"]


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("one STO"))
    assert model.generate("hi", GenerateOptions(stop=["STOP"])).text == "one STO"
    assert model.generate("hi", GenerateOptions(stop="STOP", max_tokens=6)).text == "one ST"


def test_a_character_cut_off_by_the_limit_is_shown_as_a_replacement(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("a🙂"))
    pieces = list(model.stream("hi", GenerateOptions(max_tokens=4)))
    assert [p.text for p in pieces] == ["a", "", "", "\ufffd"]


def test_each_token_yields_one_piece_and_the_last_says_why(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("né"))
    pieces = list(model.stream("hi"))
    assert [(p.text, p.token_id) for p in pieces] == [("n", 110), ("", 0xC3), ("é", 0xA9), ("", END)]
    assert [p.finish_reason for p in pieces] == [None, None, None, "stop"]


def test_an_interruption_ends_the_answer_with_what_was_said(tmp_path: Path) -> None:
    said: list[Piece] = []
    model, _ = fake_model(tmp_path, says("a long answer 🙂"))
    for piece in model.stream("hi", GenerateOptions(interrupted=lambda: len(said) == 3)):
        said.append(piece)
    assert "".join(p.text for p in said) == "a l"
    assert (said[-1].token_id, said[-1].finish_reason) == (None, "interrupted")
    assert collect(said).generated_tokens == 3


def test_an_interruption_during_the_prompt_runs_no_further_chunk(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, says("yes"), prefill_chunk=4)
    result = model.generate("hi", GenerateOptions(interrupted=lambda: len(engine.steps) == 2))
    assert (result.text, result.finish_reason, result.token_ids) == ("", "interrupted", [])
    assert result.ttft_ms is None and result.decode_tokens_per_s is None and result.prefill_tokens_per_s is None
    assert [len(step) for step in engine.steps] == [4, 4]


def test_the_figures_agree_with_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def clock() -> int:
        return now

    def next_token(history: list[int]) -> int:  # the prompt takes 200 ms, each token after it 10 ms
        nonlocal now
        now += 200_000_000 if history == PROMPT else 10_000_000
        return says("12345")(history)

    monkeypatch.setattr("time.perf_counter_ns", clock)
    model, _ = fake_model(tmp_path, next_token)
    pieces = []
    for piece in model.stream("hi"):
        now += 1_000_000_000  # the caller's own time
        pieces.append(piece)
    timings = pieces[-1].timings
    assert timings.ttft_ms == pytest.approx(200)
    assert timings.prefill_tokens_per_s == pytest.approx(len(PROMPT) / 0.2)
    assert timings.generated_tokens == 6
    assert timings.decode_tokens_per_s == pytest.approx(100)


def test_one_token_has_no_decode_rate(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("abc"))
    result = model.generate("hi", GenerateOptions(max_tokens=1))
    assert result.decode_tokens_per_s is None and result.ttft_ms is not None and result.ttft_ms > 0
    if result.peak_private_mb is not None and result.peak_rss_mb is not None:
        assert 5 < result.peak_private_mb < result.peak_rss_mb < 100_000


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is private")
def test_private_memory_is_told_apart_from_pages_of_files(tmp_path: Path) -> None:
    script = """if True:
        import json, mmap, sys
        from edge.runtime.memory.process import held
        seen = [held()]
        file = open(sys.argv[1], "rb")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        sum(mapped[::4096])
        seen.append(held())
        own = bytearray(60 << 20)
        own[::4096] = bytes(len(own[::4096]))
        seen.append(held())
        del own
        seen.append(held())
        print(json.dumps([[size / 2**20 for size in each] for each in seen]))
    """
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(80 << 20))
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True)
    first, mapped, grown, last = json.loads(done.stdout)
    assert mapped[0] - first[0] < 3 and mapped[2] - first[2] > 70
    assert grown[0] - mapped[0] == pytest.approx(60, abs=3)
    assert last[0] - mapped[0] < 3 and last[1] == grown[1] == grown[0]  # the peak stays
    assert first[3] < 60  # nothing of the process that started it


def test_the_cache_is_no_larger_than_the_answer_can_need(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, says("yes"))
    asked = []
    new_cache = engine.new_cache
    engine.new_cache = lambda capacity=None: (asked.append(capacity), new_cache(capacity))[1]  # type: ignore[method-assign]
    model.generate("hi", GenerateOptions(max_tokens=7))
    model.generate("hi", GenerateOptions(max_tokens=10_000))
    assert asked == [len(PROMPT) + 7, 1000]


def test_a_raw_prompt_goes_without_the_template(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, lambda history: END)
    model.generate("hi", raw=True)
    assert tokens_in(engine.steps) == [BOS, *b"hi"]


def test_a_bundle_without_a_template_gets_the_prompt_as_it_is(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path, lambda history: END, template=None)
    model.generate("hi")
    assert tokens_in(engine.steps) == [BOS, *b"hi"]
    with pytest.raises(InputError, match="system message has no place"):
        model.generate("hi", system="Be brief.")
    with pytest.raises(InputError, match="needs the bundle's chat template"):
        model.generate([{"role": "user", "content": "hi"}])


def test_a_system_message_and_a_conversation_are_rendered(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, lambda history: END)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert model.prompt_ids("hi", system="Be brief.") == model.prompt_ids(talk)
    assert model.text.decode(model.prompt_ids(talk)) == "system\nBe brief.\nuser\nhi\nassistant\n"
    with pytest.raises(InputError, match="a raw prompt takes none"):
        model.prompt_ids("hi", system="Be brief.", raw=True)


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_gets_one_sentence(tmp_path: Path, prompt: str) -> None:
    model, _ = fake_model(tmp_path, lambda history: END)
    for raw in (False, True):
        with pytest.raises(InputError, match="prompt is empty"):
            model.generate(prompt, raw=raw)


@pytest.mark.parametrize("value", [0, -1])
def test_max_tokens_below_one_is_refused(value: int) -> None:
    with pytest.raises(InputError, match=f"must be 1 or more, not {value}"):
        GenerateOptions(max_tokens=value)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="temperature"):
        GenerateOptions(temperature=-1)
    with pytest.raises(InputError, match="stop string is empty"):
        GenerateOptions(stop=["a", ""])


@pytest.mark.parametrize("chunk", [0, -5])
def test_a_prefill_chunk_below_one_is_refused(tiny_bundle: Bundle, chunk: int) -> None:
    with pytest.raises(InputError, match=f"must be 1 token or more, not {chunk}"):
        load(tiny_bundle.root, prefill_chunk=chunk)


def test_a_damaged_bundle_is_refused_by_load(tiny_bundle: Bundle) -> None:
    path = tiny_bundle.path("weights.bin")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.bin is damaged"):
        load(tiny_bundle.root)


def test_a_tokenizer_that_is_damaged_is_named_by_load(tiny_bundle: Bundle) -> None:
    path = tiny_bundle.path("tokenizer.json")
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    with pytest.raises(BundleError, match=r"tokenizer\.json is damaged"):
        load(tiny_bundle.root)


def test_weights_of_another_size_are_refused_before_anything_is_loaded(tiny_bundle: Bundle) -> None:
    tiny_bundle.path("weights.bin").write_bytes(b"short")
    with pytest.raises(BundleError, match=r"weights\.bin is 5 bytes long"):
        start(tiny_bundle.root)


def test_two_models_in_one_process_answer_as_each_does_alone(tiny_bundle: Bundle) -> None:
    options = GenerateOptions(max_tokens=6)
    first, second = load(tiny_bundle.root), load(tiny_bundle.root)
    streams = [first.stream("The moon", options), second.stream("A train", options)]
    together = [collect(s).token_ids for s in streams]
    assert together == [load(tiny_bundle.root).generate(p, options).token_ids for p in ("The moon", "A train")]
    assert first.engine.threads == second.engine.threads


def test_sampling_with_a_seed_repeats_and_greedy_is_the_default(tiny_bundle: Bundle) -> None:
    model = load(tiny_bundle.root)
    drawn = GenerateOptions(max_tokens=12, temperature=2.0, seed=5)
    assert model.generate("The moon", drawn).token_ids == model.generate("The moon", drawn).token_ids
    other = dataclasses.replace(drawn, seed=6)
    assert model.generate("The moon", drawn).token_ids != model.generate("The moon", other).token_ids
    greedy_options = GenerateOptions(max_tokens=12)
    assert model.generate("The moon", greedy_options).token_ids == model.generate("The moon", greedy_options).token_ids
