"""`edge run` with a speech bundle: what is printed where, files, live recordings, bad input, Ctrl-C."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_speech import DE, PREVIOUS, RATE, TRANSLATE, FakeSpeechEngine, Script, fake_transcriber, noise, said
from sounds import write_wave

from edge.bundle import Bundle
from edge.runtime.speech.segments import Segment

ONE = Script(said(0.0, " One.", 12.5, 13.0, " Two.", 30.0, 30.0))
THREE = Script(said(0.0, " Three.", 2.0))
SRT = (
    "1\n00:00:00,000 --> 00:00:12,500\nOne.\n\n2\n00:00:13,000 --> 00:00:30,000\nTwo.\n\n"
    "3\n00:00:30,000 --> 00:00:32,000\nThree.\n\n"
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake(tmp_path: Path, serve: Callable) -> Callable[..., FakeSpeechEngine]:
    """Puts a model that hears certain things in the place of every bundle."""

    def fake(*scripts: Script) -> FakeSpeechEngine:
        model, engine = fake_transcriber(tmp_path / "x.edge", *scripts or (ONE, THREE))
        serve(model, engine)
        return engine

    return fake


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A sound file of 33 seconds."""
    return write_wave(tmp_path / "talk.wav", noise(33))


def test_a_transcript_goes_to_standard_output_and_one_line_of_figures_to_standard_error(
    run: Run, fake: Callable, talk: Path
) -> None:
    fake()
    status, out, err = run("x.edge", "--audio", talk)
    assert (status, out) == (0, "One.\nTwo.\nThree.\n")
    assert err.startswith("en · 33.0 s heard in ") and "3 segments" in err and "MB private" in err
    assert err.count("\n") == 1


def test_each_format_is_printed(run: Run, fake: Callable, talk: Path) -> None:
    for option, wanted in (
        ("--timestamps", "[00:00.000 --> 00:12.500] One.\n"),
        ("--srt", SRT),
        ("--vtt", "WEBVTT\n\n00:00.000 --> 00:12.500\nOne.\n\n"),
    ):
        fake()
        assert run("x.edge", "--audio", talk, option)[1].startswith(wanted)
    fake()
    status, out, err = run("x.edge", "--audio", talk, "--json")
    transcript = json.loads(out)
    assert (status, err, transcript["text"], transcript["complete"]) == (0, "", "One. Two. Three.", True)
    assert transcript["segments"][1]["start"] == 13.0 and transcript["duration"] == 33.0


@pytest.mark.parametrize(
    ("name", "option", "begin"),
    [("a.srt", None, "1\n00:00"), ("a.VTT", None, "WEBVTT"), ("a.json", None, "{"), ("a", None, "One."),
     ("a.txt", "--vtt", "WEBVTT"), ("a.VTT", "--vtt", "WEBVTT"), ("a", "--timestamps", "[00:00")],
)  # fmt: skip
def test_a_file_gets_the_format_that_its_name_or_an_option_asks_for(
    run: Run, fake: Callable, talk: Path, tmp_path: Path, name: str, option: str | None, begin: str
) -> None:
    fake()
    status, out, _ = run("x.edge", "--audio", talk, "--output", tmp_path / name, *([option] if option else []))
    assert (status, out) == (0, "") and (tmp_path / name).read_text().startswith(begin)


@pytest.mark.parametrize("option", ["--srt", "--vtt", "--json", "--timestamps"])
@pytest.mark.parametrize("ending", ["srt", "VTT", "json"])
def test_an_option_and_a_name_that_ask_for_two_formats_are_refused(
    run: Run, fake: Callable, talk: Path, tmp_path: Path, option: str, ending: str
) -> None:
    fake()
    if option == f"--{ending.lower()}":
        return
    file = tmp_path / f"a.{ending}"
    status, out, err = run("x.edge", "--audio", talk, "--output", file, option)
    assert (status, out) == (2, "") and not file.exists()
    assert f"{option} and the name {file} ask for two formats" in err and err.count("\n") == 1


def test_options_reach_the_model(run: Run, fake: Callable, talk: Path) -> None:
    engine = fake()
    run("x.edge", "--audio", talk, "--language", "DE", "--task", "translate")
    assert engine.prompts[0][1:] == [DE, TRANSLATE] and PREVIOUS in engine.prompts[1]


