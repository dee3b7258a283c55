"""An option is obeyed, or refused in one sentence: none is accepted and ignored."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import fake_model, says
from fake_speech import SPEECH, Script, fake_transcriber, noise, said
from fake_text2text import fake_text2text
from profile_example import example_profile
from texts import SENTENCES

import edge
from edge.bundle import Bundle, BundleWriter
from edge.cli import tune
from edge.cli.arguments import Parser
from edge.cli.main import main
from edge.cli.run import parser
from edge.errors import InputError
from edge.manifest import EncoderDims, Generation, Graph, Manifest, TextFormat
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.providers.threads import share_thread_pool
from edge.runtime.speech.transcribe_options import TranscribeOptions

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command; gives the sentence that it was refused with."""

    def refused(*args: object) -> str:
        capsys.readouterr()
        assert main([str(arg) for arg in args]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("edge: ") and err.count("\n") == 1
        return err

    return refused


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, manifest: Manifest) -> dict[str, Path]:
    """A bundle of each kind, with files that no engine can run."""
    both = dataclasses.replace(
        manifest,
        kind="encoder-decoder",
        graphs=[Graph("decoder", "graphs/decoder.onnx"), Graph("encoder", "graphs/encoder.onnx")],
        encoder=EncoderDims(1, 64, 4, 40, "text"),
        cross=manifest.kv,
        text=TextFormat([], [2], [1]),
    )
    hears = {"encoder": EncoderDims(1, 64, 4, 1500, "audio"), "text": None, "speech": SPEECH}
    found = {}
    for kind, each in {"decoder": manifest, "text": both, "speech": dataclasses.replace(both, **hears)}.items():
        found[kind] = tmp_path_factory.mktemp(kind) / f"{kind}.edge"
        with BundleWriter(found[kind]) as writer:
            for name in ("graphs/decoder.onnx", "graphs/encoder.onnx", "tokenizer.json", "golden.json"):
                writer.write_file(name, "{}")
            writer.commit(each)
    return found


# edge run

SAMPLING = {"temperature", "seed"}
DRAWING = {"circles", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "stop"}
ALWAYS = {"provider", "strict", "help", "json", "threads", "memory", "skip", "output"}
OF_TEXT = {
    *("source_language", "target_language", "n_best", "length_penalty", "early_stopping", "beam_groups", "diversity"),
    *("no_repeat_ngram", "min_tokens", "whole"),
}
OBEYED = {
    "decoder": ALWAYS | SAMPLING | DRAWING
    | {"file", "system", "raw", "date", "speculate", "exact", "batch", "context", "prefill_chunk", "kv", "cluster"}
    | {"think", "think_tokens", "effort", "json_schema", "regex", "grammar", "grammar_sampling"}
    | {"verbose", "no_history"},  # to one answer figures always follow, and no history has its prompt
    "text": ALWAYS | SAMPLING | DRAWING | OF_TEXT | {"file", "context", "exact", "beams", "speculate", "cluster"},
    "speech": ALWAYS | SAMPLING | {"audio", "stdin_pcm", "language", "task", "timestamps", "srt", "vtt"}
    | {"beams", "exact", "speculate"},
}  # fmt: skip
PARSER = Parser("edge run", "")
parser.add_arguments(PARSER)
OPTIONS = [action for action in PARSER._actions if action.option_strings]


def written(action: argparse.Action, zero: bool) -> list[str]:
    """An option as it may stand on the command line."""
    if action.nargs == 0:
        return [action.option_strings[-1]]
    value = next(iter(action.choices)) if action.choices else "0" if zero else "3"
    return [action.option_strings[0], value]


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", OBEYED)
def test_run_refuses_every_option_that_a_kind_of_bundle_does_not_obey(
    kinds: dict[str, Path], refused: Refused, kind: str, zero: bool
) -> None:
    assert OBEYED[kind] <= {action.dest for action in OPTIONS}
    about = {"speech": ["--audio", "talk.wav"]}.get(kind, ["Hello"])
    for action in OPTIONS:
        if action.dest not in OBEYED[kind] and not (zero and str(action.default) in ("0", "0.0")):
            option = written(action, zero)
            sentence = refused("run", kinds[kind], *about, *option)
            named = any(name in sentence for name in action.option_strings)
            assert named or (action.dest in ("file", "lines") and "takes no prompt" in sentence)


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("decoder", ["--top-k", "5"], "at temperature 0 none is drawn; set a temperature above 0, or leave them out"),
        ("decoder", ["--top-p", "0.9"], "at temperature 0 none is drawn"),
        ("decoder", ["--min-p", "0.1", "--seed", "3"], "at temperature 0 none is drawn"),
        ("decoder", ["--language", ""], "--language needs a speech bundle"),
        ("text", ["--top-p", "0.9"], "at temperature 0 none is drawn"),
        ("text", ["--beams", "1", "--length-penalty", "2"], "there is one; ask for 2 or more beams"),
        ("text", ["--beams", "1", "--early-stopping", "false"], "there is one; ask for 2 or more beams"),
        ("text", ["--temperature", "1", "--beams", "2"], "there are no beams"),
        ("speech", ["--temperature", "0.5", "--beams", "5"], "5 beams are for temperature 0"),
    ],
)
def test_run_refuses_options_that_mean_nothing_beside_the_others(
    kinds: dict[str, Path], refused: Refused, kind: str, options: list[str], sentence: str
) -> None:
    about = ["--audio", "talk.wav"] if kind == "speech" else ["Hello"]
    assert sentence in refused("run", kinds[kind], *about, *options)


