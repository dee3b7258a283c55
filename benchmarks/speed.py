"""Whisper and the translator against their peers: how long they take, and in how much memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from comparison import Comparison, Part, Run
from processes import Worker, WorkerFailed
from recordings import Recording
from report import Goal, Metric, Panel, is_ours, ratio
from seq2seq.seq2seq_engine import RECORDING, SPEECH, TEXT

TOKENS = 100  # of one window
BEAMS = 5
FORMS = {"edge int8": ("int8", "int8"), "edge int4": ("int8", "int4")}  # weights of encoder and decoder
PEER = "ctranslate2"
MEMORY = [("peak private", "MiB", False, 0), ("peak RSS", "MiB", False, 0)]


def faster(metric: Metric, limit: float, peer: str = PEER) -> list[Goal]:
    """How many times faster each form of ours is than a peer."""
    found = []
    for ours in (name for name in metric.rounds if is_ours(name)):
        if peer in metric.rounds:
            value = ratio(metric.rounds, peer, ours).value
            times = value if metric.more_is_better else 1 / value
            found.append(Goal(f"{metric.label}, {ours}: times faster than {peer}", times, limit, True))
    return found


def no_larger(metric: Metric, peer: str = PEER) -> list[Goal]:
    """Each form of ours over a peer."""
    return [
        Goal(f"{metric.label}, {ours} / {peer}", ratio(metric.rounds, peer, ours).value, 1.0, False)
        for ours in metric.rounds
        if is_ours(ours) and peer in metric.rounds
    ]


def whisper(run: Run, source: Path, window: Path) -> Part:
    """One window of 30 s and exactly 100 tokens, greedily and with beams; encoder and tokens apart.

    window: mono samples at 16 kHz, a .npy file.
    """
    import edge

    run.say("\nWhisper: one window")
    manifest = edge.open_bundle(run.sources.bundle(source, *FORMS["edge int8"])).manifest
    speech = manifest.speech
    assert speech is not None
    prompt = [speech.start, *list(speech.languages.values())[:1]]
    prompt += [speech.tasks["transcribe"]] if speech.tasks else []
    job: dict[str, Any] = {
        "pcm": str(window),
        "features": str(run.sources.features(window, 80)),
        "prompt": [*prompt, speech.no_timestamps],
        "suppress": [*speech.suppress, *manifest.tokens.eos],
        "n": TOKENS,
    }
    compared = Comparison(run, SPEECH)
    enter_ours(compared, source)
    compared.enter(PEER, "ctranslate", lambda _: run.sources.ctranslate2(source))
    compared.enter("transformers", "eager", lambda _: run.sources.hugging(source))

    def hear(worker: Worker, beams: int) -> Mapping[str, Any]:
        with run.watch.over(worker):
            got = worker.ask("hear", beams=beams, **job)
        if len(got["tokens"]) != TOKENS:
            raise WorkerFailed(f"it gave {len(got['tokens'])} tokens, not the {TOKENS} that were asked for")
        return got

    def work(worker: Worker, number: int) -> Mapping[str, float]:
        greedy, beams = hear(worker, 1), hear(worker, BEAMS)
        return {
            "encoder": 1000 * greedy["encode_s"],
            "token, greedy": 1000 * greedy["decode_s"] / TOKENS,
            f"token, beam {BEAMS}": 1000 * beams["decode_s"] / TOKENS,
            "window, greedy": greedy["encode_s"] + greedy["decode_s"],
            f"window, beam {BEAMS}": beams["encode_s"] + beams["decode_s"],
        }

    compared.measure_memory(lambda worker: [hear(worker, 1), hear(worker, BEAMS)])
    compared.rounds(work, "Whisper")
    compared.close()
    rows = [
        (label, "ms", False, 0 if label == "encoder" else 2)
        for label in ("encoder", "token, greedy", f"token, beam {BEAMS}")
    ]
    rows += [(label, "s", False, 2) for label in ("window, greedy", f"window, beam {BEAMS}")]
    metrics = compared.metrics([*rows, *MEMORY, ("bare import", "MiB", False, 0)])
    by = {m.label: m for m in metrics}
    part = Part(f"Whisper base, one window of 30 s, {TOKENS} tokens, {run.threads} threads", metrics[:-1])
    part.engines = list(compared.entrants)
    part.goals = [
        *faster(by["window, greedy"], 1.8),
        *faster(by[f"window, beam {BEAMS}"], 1.5),
        *no_larger(by["peak private"]),
    ]
    part.text = [_floor(by["bare import"], part.engines)]
    part.panels = [
        Panel(
            "Whisper, 30 s and 100 tokens, s (less is better)",
            {label.split(", ")[1]: by[label] for label in by if label.startswith("window")},
        ),
        Panel(
            "Whisper, one token, ms (less is better)",
            {label.split(", ")[1]: by[label] for label in by if label.startswith("token")},
        ),
        Panel("Whisper, peak private memory, MiB (less is better)", {"": by["peak private"]}),
    ]
    part.skipped = compared.skipped
    part.details = compared.details()
    return part


def recording(run: Run, source: Path, heard: Recording) -> Part:
    """A whole recording with timestamps, as users run it, beside faster-whisper."""
    run.say(f"\nWhisper: the recording {heard.name}")
    compared = Comparison(run, RECORDING)
    enter_ours(compared, source)
    compared.enter("faster-whisper", "faster_whisper_", lambda _: run.sources.ctranslate2(source))

    def transcribe(worker: Worker, beams: int) -> float:
        with run.watch.over(worker):
            return float(worker.ask("transcribe", pcm=str(heard.pcm), beams=beams)["seconds"])

    compared.measure_memory(lambda worker: transcribe(worker, BEAMS))
    compared.rounds(
        lambda worker, _: {"greedy": transcribe(worker, 1), f"beam {BEAMS}": transcribe(worker, BEAMS)}, heard.name
    )
    compared.close()
    metrics = compared.metrics([("greedy", "s", False, 2), (f"beam {BEAMS}", "s", False, 2), *MEMORY])
    part = Part(f"Whisper base, the recording {heard.name}, {heard.seconds:.0f} s, with timestamps", metrics)
    part.engines, part.skipped, part.details = list(compared.entrants), compared.skipped, compared.details()
    return part


def translator(run: Run, source: Path, sentences: Sequence[str]) -> Part:
    """Sentences one by one, from text to text, up to 60 tokens each; every engine at its best number of threads."""
    run.say("\nTranslator")
    beams, most = 4, 60

    def translate(worker: Worker, number: int, beams: int) -> float:
        size = min(run.plan.block, len(sentences))
        first = number * size % (len(sentences) - size + 1)
        with run.watch.over(worker):
            got = worker.ask("translate", texts=list(sentences[first : first + size]), beams=beams, n=most, batch=1)
        return float(size / got["seconds"])

    def trial(worker: Worker) -> float:
        return 1 / translate(worker, 0, 1)

    def optimum(variant: str) -> Path:
        return run.sources.optimum(source, "int8" if "int8" in variant else "float32")

    compared = Comparison(run, TEXT, most + 1)
    enter_ours(compared, source, trial=trial)
    compared.enter(PEER, "ctranslate", lambda _: run.sources.ctranslate2(source), trial)
    compared.enter("transformers", "eager", lambda _: run.sources.hugging(source), trial)
    compared.enter("optimum", "optimum_ort", optimum, trial)
    compared.measure_memory(lambda worker: [translate(worker, 0, 1), translate(worker, 0, beams)])
    compared.rounds(
        lambda worker, at: {"greedy": translate(worker, at, 1), f"beam {beams}": translate(worker, at, beams)},
        "translator",
    )
    compared.close()
    rows = [(label, "sentences/s", True, 1) for label in ("greedy", f"beam {beams}")]
    metrics = compared.metrics([*rows, *MEMORY, ("bare import", "MiB", False, 0)])
    by = {m.label: m for m in metrics}
    part = Part("T5 translator, English to German, one sentence at a time", metrics[:-1], list(compared.entrants))
    part.goals = [*faster(by["greedy"], 1.5), *faster(by[f"beam {beams}"], 1.5), *no_larger(by["peak private"])]
    part.text = [_floor(by["bare import"], part.engines)]
    part.panels = [Panel("Translator, sentences/s", {label: by[label] for label in ("greedy", f"beam {beams}")})]
    part.skipped, part.details = compared.skipped, compared.details()
    return part


def enter_ours(
    compared: Comparison,
    source: Path,
    forms: Mapping[str, tuple[str, str]] = FORMS,
    trial: Callable[[Worker], float] | None = None,
) -> None:
    """This runtime, once with each of the weights."""
    for name, weights in forms.items():
        compared.enter(name, "edge_runtime", partial(_bundle, compared.run, source, weights), trial)


def _bundle(run: Run, source: Path, weights: tuple[str, str], variant: str) -> Path:
    return run.sources.bundle(source, *weights)


def _floor(bare: Metric, engines: Sequence[str]) -> str:
    shown = "; ".join(f"{name} {bare.shown(median(bare.rounds[name]))}" for name in engines)
    return f"Private memory of importing the package alone, MiB: {shown}"