def test_a_temperature_is_where_the_fallback_begins(run: Run, fake: Callable, tmp_path: Path) -> None:
    short = write_wave(tmp_path / "short.wav", noise(2))
    for given, last in (("0", 1.0), ("0.5", 0.9), ("1", 1.0), ("1.5", 1.5)):
        fake(Script(said(0.0, " Never sure.", 1.0), sure=3.0))
        transcript = json.loads(run("x.edge", "--audio", short, "--temperature", given, "--json")[1])
        assert {segment["temperature"] for segment in transcript["segments"]} == {last}


def test_segments_are_written_through_as_they_come(run: Run, fake: Callable, talk: Path, tmp_path: Path) -> None:
    seen, output = [], tmp_path / "a.txt"
    before_each_window(fake(), lambda: seen.append(output.read_text() if output.exists() else None))
    run("x.edge", "--audio", talk, "--output", output)
    assert seen == [None, "One.\nTwo.\n"]


@pytest.mark.parametrize(("option", "most"), [("--srt", 2), ("--json", 9)])
def test_only_json_keeps_segments_to_its_end(run: Run, fake: Callable, tmp_path: Path, option: str, most: int) -> None:
    engine, kept = fake(Script(said(0.0, " Again.", 30.0, 30.0))), []
    before_each_window(engine, lambda: kept.append(sum(type(each) is Segment for each in gc.get_objects()) - before))
    gc.collect()
    before = sum(type(each) is Segment for each in gc.get_objects())
    out = run("x.edge", "--audio", write_wave(tmp_path / "long.wav", noise(300)), option)[1]
    assert out.count("Again.") >= 10 and len(kept) == 10
    assert kept[-1] <= most and (option == "--srt" or kept[-1] == most)


