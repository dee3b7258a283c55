"""Several prompts side by side say what each says alone, whatever layers a policy leaves out."""

from __future__ import annotations

import dataclasses
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.manifest import Graph
from edge.runtime.batch import batch
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.slots import Slots
from edge.runtime.model import Model
from edge.runtime.text.tokenizer import Text

PROMPTS = [
    "The moon",
    "A train leaves at nine and arrives at eleven; how long does it take?",
    "def largest(a, b, c): return max(a, b, c)",
    "Kaffee",
    "Die Bibliothek öffnet um zehn Uhr, und der Kaffee ist schon fertig.",
]
POLICIES = ["off", "unified:0.2", "unified:0.4", "skipdecode:3-6", "skipdecode:4-5"]


def loaded(bundle: Bundle, skip: str = "off", **options: object) -> Model:
    model = edge.load(bundle.root, skip=skip, speculate="off", **options)  # type: ignore[arg-type]
    assert isinstance(model, Model)
    return model


@pytest.mark.parametrize("skip", POLICIES)
@pytest.mark.parametrize("width", [2, 3, 8])
def test_answers_side_by_side_are_those_one_by_one(by_layer: Bundle, skip: str, width: int) -> None:
    model, options = loaded(by_layer, skip), GenerateOptions(max_tokens=24)
    alone = [model.generate(prompt, options) for prompt in PROMPTS]
    together = model.generate_all(PROMPTS, options, width=width)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.finish_reason for each in together] == [each.finish_reason for each in alone]


@pytest.mark.parametrize("skip", POLICIES)
def test_the_next_text_in_a_slot_has_nothing_of_the_last(by_layer: Bundle, skip: str) -> None:
    """Of prompts that are short enough for their steps to be stored."""
    model, options = loaded(by_layer, skip), GenerateOptions(max_tokens=12)
    prompts = ["The moon c", "la la", "A tide ris", "def f(x):", "once", "The wind", "to be"]
    alone = [model.generate(prompt, options, raw=True).token_ids for prompt in prompts]
    for width in (2, 3):
        together = model.generate_all(prompts, options, raw=True, width=width)
        assert [each.token_ids for each in together] == alone


