"""Whisper and a T5 translator on this runtime and on CTranslate2, and what their weights cost.

python benchmarks/encoder_decoder.py --translator multi30k-en-de --multi30k multi30k --audio recordings
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import convert
import numpy as np
from comparison import Comparison, add_common, add_peer_python, names_of, parsed, say, write
from engines import SPEECH, TEXT, Unavailable
from processes import Worker, WorkerFailed
from report import Goal, Metric, is_ours, ratio

WHISPER, PEER = "whisper-base", "ctranslate2"
FORMS = {"edge int8": ("int8", "int8"), "edge int4": ("int8", "int4")}  # weights of encoder and decoder
FLOAT = "edge fp32"
PARTS = ("whisper", "translator", "bleu", "wer")
TEST = "test_2016_flickr"
RATE, WINDOW_S = 16_000, 30
TOKENS, BEAMS = 100, 5  # of one window
MOST, TEXT_BEAMS = 60, 4  # of a translation
BLOCK = 40  # sentences translated in one round
QUICKLY = 40  # of the test set, for a look at BLEU
BLEU_LIMITS = {"edge int8": 0.2, "edge int4": 0.5}
WER_LIMIT = 0.5
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
MEMORY = [("peak private", "MiB", False, 0), ("peak RSS", "MiB", False, 0)]


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"{args.threads} threads, load average {os.getloadavg()[0]:.2f} before the start")
    jobs = {"whisper": whisper, "translator": translator, "bleu": bleu, "wer": wer}
    found: dict[str, Any] = {}
    with (args.out / "encoder_decoder.log").open("w") as args.log:
        for name in args.parts:
            say(f"\n## {name}")
            try:
                found[name] = jobs[name](args)
            except (Unavailable, WorkerFailed) as error:
                found[name] = {"skipped": str(error)}
                say(f"{name} is SKIPPED: {error}")
    write(args.out / "encoder_decoder.json", args.threads, {"parts": found})
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    what = f"the Whisper checkpoint; default: what `edge models pull {WHISPER}` left"
    add("--whisper", type=Path, metavar="DIR", help=what)
    add("--translator", type=Path, metavar="DIR", help="the T5 translator, a transformers directory")
    add("--multi30k", type=Path, metavar="DIR", help=f"the folder with {TEST}.en and .de")
    add("--audio", type=Path, metavar="DIR", help="recordings, each with a .txt beside it of what is said")
    parts = partial(names_of, PARTS)
    add("--parts", type=parts, default=list(PARTS), metavar="NAME,...", help="default: " + ",".join(PARTS))
    add("--quick", action="store_true", help="three rounds, fewer sentences: a look, no figures")
    add_peer_python(parser)
    add_common(parser)
    args = parsed(parser, arguments)
    args.rounds = 3 if args.quick else 9
    return args


def whisper(args: argparse.Namespace) -> dict[str, Any]:
    """One window of 30 s and exactly 100 tokens, greedily and with beams; encoder and tokens apart.

    What is heard does not matter, as all hear it and none ends: it is noise.
    """
    from edge.bundle import open_bundle
    from edge.runtime.load import open_engine

    source, work = find_whisper(args)
    bundle = open_bundle(made(source, work, "edge int8"))
    manifest, speech = bundle.manifest, bundle.manifest.speech
    encoder = open_engine(bundle).encoder
    assert speech is not None and encoder is not None
    sound = np.random.default_rng(0).normal(0, 0.05, WINDOW_S * RATE).astype(np.float32)
    np.save(work / "window.npy", sound)
    np.save(work / "features.npy", encoder.features(sound))
    prompt = [speech.start, *list(speech.languages.values())[:1]]
    prompt += [speech.tasks["transcribe"]] if speech.tasks else []
    job = {
        "pcm": str(work / "window.npy"),
        "features": str(work / "features.npy"),
        "prompt": [*prompt, speech.no_timestamps],
        "suppress": [*speech.suppress, *manifest.tokens.eos],
        "n": TOKENS,
    }
    compared = Comparison(SPEECH, args.threads, args.log, args.pythons)
    enter(compared, source, work)

    def hear(worker: Worker, beams: int) -> Mapping[str, Any]:
        got = worker.ask("hear", beams=beams, **job)
        if len(got["tokens"]) != TOKENS:
            raise WorkerFailed(f"it gave {len(got['tokens'])} tokens, not the {TOKENS} that were asked for")
        return got

    def both(worker: Worker, number: int = 0) -> dict[str, float]:
        greedy, beams = hear(worker, 1), hear(worker, BEAMS)
        return {
            "encoder": 1000 * greedy["encode_s"],
            "token, greedy": 1000 * greedy["decode_s"] / TOKENS,
            f"token, beam {BEAMS}": 1000 * beams["decode_s"] / TOKENS,
            "window, greedy": greedy["encode_s"] + greedy["decode_s"],
            f"window, beam {BEAMS}": beams["encode_s"] + beams["decode_s"],
        }

    compared.measure_memory(both)
    compared.rounds(args.rounds, both, [both])
    rows = [(label, "ms", False, 2) for label in ("encoder", "token, greedy", f"token, beam {BEAMS}")]
    rows += [(label, "s", False, 2) for label in ("window, greedy", f"window, beam {BEAMS}")]
    return shown(compared, rows, {"window, greedy": 1.8, f"window, beam {BEAMS}": 1.5})


def translator(args: argparse.Namespace) -> dict[str, Any]:
    """Sentences one by one, from text to text, up to 60 tokens each; every engine at its best number of threads."""
    source, work, sentences, _ = find_translator(args)
    size = min(10 if args.quick else BLOCK, len(sentences))

    def translate(worker: Worker, number: int, beams: int) -> float:
        first = number * size % (len(sentences) - size + 1)
        got = worker.ask("translate", texts=sentences[first : first + size], beams=beams, n=MOST)
        return float(size / got["seconds"])

    def both(worker: Worker, number: int = 0) -> dict[str, float]:
        return {label: translate(worker, number, beams) for label, beams in labels.items()}

    labels = {"greedy": 1, f"beam {TEXT_BEAMS}": TEXT_BEAMS}
    compared = Comparison(TEXT, args.threads, args.log, args.pythons, 1 if args.quick else 3, MOST + 1)
    enter(compared, source, work, lambda worker: 1 / translate(worker, 0, 1))
    compared.measure_memory(both)
    compared.rounds(args.rounds, both, [both])
    return shown(compared, [(label, "sentences/s", True, 1) for label in labels], dict.fromkeys(labels, 1.5))


def enter(compared: Comparison, source: Path, work: Path, trial: Callable[[Worker], float] | None = None) -> None:
    """This runtime, once with each of the weights, and its peer."""
    for name in FORMS:
        compared.enter(name, lambda _, name=name: made(source, work, name), trial)  # type: ignore[misc]
    compared.enter(PEER, lambda _: convert.ctranslate2(source, work, compared.pythons), trial)


def made(source: Path, work: Path, name: str) -> Path:
    """The bundle of a form."""
    encoder, decoder = FORMS.get(name, ("fp32", "fp32"))
    weights = ("--encoder-weights", encoder, "--decoder-weights", decoder)
    return convert.bundle(source, work, name.replace(" ", "-"), *weights, "--no-check")


def shown(
    compared: Comparison, rows: Sequence[tuple[str, str, bool, int]], limits: Mapping[str, float]
) -> dict[str, Any]:
    """Print a part's tables and goals; all of it for the JSON file."""
    metrics = compared.metrics([*rows, *MEMORY])
    by = {metric.label: metric for metric in metrics}
    goals = [goal for label, limit in limits.items() if label in by for goal in faster(by[label], limit)]
    goals += no_larger(by["peak private"]) if "peak private" in by else []
    compared.show(metrics, goals)
    return compared.result() | {"goals": list(map(vars, goals))}


