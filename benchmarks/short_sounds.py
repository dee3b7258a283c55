"""Commands and sentences of about 2, 5 and 10 s: what it saves that the encoder reads little more than the sound, and
what it costs. Peers read a window of 30 s, filled up with silence, whatever the sound's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from comparison import Comparison, Entrant, Part, Run
from engines.decoding_engine import Unavailable
from quality import text_of, word_error
from recordings import Recording, pieces, synthesized
from report import table
from seq2seq.seq2seq_engine import RECORDING
from speed import FORMS, enter_ours

LENGTHS = {2: 5, 5: 13, 10: 26}  # seconds, and words that espeak-ng reads in about that time
OURS = "edge int8"
WHOLE = f"{OURS}, whole windows"


def compare(run: Run, source: Path, heard: Sequence[Recording]) -> Part:
    """Word error rate and milliseconds of short sounds, at temperature 0, with timestamps.

    heard: of these the longest is cut into pieces, whose texts are joined and compared with all that was said.

    Raises:
        Unavailable: jiwer or synthesized speech is missing, or nobody wrote down what was said.
    """
    word_error(())
    work = run.sources.work / "speech"
    long = max(heard, key=lambda one: one.seconds)
    if long.text is None:
        raise Unavailable(f"nobody wrote down what {long.name} says")
    run.say(f"\nShort sounds: pieces of {long.name}, and what espeak-ng reads")
    sounds = {
        seconds: (pieces(long, work, seconds), synthesized(work, run.plan.paragraphs, words))
        for seconds, words in LENGTHS.items()
    }
    compared = Comparison(run, RECORDING)
    enter_ours(compared, source, {OURS: FORMS[OURS]})
    compared.enter(WHOLE, "edge_whole", lambda _: run.sources.bundle(source, *FORMS[OURS]))
    compared.enter("faster-whisper", "faster_whisper_", lambda _: run.sources.ctranslate2(source))
    said: dict[str, dict[str, str]] = {}
    took: dict[str, dict[str, float]] = {}

    def listen(found: Entrant) -> None:
        worker = compared.start(found)
        texts, times = said.setdefault(found.name, {}), took.setdefault(found.name, {})
        try:
            worker.ask("transcribe", pcm=str(long.pcm), beams=1)  # unmeasured
            for one in (one for kinds in sounds.values() for kind in kinds for one in kind):
                got = worker.ask("transcribe", pcm=str(one.pcm), beams=1)
                texts[one.name], times[one.name] = text_of(got["segments"]), got["seconds"]
        finally:
            worker.close()
        run.say(f"Short sounds: {found.name} has heard {len(texts)}")

    compared.each(listen)
    part = Part(f"Whisper base, short sounds, {run.threads} threads", engines=list(said))
    rows = [["sounds", "", "recorded", "synthesized", "other words than in whole windows", "ms, median", "times ours"]]
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    for seconds, (cut, read) in sounds.items():
        label, both = f"{seconds} s: {len(cut)} recorded, {len(read)} synthesized", [*cut, *read]
        ms = {name: 1000 * median(times[one.name] for one in both) for name, times in took.items()}
        for name, texts in said.items():
            errors = {
                "recorded": word_error([(long.text, " ".join(texts[one.name] for one in cut))]),
                "synthesized": word_error([(one.text or "", texts[one.name]) for one in read]),
                "other words": word_error([(said[WHOLE][one.name], texts[one.name]) for one in both]),
            }
            figures.setdefault(f"{seconds} s", {})[name] = errors | {"ms": ms[name]}
            shown = ["-" if error is None else f"{error:.2f} %" for error in errors.values()]
            rows.append([label, name, *shown, f"{ms[name]:.0f}", f"{ms[name] / ms[OURS]:.2f}"])
            label = ""
    part.text = [table(rows)]
    part.skipped = compared.skipped
    part.details = compared.details() | {"figures": figures, "texts": said}
    return part