def test_steps_take_as_many_sequences_as_there_are(by_layer: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = Engine.step_all

    def counted(self: Engine, slots: Slots, *given: Any, **more: Any) -> object:
        sizes.append(len(slots.caches))
        return run(self, slots, *given, **more)

    monkeypatch.setattr(Engine, "step_all", counted)
    loaded(by_layer, "unified:0.2").generate_all(PROMPTS, GenerateOptions(max_tokens=9), width=3)
    assert sizes == [3] * 8 + [2] * 8  # the first token of an answer comes of its prompt


@pytest.mark.parametrize(("skip", "width", "reads"), [("off", 8, 1), ("off", 3, 2), ("unified:0.2", 8, 4)])
def test_a_prompt_that_several_answers_have_is_read_once(
    by_layer: Bundle, monkeypatch: pytest.MonkeyPatch, skip: str, width: int, reads: int
) -> None:
    """For those that begin together, unless layers are left out by a text's own rules."""
    sizes: list[int] = []
    model = loaded(by_layer, skip)
    drawn = [GenerateOptions(max_tokens=9, temperature=1.5, seed=seed) for seed in range(4)]
    alone = [model.generate(PROMPTS[1], each) for each in drawn]
    read = batch.prefill
    monkeypatch.setattr(batch, "prefill", lambda *given, **more: sizes.append(0) or read(*given, **more))
    together = model.generate_all([PROMPTS[1]] * 4, drawn, width=width)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert len({each.text for each in together}) > 1 and len(sizes) == reads
    assert all(each.prefill_tokens_per_s is None or each.prefill_tokens_per_s > 0 for each in together)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("fails", [1, 2, None])
def test_answers_that_cannot_have_a_copy_of_a_prompt_end_alone(
    by_layer: Bundle, monkeypatch: pytest.MonkeyPatch, fair: bool, fails: int | None
) -> None:
    model, copies, copy = loaded(by_layer), [0], KVCache.copy

    def failing(self: KVCache, other: KVCache) -> None:
        copies[0] += 1
        if copies[0] == fails:
            raise MemoryError
        copy(self, other)

    monkeypatch.setattr(KVCache, "copy", failing)
    options = [GenerateOptions(max_tokens=1 + n % 3, temperature=1.5, seed=n) for n in range(6)]
    asked = model.asked(PROMPTS[1])
    answers = [BatchAnswer(n, asked, each, model.engine, model.text) for n, each in enumerate(options)]
    growing = batch.Batch(model.engine, model.text, capacity=200, width=4, chunk=8, fair=fair, prefixes=model.prefixes)
    for each in answers:
        growing.add(each)
    ended = []
    while not growing.idle:
        ended += growing.step()
    assert sorted(each.place for each in ended) == [*range(6)]
    assert sum(each.error is not None for each in answers) == (0 if fails is None else fails + 1)
    for each in answers:
        if each.error is None:
            assert each.tokens == model.generate(PROMPTS[1], options[each.place]).token_ids


def test_answers_of_skipdecode_that_fall_at_another_pace_wait(by_layer: Bundle) -> None:
    """Where the context ends before the tokens that are asked for, the layers fall faster: such a long prompt goes
    with none that has more room."""
    model = loaded(by_layer, "skipdecode:3-6", context=128)
    prompts = [PROMPTS[0], "The bus " * 10, PROMPTS[3]]
    options = GenerateOptions(max_tokens=90)
    assert len({min(90, 128 - len(model.prompt_ids(prompt))) for prompt in prompts}) > 1
    alone = [model.generate(prompt, options).token_ids for prompt in prompts]
    assert [each.token_ids for each in model.generate_all(prompts, options)] == alone


def test_an_answer_that_ends_gives_its_place_to_the_next_prompt(by_layer: Bundle) -> None:
    """Stop strings end answers at different lengths; rows of others move into the slots that become free."""
    model = loaded(by_layer, "unified:0.2")
    prompts = [f"{prompt} {i}" for i in range(3) for prompt in PROMPTS]
    letters = sorted({letter for p in prompts for letter in model.generate(p, GenerateOptions(max_tokens=30)).text})
    options = GenerateOptions(max_tokens=30, stop=letters[len(letters) // 2 : len(letters) // 2 + 2])
    alone = [model.generate(prompt, options) for prompt in prompts]
    assert len({each.generated_tokens for each in alone}) > 3
    together = model.generate_all(prompts, options, width=4)
    assert [(a.text, a.token_ids, a.finish_reason) for a in together] == [
        (a.text, a.token_ids, a.finish_reason) for a in alone
    ]


def test_drawn_answers_are_those_of_the_same_seed_alone(tiny_bundle: Bundle) -> None:
    model = loaded(tiny_bundle)
    options = GenerateOptions(max_tokens=16, temperature=0.9, seed=5, repetition_penalty=1.2)
    alone = [model.generate(prompt, options).token_ids for prompt in PROMPTS]
    assert [each.token_ids for each in model.generate_all(PROMPTS, options)] == alone
    assert [model.generate(prompt, options, seed=6).token_ids for prompt in PROMPTS] != alone


@pytest.mark.parametrize("skip", ["off", "skipdecode:3-6"])
def test_a_chat_goes_on_over_prompts_that_are_answered_meanwhile(by_layer: Bundle, skip: str) -> None:
    options, said = GenerateOptions(max_tokens=12), []
    for between in (False, True):
        model = loaded(by_layer, skip)
        chat = model.chat()
        turns = [chat.generate(PROMPTS[0], options).token_ids]
        if between:
            model.generate_all(PROMPTS, options)
        said.append([*turns, *(chat.generate(prompt, options).token_ids for prompt in PROMPTS[1:3])])
    assert said[0] == said[1]


def test_answers_in_another_thread_go_on_while_prompts_are_answered_side_by_side(by_layer: Bundle) -> None:
    options = GenerateOptions(max_tokens=40)
    alone = [loaded(by_layer).generate(prompt, options).token_ids for prompt in PROMPTS]
    model = loaded(by_layer)
    with ThreadPoolExecutor(3) as threads:
        one_by_one = threads.submit(lambda: [model.generate(prompt, options).token_ids for prompt in PROMPTS])
        together = [threads.submit(model.generate_all, PROMPTS, options) for _ in range(2)]
        assert one_by_one.result() == alone
        assert [[each.token_ids for each in run.result()] for run in together] == [alone, alone]


def test_prompts_and_chats_are_answered_as_before_afterwards(by_layer: Bundle) -> None:
    model, options = loaded(by_layer, "skipdecode:3-6"), GenerateOptions(max_tokens=12)
    before = [way(PROMPTS[1], options).token_ids for way in (model.generate, model.chat().generate)]
    model.generate_all(PROMPTS, options)
    assert [way(PROMPTS[1], options).token_ids for way in (model.generate, model.chat().generate)] == before


def test_a_bundle_that_was_exported_earlier_answers_one_prompt_after_the_other(by_layer: Bundle) -> None:
    """Its manifest does not say that steps take several sequences."""
    graphs = [Graph(graph.role, graph.path) for graph in by_layer.manifest.graphs]
    earlier = dataclasses.replace(by_layer, manifest=dataclasses.replace(by_layer.manifest, graphs=graphs))
    model, options = Model(earlier, Engine(earlier), Text(earlier), speculate="off"), GenerateOptions(max_tokens=8)
    alone = [model.generate(prompt, options).token_ids for prompt in PROMPTS]
    assert [each.token_ids for each in model.generate_all(PROMPTS, options)] == alone
    with pytest.raises(InputError, match="takes one prompt at a time, not 3 side by side; export the model again"):
        model.answers(PROMPTS, options, width=3)


def test_a_policy_that_decides_by_the_prompt_answers_one_by_one(by_half: Bundle) -> None:
    model, options = loaded(by_half, "ffn:0.3"), GenerateOptions(max_tokens=8)
    alone = [model.generate(prompt, options).token_ids for prompt in PROMPTS]
    assert [each.token_ids for each in model.generate_all(PROMPTS, options)] == alone


def test_a_prompt_that_does_not_fit_is_named_before_any_is_answered(by_layer: Bundle) -> None:
    model = loaded(by_layer, context=64)
    with pytest.raises(InputError, match=r"Prompt 2: The prompt has \d+ tokens and the context holds 64"):
        model.answers(["a", "long " * 100])
    with pytest.raises(InputError, match="Prompt 1: .*empty"):
        model.answers([" "])
    with pytest.raises(InputError, match="side by side must be 1 or more, not 0"):
        model.answers(["a"], width=0)


def test_interrupted_answers_are_what_they_have(by_layer: Bundle) -> None:
    model, asked = loaded(by_layer, "unified:0.2"), iter(range(10_000))
    options = GenerateOptions(max_tokens=50, interrupted=lambda: next(asked) > 30)
    found = model.generate_all(PROMPTS, options, width=3)
    assert [each.finish_reason for each in found] == ["interrupted"] * 5
    whole = [model.generate(prompt, GenerateOptions(max_tokens=50)).token_ids for prompt in PROMPTS]
    lengths = [len(each.token_ids) for each in found]
    assert [each.token_ids for each in found] == [ids[:n] for ids, n in zip(whole, lengths, strict=True)]
    assert lengths.count(0) == 2 and max(lengths) > 5


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join([PROMPTS[0], "", *PROMPTS[1:]]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("skip", ["unified:0.2", "skipdecode:3-6"])
def test_the_command_answers_a_file_of_prompts_in_their_order(
    by_layer: Bundle, prompts_file: Path, tmp_path: Path, skip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    command = ["run", str(by_layer.root), "--lines", str(prompts_file), "--output", str(out), "--skip", skip]
    assert main([*command, "--max-tokens", "12", "--json"]) == 0
    assert "5 lines · " in capsys.readouterr().err
    objects = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [each["prompt"] for each in objects] == [PROMPTS[0], "", *PROMPTS[1:]]
    assert [each["line"] for each in objects] == list(range(1, len(PROMPTS) + 2))
    assert objects.pop(1)["token_ids"] == []
    model = loaded(by_layer, skip)
    alone = [model.generate(prompt, GenerateOptions(max_tokens=12)).token_ids for prompt in PROMPTS]
    assert [each["token_ids"] for each in objects] == alone


def test_answers_to_prompts_are_printed_in_their_order_too(
    by_layer: Bundle, prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where shorter ones are done before."""
    out = tmp_path / "out.txt"
    command = ["run", str(by_layer.root), "--lines", str(prompts_file), "--max-tokens", "9", "--batch", "2"]
    assert main([*command, "--output", str(out)]) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")


def stop_after_an_answer(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it, with Ctrl-C once the first answer is kept."""
    from edge.cli.run.lines import AnswerOutput

    add, pressed = AnswerOutput.add, list[int]()

    def press(self: AnswerOutput, place: int, shown: str) -> None:
        add(self, place, shown)
        pressed.append(place)
        if len(pressed) == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerOutput, "add", press)
        assert main(command) == 130


def test_a_file_of_prompts_that_was_stopped_goes_on(
    by_layer: Bundle, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out.txt"
    command = ["run", str(by_layer.root), "--lines", str(prompts_file), "--output", str(out), "--max-tokens", "9"]
    assert main([*command, "--batch", "2"]) == 0
    whole = out.read_text(encoding="utf-8")
    out.unlink()

    capsys.readouterr()
    stop_after_an_answer([*command, "--batch", "2"], monkeypatch)
    assert "of 5 lines done" in capsys.readouterr().err and not out.exists()
    assert main([*command, "--batch", "3"]) == 0
    assert "lines were done already" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "--context 128"),
        ("", "--no-exact"),
        ("", "--memory 8GB"),
        ("", "--prefill-chunk 16"),
        ("", "--skip unified:0.2"),
        ("", "--kv float32"),
        ("--memory 8GB", "--memory 8GB --batch 3"),
    ],
)
def test_what_another_command_left_of_prompts_is_not_mixed_in(
    by_layer: Bundle, prompts_file: Path, tmp_path: Path, before: str, after: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out.txt"
    command = ["run", str(by_layer.root), "--lines", str(prompts_file), "--output", str(out), "--max-tokens", "9"]
    stop_after_an_answer([*command, "--batch", "2", *before.split()], monkeypatch)
    kept = out.with_name("out.txt.part").read_bytes()
    assert main([*command, *after.split()]) == 2
    assert "other options or another bundle" in capsys.readouterr().err
    assert out.with_name("out.txt.part").read_bytes() == kept


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["hello", "--batch", "2"], "--batch says how many lines of a file"),
        (["--lines", "{file}", "--output", "{out}", "--batch", "0"], "--batch must be 1 or more, not 0"),
        (["hello", "--output", "{out}"], "redirect the output"),
        (["--lines", "{file}", "--output", "{out}", "--context", "24"], "Line 3 of {file}: The prompt has"),
        (["--lines", "{file}", "--output", "{out}", "--skip", "skipdecode:5-3"], "skipdecode:5-3 does not go from"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    by_layer: Bundle, prompts_file: Path, tmp_path: Path, options: list[str], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out.txt"
    given = [each.format(file=prompts_file, out=out) for each in options]
    assert main(["run", str(by_layer.root), *given]) == 2
    assert said.format(file=prompts_file) in capsys.readouterr().err
    assert list(tmp_path.glob("out*")) == []