def faster(metric: Metric, limit: float) -> list[Goal]:
    """How many times faster each form of ours is than the peer."""
    found = []
    for ours in (name for name in metric.rounds if is_ours(name) and PEER in metric.rounds):
        value = ratio(metric.rounds, PEER, ours).value
        times = value if metric.more_is_better else 1 / value
        found.append(Goal(f"{metric.label}, {ours}: times faster than {PEER}", times, limit, True))
    return found


def no_larger(metric: Metric) -> list[Goal]:
    """Each form of ours over the peer."""
    return [
        Goal(f"{metric.label}, {ours} / {PEER}", ratio(metric.rounds, PEER, ours).value, 1.0, False)
        for ours in metric.rounds
        if is_ours(ours) and PEER in metric.rounds
    ]


def bleu(args: argparse.Namespace) -> dict[str, Any]:
    """BLEU of whole translations, greedily and with 4 beams, next to this runtime's in float32."""
    import edge

    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        raise Unavailable("sacrebleu is not installed") from None
    source, work, sentences, references = find_translator(args)
    count = QUICKLY if args.quick else len(sentences)
    scores: dict[str, list[float]] = {}
    for name in (FLOAT, *FORMS):
        model: Any = edge.load(made(source, work, name), threads=args.threads)
        scores[name] = []
        for beams in (1, TEXT_BEAMS):
            options = edge.Text2TextOptions(beams=beams, max_tokens=MOST)
            texts = [model.generate(text, options).text for text in sentences[:count]]
            scores[name].append(corpus_bleu(texts, [references[:count]]).score)
        say(f"BLEU of {count} sentences: {name} {scores[name][0]:.2f} greedy, {scores[name][1]:.2f} with beams")
    for name, limit in BLEU_LIMITS.items():
        for lost, how in zip(np.subtract(scores[FLOAT], scores[name]), ("greedy", "beams"), strict=True):
            say(str(Goal(f"BLEU lost, {how}, {name}", float(lost), limit, False)))
    return {"bleu": scores, "sentences": count}


