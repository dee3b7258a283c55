"""What a bundle's weights cost: BLEU of the translator, and words and times of Whisper, beside Torch in float32."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from comparison import Comparison, Entrant, Part, Run
from engines.decoding_engine import Unavailable
from recordings import Recording
from report import Goal, table
from seq2seq.seq2seq_engine import RECORDING, TEXT
from speed import FORMS, enter_ours

TORCH = "Torch float32"
BUNDLES = {"edge fp32": ("fp32", "fp32"), **FORMS}
MOST, BATCH = 60, 50  # tokens of a translation; sentences that Torch translates at a time
BLEU_LIMITS = {"edge int8": 0.2, "edge int4": 0.5}
WER_LIMIT, SHIFT_S = 0.5, 0.1
OTHER_WORDS, WITHIN = "other words than Torch", "times within 0.1 s"
Segments = list[tuple[float, float, str]]


def translations(run: Run, source: Path, sentences: Sequence[str], references: Sequence[str]) -> Part:
    """BLEU of whole translations, greedily and with 4 beams.

    Raises:
        Unavailable: sacrebleu is not installed, or Torch's translations are missing.
    """
    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        raise Unavailable("sacrebleu is not installed") from None
    run.say("\nTranslator: BLEU")
    count = min(run.plan.sentences or len(sentences), len(sentences))
    compared = _entrants(run, TEXT, source, "ctranslate2", "ctranslate")
    bleu: dict[str, dict[int, float]] = {}

    def score(found: Entrant) -> None:
        assert found.worker is not None
        got = bleu.setdefault(found.name, {})
        for beams in (1, 4):
            said = found.worker.ask("translate", texts=list(sentences[:count]), beams=beams, n=MOST, batch=BATCH)
            got[beams] = corpus_bleu(said["texts"], [list(references[:count])]).score
        run.say(f"BLEU: {found.name} {got[1]:.2f} greedy, {got[4]:.2f} with 4 beams")

    _one_by_one(compared, score)
    rows = [["", "greedy", "beam 4", "greedy - Torch", "beam 4 - Torch"]]
    rows += [
        [name, *(f"{got[b]:.2f}" for b in (1, 4)), *(f"{got[b] - bleu[TORCH][b]:+.2f}" for b in (1, 4))]
        for name, got in bleu.items()
    ]
    part = Part(f"Translator, sacrebleu on {count} sentences of Multi30k's test 2016", engines=list(bleu))
    part.text = [table(rows)]
    part.goals = [
        Goal(f"BLEU lost, {label}, {name}", bleu[TORCH][beams] - bleu[name][beams], limit, False)
        for name, limit in BLEU_LIMITS.items()
        if name in bleu
        for beams, label in ((1, "greedy"), (4, "beam 4"))
    ]
    part.skipped, part.details = compared.skipped, compared.details() | {"bleu": bleu, "sentences": count}
    return part


def transcripts(run: Run, source: Path, heard: Sequence[Recording]) -> Part:
    """Word error rate and the times of segments, greedily.

    Raises:
        Unavailable: jiwer is not installed, or Torch's transcripts are missing.
    """
    word_error(())  # whether it can be told, before anybody listens
    run.say("\nWhisper: word error rate")
    compared = _entrants(run, RECORDING, source, "faster-whisper", "faster_whisper_")
    said: dict[str, dict[str, Segments]] = {}

    def listen(found: Entrant) -> None:
        assert found.worker is not None
        got = said.setdefault(found.name, {})
        for one in heard:
            got[one.name] = found.worker.ask("transcribe", pcm=str(one.pcm), beams=1)["segments"]
        run.say(f"Whisper: {found.name} has heard {len(heard)} recordings")

    _one_by_one(compared, listen)
    kinds: dict[str, Callable[[Recording], bool]] = {
        "recorded": lambda r: not r.synthesized,
        "synthesized": lambda r: r.synthesized,
        "all": lambda r: True,
    }
    figures: dict[str, dict[str, float | None]] = {}
    for name, got in said.items():
        texts = {one.name: text_of(got[one.name]) for one in heard}
        figures[name] = {
            kind: word_error([(one.text, texts[one.name]) for one in heard if one.text and chosen(one)])
            for kind, chosen in kinds.items()
        }
        figures[name][OTHER_WORDS] = word_error([(text_of(said[TORCH][n]), text) for n, text in texts.items()])
        figures[name] |= times([(said[TORCH][one.name], got[one.name]) for one in heard])
    columns = [*kinds, OTHER_WORDS, WITHIN, "largest shift", "cut elsewhere"]
    units = ["%", "%", "%", "%", "%", "s", "%"]
    rows = [["", *columns]]
    rows += [
        [name, *("-" if got[c] is None else f"{got[c]:.2f} {u}" for c, u in zip(columns, units, strict=True))]
        for name, got in figures.items()
    ]
    seconds, known = sum(one.seconds for one in heard), sum(len(words(one.text or "").split()) for one in heard)
    part = Part(f"Whisper base, word error rate: {len(heard)} recordings, {seconds:.0f} s, {known} words")
    part.engines, part.text = list(figures), [table(rows)]
    for name in (n for n in figures if n in BUNDLES):
        rate, base = figures[name]["all"], figures[TORCH]["all"]
        if rate is not None and base is not None:
            part.goals.append(Goal(f"word error rate above Torch's, points, {name}", rate - base, WER_LIMIT, False))
        share = figures[name][WITHIN]
        if share is not None:
            part.goals.append(Goal(f"segments' times within {SHIFT_S} s of Torch's, %, {name}", share, 100.0, True))
    part.skipped = compared.skipped
    part.details = compared.details() | {"figures": figures, "segments": said}
    return part


def word_error(pairs: Sequence[tuple[str, str]]) -> float | None:
    """The word error rate of (reference, hypothesis), in percent; None where nothing was said.

    Raises:
        Unavailable: jiwer is not installed.
    """
    try:
        from jiwer import process_words
    except ImportError:
        raise Unavailable("jiwer is not installed") from None
    both = [(words(a), words(b)) for a, b in pairs]
    both = [(a, b) for a, b in both if a]
    return 100 * process_words([a for a, _ in both], [b for _, b in both]).wer if both else None


def words(text: str) -> str:
    """What counts in a text: lower-case words. Case, punctuation, hyphens and "mister" are matters of taste."""
    text = re.sub(r"[^\w' ]", "", re.sub(r"[-\u2013\u2014\s]+", " ", text.lower().replace("\u2019", "'")))
    return " ".join("mr" if word == "mister" else word for word in text.split())


def text_of(segments: Segments) -> str:
    return " ".join(text for _, _, text in segments)


def times(pairs: Sequence[tuple[Segments, Segments]]) -> dict[str, float | None]:
    """How far the times of two sides lie from each other, where both begin or end a segment at the same word; and how
    many of all beginnings and ends only one side has: it cut the text elsewhere."""
    shifts: list[float] = []
    count = 0
    for pair in pairs:
        (said, *of_one), (heard, *of_other) = (_cuts(segments) for segments in pair)
        blocks = difflib.SequenceMatcher(None, said, heard, autojunk=False).get_matching_blocks()
        same = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
        for one, other in zip(of_one, of_other, strict=True):
            shared = [(t, other[same[word]]) for word, t in one.items() if same.get(word) in other]
            shifts += [abs(t - u) for t, u in shared]
            count += len(one) + len(other) - len(shared)
    # Times are multiples of 0.02 s; what is added makes up for their binary fractions.
    within = [shift <= SHIFT_S + 1e-3 for shift in shifts]
    return {
        WITHIN: 100 * sum(within) / len(within) if within else None,
        "largest shift": max(shifts, default=None),
        "cut elsewhere": 100 * (count - len(shifts)) / count if count else None,
    }


def _cuts(segments: Segments) -> tuple[list[str], dict[int, float], dict[int, float]]:
    """All words, and the times of those that begin and that end a segment, by their places."""
    said: list[str] = []
    begins, ends = {}, {}
    for begin, end, text in segments:
        if new := words(text).split():
            begins[len(said)], ends[len(said) + len(new) - 1] = begin, end
            said += new
    return said, begins, ends


def _entrants(run: Run, task: str, source: Path, peer: str, module: str) -> Comparison:
    compared = Comparison(run, task)
    compared.enter(TORCH, "eager", lambda _: run.sources.hugging(source))
    enter_ours(compared, source, BUNDLES)
    compared.enter(peer, module, lambda _: run.sources.ctranslate2(source))
    return compared


def _one_by_one(compared: Comparison, job: Callable[[Entrant], None]) -> None:
    """Run a job in a process for each entrant, one after the other."""

    def run(found: Entrant) -> None:
        need_torch()
        compared.start(found)
        try:
            job(found)
        finally:
            assert found.worker is not None
            found.worker.close()

    def need_torch() -> None:
        if TORCH not in compared.entrants:
            raise Unavailable(f"there is nothing to compare with: {compared.skipped[TORCH]}")

    compared.each(run)
    need_torch()