@pytest.mark.parametrize("option", [["--speculate", "lookup"], ["--speculate", "trigram"]])
def test_a_batch_that_cannot_grow_side_by_side_is_refused(
    refused: Refused, tiny_bundle: Bundle, tmp_path: Path, option: list[str]
) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "out.txt"
    lines.write_text("One\nTwo\n")
    command = ["run", str(tiny_bundle.root), "--lines", str(lines), "--output", str(out), *option]
    assert "2 answers cannot grow side by side" in refused(*command, "--batch", 2)
    assert not list(tmp_path.glob("out*"))
    assert main([*command, "--max-tokens", "2", "--batch", "1"]) == 0


def test_layers_are_left_out_anyway_only_where_some_are(kinds: dict[str, Path], refused: Refused) -> None:
    for skip in ([], ["--skip", "off"]):
        assert "--skip-anyway insists on what --skip leaves out" in refused(
            "run", kinds["decoder"], "Hello", "--skip-anyway", *skip
        )


# Other commands


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["plan", "TEXT", "--speculate", "self"], "self does not serve paper, which turns one text into another"),
        (["plan", "SPEECH", "--context", "100"], "a window at a time; leave out the context"),
        (["eval", "DECODER", "--qa", "lines.jsonl", "--window", "512"], "--window is about a text that is"),
        (["eval", "DECODER", "--qa", "lines.jsonl", "--tokens", "9"], "--tokens is about a text that is"),
        *(
            (["profile", *profiles, f"--{option}", value], f"--{option} says how a bundle is measured")
            for profiles in (["saved.json"], ["--compare", "saved.json", "saved.json"])
            for option, value in {"threads": "2", "seconds": "60", "context": "512", "provider": "cpu"}.items()
        ),
        (["models", "--json", "pull", "whisper-base"], "--json prints the catalog"),
        (["models", "--accept-license"], "--accept-license is about a model to fetch"),
        (["models", "pull"], "edge models takes pull NAME or families, not 'pull'"),
        (["models", "fetch", "whisper-base"], "edge models takes pull NAME or families, not 'fetch whisper-base'"),
        (["tune", "CHECKPOINT", "--policy", "unified", "--penalty", "60"], "unified has no routers"),
        (["tune", "CHECKPOINT", "--policy", "skipdecode", "--penalty", "60"], "skipdecode has no routers"),
        (["tune", "CHECKPOINT", "--policy", "ffn", "--penalty", "60"], "ffn has no routers"),
        (["tune", "x", "--policy", "ffn", "--data", "d.txt", "--answer", "64"], "--answer is about answers of the"),
        (["tune", "x", "--policy", "ffn", "--data", "d.txt", "--temperature", "0"], "with --data alone it gives none"),
        (["tune", "--recipe", "own.toml"], "--answer is about answers of the model's own"),
        (
            ["export", "CHECKPOINT", "--weights", "int8", "--encoder-weights", "int8", "--decoder-weights", "int4"],
            "say all that --weights does",
        ),
    ],
)
def test_what_a_command_would_not_obey_is_refused(
    kinds: dict[str, Path], refused: Refused, six_layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    args: list[str], sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("saved.json").write_text(example_profile().to_json(), encoding="utf-8")
    Path("lines.jsonl").write_text(json.dumps({"question": "Who?", "answer": "me"}))
    Path("own.toml").write_text('model = "x"\npolicy = "first"\ndata = "d.txt"\nanswer = 64\n')
    places = {kind.upper(): str(path) for kind, path in kinds.items()} | {"CHECKPOINT": str(six_layers)}
    out = ["-o", str(tmp_path / "out")] if args[0] in ("tune", "export") else []
    assert sentence in refused(*(places.get(arg, arg) for arg in args), *out)
    assert not (tmp_path / "out").exists()


def test_text_that_is_given_takes_the_place_of_a_recipes_prompts_and_of_what_is_about_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "_run", lambda model, out, options, *others: asked.append(options))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('model = "x"\npolicy = "first"\nprompts = "p.jsonl"\nanswer = 64\ntemperature = 0.6\nseed = 1\n')
    command = ["tune", "--recipe", str(recipe), "-o", str(tmp_path / "out"), "--data", "d.txt"]
    assert main(command) == 0
    assert main([*command, "--prompts", "own.jsonl"]) == 0
    given = {"policy": "first", "seed": 1, "data": Path("d.txt")}
    assert asked == [given, given | {"prompts": Path("own.jsonl"), "answer": 64, "temperature": 0.6}]