def wer(args: argparse.Namespace) -> dict[str, Any]:
    """Word error rates of Whisper at temperature 0, greedily; and with this runtime's text in float32 as the truth."""
    import edge
    from edge.runtime.speech.audio import open_audio

    heard = find_speech(args)
    source, work = find_whisper(args)
    given = dict(temperatures=(0.0,), compression_ratio_threshold=None, logprob_threshold=None)
    options = edge.TranscribeOptions(language="en", no_speech_threshold=None, **given)  # type: ignore[arg-type]
    said: dict[str, list[str]] = {}
    rates: dict[str, dict[str, float]] = {}
    for name in (FLOAT, *FORMS):
        model: Any = edge.load(made(source, work, name), threads=args.threads)
        began, sounds = time.perf_counter(), [np.concatenate(list(open_audio(p, RATE).blocks)) for p in heard]
        said[name] = [model.transcribe(sound, options).text for sound in sounds]
        rates[name] = {"wer": word_error(list(zip(heard.values(), said[name], strict=True)))}
        rates[name]["other"] = word_error(list(zip(said[FLOAT], said[name], strict=True)))
        line = f"{rates[name]['wer']:.2f}%, other words than in float32 {rates[name]['other']:.2f}%"
        say(f"word error rate of {len(heard)} recordings: {name} {line}; {time.perf_counter() - began:.0f} s")
    for name in FORMS:
        more = rates[name]["wer"] - rates[FLOAT]["wer"]
        say(str(Goal(f"word error rate above float32's, points, {name}", more, WER_LIMIT, False)))
    return {"rates": rates, "texts": said}


def word_error(pairs: Sequence[tuple[str, str]]) -> float:
    """The word error rate of (reference, hypothesis), in percent."""
    try:
        from jiwer import process_words
    except ImportError:
        raise Unavailable("jiwer is not installed") from None
    both = [(words(a), words(b)) for a, b in pairs if words(a)]
    return 100 * float(process_words([a for a, _ in both], [b for _, b in both]).wer) if both else 0.0


def words(text: str) -> str:
    """What counts in a text: lower-case words. Case, punctuation, hyphens and "mister" are matters of taste."""
    text = re.sub(r"[^\w' ]", "", re.sub(r"[-\u2013\u2014\s]+", " ", text.lower().replace("\u2019", "'")))
    return " ".join("mr" if word == "mister" else word for word in text.split())


def find_whisper(args: argparse.Namespace) -> tuple[Path, Path]:
    """The Whisper checkpoint, and the folder for what is made of it."""
    from edge.catalog import find, local

    entry = find(WHISPER)
    path = args.whisper or (local(entry) if entry is not None else None)
    if path is None:
        raise Unavailable(f"--whisper is needed: `edge models pull {WHISPER}` has left no checkpoint here")
    if not (path / "config.json").is_file():
        raise Unavailable(f"there is no {path / 'config.json'}")
    return path.resolve(), _work(args, path)


def find_translator(args: argparse.Namespace) -> tuple[Path, Path, list[str], list[str]]:
    """The translator, the folder for what is made of it, and the test set's sentences in both languages."""
    if args.translator is None or args.multi30k is None:
        raise Unavailable("--translator and --multi30k are needed")
    texts = []
    for path in (args.translator / "config.json", args.multi30k / f"{TEST}.en", args.multi30k / f"{TEST}.de"):
        if not path.is_file():
            raise Unavailable(f"there is no {path}")
        texts.append(path.read_text().rstrip("\n").split("\n"))
    return args.translator.resolve(), _work(args, args.translator), texts[1], texts[2]


def _work(args: argparse.Namespace, source: Path) -> Path:
    work = Path(args.work) / convert.key(source)
    work.mkdir(parents=True, exist_ok=True)
    return work


def find_speech(args: argparse.Namespace) -> dict[Path, str]:
    """The recordings of a folder that have a text, with it."""
    if args.audio is None:
        raise Unavailable("--audio is needed, a folder of recordings with their texts")
    sounds = sorted(path for path in args.audio.rglob("*") if path.suffix.lower() in SOUNDS)
    found = {path: path.with_suffix(".txt").read_text() for path in sounds if path.with_suffix(".txt").is_file()}
    if not found:
        raise Unavailable(f"{args.audio} holds no sound files ({', '.join(SOUNDS)}) with a .txt beside them")
    return found


if __name__ == "__main__":
    sys.exit(main())