def test_damage_in_the_middle_keeps_what_was_transcribed(run: Run, fake: Callable, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = noise(40)
    samples[35 * RATE] = np.nan
    soundfile.write(tmp_path / "talk.wav", samples, RATE, subtype="FLOAT")
    fake()
    status, out, err = run("x.edge", "--audio", tmp_path / "talk.wav", "--json")
    transcript = json.loads(out)
    assert status == 2 and "is damaged: sample 560,000, at 35.00 s, is nan" in err
    assert transcript["text"] == "One. Two. Three." and not transcript["complete"]


def pcm(seconds: float) -> bytes:
    """Noise as it is piped in."""
    return (noise(seconds) * 32767).astype("<i2").tobytes()


def before_each_window(engine: FakeSpeechEngine, act: Callable[[], object]) -> None:
    """Let something happen whenever a window is heard."""
    heard = engine.encode_audio

    def encode_audio(*args: Any, **options: Any) -> Any:
        act()
        return heard(*args, **options)

    engine.encode_audio = encode_audio  # type: ignore[method-assign]


def press_at_window(engine: FakeSpeechEngine, window: int, times: int = 1) -> None:
    """Ctrl-C while a window is heard."""

    def press() -> None:
        if len(engine.windows) == window:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    before_each_window(engine, press)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_with_what_was_finished_and_status_130(
    run: Run, fake: Callable, talk: Path, tmp_path: Path, times: int
) -> None:
    press_at_window(fake(), 1, times)
    status, _, err = run("x.edge", "--audio", talk, "--output", tmp_path / "a.json")
    transcript = json.loads((tmp_path / "a.json").read_text())
    assert status == 130 and "Traceback" not in err
    assert transcript["text"] == "One. Two." and not transcript["complete"]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", ["a.txt", "a.srt", "a.vtt", "a.json"])
def test_an_interruption_is_said_as_one_and_leaves_no_file_without_a_segment(
    run: Run, fake: Callable, talk: Path, tmp_path: Path, name: str, times: int
) -> None:
    press_at_window(fake(), 0, times)
    status, out, err = run("x.edge", "--audio", talk, "--output", tmp_path / name)
    assert (status, out) == (130, "") and not (tmp_path / name).exists()
    assert err.endswith(f"interrupted, nothing was written to {tmp_path / name}\n")
    assert err.count("\n") == 1 and "nothing was said" not in err
    press_at_window(fake(), 1, times)
    status, _, err = run("x.edge", "--audio", talk, "--output", tmp_path / name)
    assert status == 130 and "Two." in (tmp_path / name).read_text()
    assert err.endswith(f"interrupted, {tmp_path / name} has what was understood until then\n")


def test_a_link_that_is_planted_while_the_model_computes_is_not_written_through(
    run: Run, fake: Callable, talk: Path, tmp_path: Path
) -> None:
    engine, output, secret = fake(), tmp_path / "a.txt", tmp_path / "secret"
    secret.write_text("secret")
    before_each_window(engine, lambda: engine.windows or output.symlink_to(secret))
    assert run("x.edge", "--audio", talk, "--output", output)[0] == 0
    assert secret.read_text() == "secret" and not output.is_symlink()
    assert output.read_text() == "One.\nTwo.\nThree.\n"


def test_a_link_that_leads_nowhere_is_refused_and_one_to_a_file_stays_one(
    run: Run, fake: Callable, talk: Path, tmp_path: Path
) -> None:
    output, other = tmp_path / "a.txt", tmp_path / "other.txt"
    output.symlink_to(other)
    fake()
    status, _, err = run("x.edge", "--audio", talk, "--output", output)
    assert status == 2 and "is a link that leads nowhere" in err and not other.exists()
    other.write_text("earlier, and longer than what comes")
    fake()
    assert run("x.edge", "--audio", talk, "--output", output)[0] == 0
    assert output.is_symlink() and other.read_text() == "One.\nTwo.\nThree.\n"


ALONE = """
import dataclasses
import sys
import time
from pathlib import Path
from fake_speech import Script, fake_transcriber, said
from edge.runtime.engine.variant import PLAIN
from edge.runtime.load import Loading
import edge.cli.run.source, edge.runtime.load
from edge.cli.main import main
model, engine = fake_transcriber(Path(sys.argv[1]) / "x.edge", Script(said(0.0, " One.", 2.0)))
edge.runtime.load.start = lambda bundle, asked: Loading(model.bundle, asked, PLAIN, engine)
edge.cli.run.source.open_source = lambda path: model.bundle
import edge.cli.run.speech as speech
import edge.runtime.speech.audio as audio
def say(what):
    print(what, file=sys.stderr, flush=True)
def aloud(blocks):
    say("reading")
    yield next(blocks)
    say("read")
    yield from blocks
from_pcm = audio.from_pcm
def from_pcm_aloud(*given):
    sound = from_pcm(*given)
    return dataclasses.replace(sound, blocks=aloud(sound.blocks))
audio.from_pcm = from_pcm_aloud
begin = speech._Output.begin
def begin_aloud(self, running):
    begin(self, running)
    say("ready")
def hear(*args, **options):
    say("hearing")
    time.sleep(60)
engine.encode_audio = hear
speech._Output.begin = begin_aloud
sys.exit(main(["run", "x.edge", "--stdin-pcm"]))
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_a_recording_whose_pipe_stays_open_without_a_crash(tmp_path: Path, times: int) -> None:
    # Its thread reads standard input when Python ends.
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, tmp_path],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        text=True,
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == ["ready\n", "reading\n"]
        if times == 2:
            process.stdin.write("sound " * 4000)
            process.stdin.flush()
            assert process.stderr.readline() == "read\n"
        process.send_signal(signal.SIGINT)
        if times == 2:  # the first ends the recording, of which this is heard
            assert process.stderr.readline() == "hearing\n"
            process.send_signal(signal.SIGINT)
        status = process.wait(30)
        assert (status, process.stderr.read()) == (130, "interrupted\n")


def test_samples_are_read_from_a_pipe(run: Run, fake: Callable, pipe: Callable) -> None:
    engine = fake(Script(said(0.0, " Live.", 1.0)))
    pipe(pcm(5))
    status, out, err = run("x.edge", "--stdin-pcm")
    assert (status, out) == (0, "Live.\n") and "5.0 s heard" in err
    assert np.abs(np.concatenate(engine.windows) - noise(5)).max() < 1e-4


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (0, "Standard input ended without a sample; pipe 16-bit mono samples at 16,000 Hz into it."),
        (0.05, "There is 0.05 s of sound, and nothing can be said in less than 0.1 s."),
    ],
)
def test_a_pipe_with_too_little_gets_a_sentence(
    run: Run, fake: Callable, pipe: Callable, seconds: float, sentence: str
) -> None:
    fake()
    pipe(pcm(seconds))
    assert run("x.edge", "--stdin-pcm") == (2, "", f"edge: {sentence}\n")


def test_ctrl_c_ends_a_recording_whose_end_is_still_transcribed(run: Run, fake: Callable, pipe: Callable) -> None:
    engine = fake(ONE, Script(said(0.0, " Last words.", 2.0)))
    pipe(pcm(33))

    def press() -> None:
        while sys.stdin.buffer.tell() < 33 * 2 * RATE:  # all of it was said
            time.sleep(0.05)
        if not engine.windows:
            time.sleep(0.05)
            signal.raise_signal(signal.SIGINT)

    before_each_window(engine, press)
    status, out, _ = run("x.edge", "--stdin-pcm")
    assert (status, out) == (0, "One.\nTwo.\nLast words.\n")


def test_ctrl_c_ends_a_source_that_is_faster_than_the_model(
    run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flood(io.RawIOBase):
        """Two hours of sound that are there at once."""

        left, data = 7200, (noise(1) * 32767).astype("<i2").tobytes()

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return self.data if self.left >= 0 else b""

    engine = fake(Script(said(0.0, " More.", 30.0, 30.0)))
    press_at_window(engine, 1)
    flood = Flood()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=flood, isatty=lambda: False))
    assert run("x.edge", "--stdin-pcm")[0] == 0
    assert flood.left > 6000 and len(engine.windows) < 30


def test_where_nothing_was_said_it_says_so(run: Run, fake: Callable, tmp_path: Path) -> None:
    fake()
    status, out, err = run("x.edge", "--audio", write_wave(tmp_path / "a.wav", np.zeros(RATE // 5)))
    assert (status, out) == (0, "") and "no language" in err and "nothing was said" in err


def test_progress_is_drawn_on_a_terminal_and_cleared(
    run: Run, fake: Callable, talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    err = run("x.edge", "--audio", talk)[2]
    assert "\r00:30 of 00:33, 91%, " in err
    assert err.rpartition("\r\x1b[K")[2].startswith("en · 33.0 s")
    assert err.count("\r\x1b[K") == 2, "the line is cleared before segments are printed"


def test_progress_stays_while_a_file_is_written(
    run: Run, fake: Callable, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fake()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seen = []  # what the terminal shows
    before_each_window(engine, lambda: seen.append(sys.stderr.getvalue().rpartition("\r")[2]))
    err = run("x.edge", "--audio", talk, "--output", tmp_path / "a.srt")[2]
    assert seen[0] == "00:00 of 00:33, 0%\x1b[K" and seen[1].startswith("00:30 of 00:33, 91%, ")
    assert err.rpartition("\r\x1b[K")[2].startswith("en · 33.0 s")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "transcribes sound; name a file with --audio or pipe one into --stdin-pcm"),
        (("hello",), "transcribes sound and takes no prompt; name a sound file with --audio"),
        (("TALK",), "takes no prompt; write --audio TALK"),
        (("-f", "TALK"), "takes no prompt; write --audio TALK"),
        (("--audio", "none.wav"), "The sound file none.wav cannot be read: No such file or directory"),
        (("--audio", "TALK", "--stdin-pcm"), "two sounds, --audio and --stdin-pcm"),
        (("--audio", "TALK", "--language", "klingon"), "'klingon' is not the code of a language that this model knows"),
        (("--audio", "TALK", "--language", ""), "'' is not the code of a language that this model knows"),
        (("--audio", "TALK", "--task", ""), "The task must be one of translate, transcribe for this model, not ''"),
        (("--audio", "TALK", "--task", "sing"), "The task must be one of translate, transcribe for this model"),
        (("--audio", "TALK", "--srt", "--vtt"), "--srt and --vtt are two formats"),
        (("--audio", "TALK", "--json", "--timestamps"), "--timestamps and --json are two formats"),
        (("--audio", "TALK", "--system", "s"), "transcribes sound and has no use for --system"),
        (("--audio", "TALK", "--top-k", "3"), "has no use for --top-k"),
        (("--audio", "TALK", "--max-tokens", "3"), "has no use for --max-tokens"),
        (("--audio", "TALK", "--beams", "0"), "number of beams must be 1 or more, not 0"),
        (("--audio", "TALK", "--temperature", "-1"), "temperature must be a number of 0 or more, not -1.0"),
        (("--audio", "TALK", "--temperature", "nan"), "temperature must be a number of 0 or more, not nan"),
        (("--audio", "TALK", "--seed", "-1"), "seed must be"),
        (("--audio", "TALK", "--output", "no/such/folder/a"), "no/such/folder/a cannot be written: No such file"),
        (("--audio", "TALK", "--output", "TALK"), "The transcript would overwrite the recording TALK"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_sentence_and_status_2(
    run: Run, fake: Callable, talk: Path, args: tuple[str, ...], sentence: str
) -> None:
    fake()
    status, out, err = run("x.edge", *(str(talk) if arg == "TALK" else arg for arg in args))
    assert (status, out) == (2, "")
    assert sentence.replace("TALK", str(talk)) in err
    assert err.startswith("edge: ") and err.endswith(".\n") and err.count("\n") == 1


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_recording_is_not_overwritten_under_another_name(run: Run, fake: Callable, talk: Path, link: str) -> None:
    fake()
    before, other = talk.read_bytes(), talk.parent / "other.txt"
    getattr(other, link)(talk)
    status, out, err = run("x.edge", "--audio", talk, "--output", other)
    assert (status, out) == (2, "") and talk.read_bytes() == before
    assert err == f"edge: The transcript would overwrite the recording {talk}; name another file with --output.\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"no sound at all " * 100, "talk.wav "),  # what is said depends on the libraries that are there
        (b"", "talk.wav is an empty file; there is nothing to hear in it."),
        (0, "talk.wav has no samples; there is nothing to hear in it."),
        (0.05, "There is 0.05 s of sound, and nothing can be said in less than 0.1 s."),
    ],
    ids=["no audio", "no bytes", "no samples", "50 ms"],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_file_without_sound_gets_one_sentence_and_status_2(
    run: Run, fake: Callable, tmp_path: Path, content: bytes | float, sentence: str, form: str
) -> None:
    fake()
    path = tmp_path / "talk.wav"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_wave(path, noise(content))
    status, out, err = run("x.edge", "--audio", path, *(["--json"] if form == "json" else []))
    assert (status, out) == (2, "") and sentence in err
    assert err.startswith("edge: ") and err.endswith("\n") and err.count("\n") == 1


def test_a_terminal_as_a_microphone_is_told_how_to_pipe_one(
    run: Run, fake: Callable, pipe: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    pipe(pcm(1))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    status, _, err = run("x.edge", "--stdin-pcm")
    assert status == 2 and "pipe samples into it: arecord" in err


def test_a_failed_start_leaves_an_earlier_transcript(run: Run, fake: Callable, tmp_path: Path) -> None:
    fake()
    (tmp_path / "a.txt").write_text("earlier")
    assert run("x.edge", "--audio", "none.wav", "--output", tmp_path / "a.txt")[0] == 2
    assert (tmp_path / "a.txt").read_text() == "earlier"


@pytest.mark.parametrize("name", ["a.txt", "a.vtt", "a.json"])
def test_a_failure_before_the_first_segment_leaves_an_earlier_transcript(
    run: Run, fake: Callable, tmp_path: Path, pipe: Callable, name: str
) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "talk.wav", np.full(RATE, np.nan, np.float32), RATE, subtype="FLOAT")
    (tmp_path / name).write_text("earlier")
    fake()
    status, _, err = run("x.edge", "--audio", tmp_path / "talk.wav", "--output", tmp_path / name)
    assert status == 2 and "is damaged: sample 0" in err
    assert (tmp_path / name).read_text() == "earlier"
    pipe(pcm(0))
    assert run("x.edge", "--stdin-pcm", "--output", tmp_path / name)[0] == 2
    assert (tmp_path / name).read_text() == "earlier"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_before_the_first_segment_leaves_an_earlier_transcript(
    run: Run, fake: Callable, talk: Path, tmp_path: Path, times: int
) -> None:
    press_at_window(fake(), 0, times)
    (tmp_path / "a.json").write_text("earlier")
    assert run("x.edge", "--audio", talk, "--output", tmp_path / "a.json")[0] == 130
    assert (tmp_path / "a.json").read_text() == "earlier"


def test_a_transcript_takes_the_place_of_a_longer_one(run: Run, fake: Callable, talk: Path, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text("earlier\n" * 100)
    fake()
    assert run("x.edge", "--audio", talk, "--output", tmp_path / "a.srt")[0] == 0
    assert (tmp_path / "a.srt").read_text() == SRT
    silence = write_wave(tmp_path / "silence.wav", np.zeros(RATE))
    assert run("x.edge", "--audio", silence, "--output", tmp_path / "a.srt")[0] == 0
    assert (tmp_path / "a.srt").read_text() == ""


def test_a_transcript_goes_to_what_is_no_file(run: Run, fake: Callable, talk: Path) -> None:
    fake()
    assert run("x.edge", "--audio", talk, "--output", "/dev/null")[:2] == (0, "")


@pytest.mark.parametrize("option", ["--audio=talk.wav", "--stdin-pcm", "--srt", "--vtt", "--timestamps", "--task=x"])
def test_a_bundle_that_reads_text_refuses_sound(run: Run, tiny_bundle: Bundle, option: str) -> None:
    status, out, err = run(tiny_bundle.root, "hi", option)
    assert (status, out) == (2, "")
    assert f"reads text and hears no sound; {option.partition('=')[0]} needs a speech bundle" in err