def test_operators_are_measured_within_the_context_that_is_asked_for(
    tiny_bundle: Bundle,
) -> None:
    from edge.runtime.profile import ops

    for limit in (40, 300):
        measured = ops.measure(tiny_bundle, seconds=0.1, limit=limit).ops
        assert max((op.context or 0) + op.size for op in measured) <= limit
    with pytest.raises(InputError, match="A context of 4 tokens is too small"):
        ops.measure(tiny_bundle, limit=4)


# The library


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("text", {"prefill_chunk": 64}, "reads no prompt in chunks"),
        ("speech", {"prefill_chunk": 64}, "reads no prompt in chunks"),
        ("text", {"speculate": "cascade"}, "cascade does not serve paper, which turns one text into another"),
        ("speech", {"speculate": "input"}, "input does not serve paper, which transcribes sound"),
        ("decoder", {"speculate": "input"}, "input does not serve paper, which has no encoder"),
        ("text", {"kv": "int8"}, "which keeps float32"),
        ("speech", {"context": 100, "memory": "1GB"}, "leave out the context"),
        ("decoder", {"beams": 0}, "number of beams must be 1 or more"),
    ],
)
def test_load_refuses_what_a_kind_of_bundle_does_not_obey(
    kinds: dict[str, Path], kind: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        edge.load(kinds[kind], **options)


@pytest.mark.parametrize(
    "options", [{"length_penalty": 2.0}, {"early_stopping": False}, {"length_penalty": 0.0, "temperature": 0.5}]
)
def test_one_text_at_a_time_has_no_use_for_what_chooses_among_beams(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whether one is asked for, drawn, or what the bundle sets."""
    model, _ = fake_text2text(tmp_path)
    with pytest.raises(InputError, match="there is one; ask for 2 or more beams"):
        model.generate("hello", Text2TextOptions(**options))
    searching, _ = fake_text2text(tmp_path, generation=Generation(num_beams=2))
    if "temperature" not in options:
        assert searching.generate("hello", Text2TextOptions(**options)).text == "HELLO"


def test_options_of_another_kind_of_model_are_refused(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, says("yes"))
    other: Any = Text2TextOptions(max_tokens=9, beams=4)
    every = model.generate, model.chat().generate, lambda text, options: model.generate_all([text], options)
    for generate in every:
        with pytest.raises(InputError, match="shaped by GenerateOptions, not by Text2TextOptions"):
            generate("Well?", other)
    assert model.generate("Well?", GenerateOptions(max_tokens=9)).text == "yes"


def test_more_answers_side_by_side_than_memory_was_planned_for_are_refused(tiny_bundle: Bundle) -> None:
    model = edge.load(tiny_bundle.root, memory="4GB", beams=2)
    assert isinstance(model, edge.Model)
    with pytest.raises(InputError, match="planned for 2 at a time, and not for 3 answers side by side"):
        model.generate_all(SENTENCES, width=3)
    assert len(model.generate_all(SENTENCES[:2], GenerateOptions(max_tokens=2), width=2)) == 2


def test_beams_of_a_transcription_are_for_temperature_0_and_not_exact(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="5 beams are for temperature 0"):
        TranscribeOptions(beams=5, temperatures=[0.4, 0.8])
    model, engine = fake_transcriber(tmp_path, Script(said(0.0, " One.", 2.0)))
    engine.exact = True
    with pytest.raises(InputError, match="ask for one beam"):
        model.transcribe(noise(2), TranscribeOptions(beams=5))


def test_another_number_of_threads_than_the_pool_has_is_said_once(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pool = share_thread_pool(None)
    monkeypatch.setattr("edge.runtime.providers.threads._told", False)
    for threads in (None, pool):
        edge.load(tiny_bundle.root, threads=threads)
    assert caplog.messages == []
    for _ in range(2):
        edge.load(tiny_bundle.root, threads=pool + 1)
    (said,) = caplog.messages
    assert f"which the first one set to {pool}; the {pool + 1} asked for now are not used." in said
