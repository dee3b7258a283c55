"""An encoder-decoder's way into a bundle: weights, graphs, the check against Torch, golden answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from edge.bundle import TOKENIZER, Bundle, BundleWriter
from edge.errors import ExportError
from edge.export.check import of_encoder_decoder as check
from edge.export.check.of_encoder_decoder import SENTENCES, Input
from edge.export.check.quality import figures, refuse_if_broken
from edge.export.facts.progress import Progress
from edge.export.graph.families import find_family
from edge.export.manifest.speech_format import check_window, speech
from edge.export.manifest.text_format import generation, left_out, text_format
from edge.export.manifest.tokenizer import compact, fitted
from edge.export.manifest.written import GOLDEN_TOKENS, RecordedWeights, manifest_of, record, say_what_changed
from edge.export.pipeline.settle import Plan
from edge.export.quantize import methods_with, read_calibration
from edge.export.quantize.calibration import SpeechInputs, TextInputs, speech_inputs, text_inputs
from edge.export.quantize.encoder_decoder import check_weights, quantize_encoder_decoder
from edge.export.quantize.method import Options
from edge.export.targets.cpu.encoder_decoder import build_encoder_decoder
from edge.golden import Golden, noise
from edge.manifest import Manifest, Speech, TextFormat
from edge.runtime.check.golden import GoldenInput
from edge.runtime.check.perplexity import Agreement
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.tensors import QTensor
    from edge.export.targets.kind import Sample

SEEDS = [1, 2, 3]  # of the audio that a speech model is checked on
GOLDEN_SOURCES = 3
NOISE = 4  # the seed of what a target's ranges are measured on, next to speech
SAMPLES = 64  # of text that a target's ranges are measured on
WRITING = "writing answers to measure activations on"

ENCODER_WEIGHTS = "int8"  # of an encoder that cannot have those of --weights


def halves(weights: str, encoder: str | None, decoder: str | None) -> tuple[str, str]:
    """Return the weights of encoder and decoder; each may be asked for separately.

    Raises:
        ExportError: `weights` has no meaning for an encoder-decoder.
    """
    if weights not in (known := methods_with("decoder")):
        raise ExportError(
            f"--weights {weights} is not for encoder-decoders; choose one of {', '.join(known)}, or --encoder-weights "
            "and --decoder-weights."
        )
    by_default = weights if weights in methods_with("encoder") else ENCODER_WEIGHTS
    return encoder or by_default, decoder or weights


def write_encoder_decoder(
    plan: Plan, weights: tuple[str, str], writer: BundleWriter, progress: Progress, say: Callable[[str], None]
) -> tuple[Manifest, Golden]:
    """Write tensors, graphs and tokenizer, and a target's graphs, and check them against the model in float32, where
    these are asked for. weights: the encoder's and the decoder's. Returns the manifest and golden answers.

    Raises:
        ExportError: weights that a half cannot have, or a calibration that cannot be used.
    """
    request, checkpoint, name, target = plan.request, plan.checkpoint, plan.name, plan.target
    context, block_size, calibration = plan.chosen.context, plan.chosen.block_size, request.calibration
    check_weights(*weights, block_size)
    tokenizer = fitted(checkpoint, say)
    if calibration is not None and weights[1] != "int4":
        raise ExportError(
            f"{name}'s decoder in {weights[1]} is not calibrated; leave out --calibration, or choose --decoder-weights "
            "int4."
        )
    inputs = _Inputs(checkpoint, context)
    calibration_inputs = inputs.of_calibration(calibration) if weights[1] == "int4" else None
    recorded = None
    if request.check and request.quick and find_family(str(checkpoint.config["model_type"]))[1].gguf is not None:
        recorded = check.reference_in_numpy(checkpoint, inputs.examples, inputs.start, progress)
    elif request.check:
        recorded = check.reference(checkpoint, inputs.examples, inputs.torch, inputs.start, progress)
    calibrated: dict[str, QTensor] | None = None
    if calibration_inputs is not None:
        from edge.export.quantize import gptq_layers  # with PyTorch, which others may lack

        calibrated = gptq_layers.quantize_encoder_decoder(checkpoint, calibration_inputs, block_size, progress)
    quantized = quantize_encoder_decoder(checkpoint, *weights, block_size, calibrated)
    recording = RecordedWeights(quantized, progress, "writing weights")
    built = build_encoder_decoder(checkpoint, recording, writer, context)
    say_what_changed(checkpoint, recording, say)
    if inputs.text is not None and (names := left_out(checkpoint)):
        say(f"The checkpoint's generation settings also have {', '.join(names)}; the bundle leaves that out.")
    if inputs.speech is not None:
        from edge.export.targets.cpu.frontend import build_frontend

        built.graphs.append(build_frontend(checkpoint.config, writer))
    writer.write_file(TOKENIZER, compact(tokenizer))
    kinds = weights[0] if len(set(weights)) == 1 else "+".join(weights)
    read = {"text": inputs.text, "speech": inputs.speech, "generation": generation(checkpoint), "chat_template": None}
    manifest = manifest_of(checkpoint, built, name, "encoder-decoder", kinds, context, **read)
    writer.flush()
    engine = open_engine(Bundle(writer.staging, manifest), context=context)
    if recorded is not None:
        progress(0, 0, "checking against the model in float32")
        found = check.check(engine, recorded, lambda given: inputs.cache(engine, given))
        refuse_if_broken(found, manifest)
        quality = figures(found)
        if not recorded.own:
            quality = {name: value for name, value in quality.items() if "perplexity" not in name}
        manifest = dataclasses.replace(manifest, quality=quality)
    progress(0, 0, "recording golden answers")
    golden = record(engine, inputs.golden, GOLDEN_TOKENS)
    if target is not None:
        from edge.export.targets.kind import check_target, kind

        given = Options(progress=progress, effort=request.effort)
        kind(target.name).write_target(
            target, checkpoint, writer, manifest, lambda: inputs.samples(engine, progress), given
        )
        del engine
        release_freed()
        progress(0, 0, f"checking the graphs for {target.name}")
        golden = check_target(target.name, writer, manifest, inputs.comparison(recorded), golden)
    return manifest, golden


def _greedy(engine: Engine, cross: Cross, start: list[int], most: int, eos: list[int]) -> list[int]:
    """An answer of up to `most` tokens, with `start`."""
    cache, answer, new = engine.new_cache(cross=cross), list(start), start
    while len(answer) < most and answer[-1] not in eos:
        new = [int(engine.step(cache, np.array(new, np.int64))[0].argmax())]
        answer += new
    return answer


class _Inputs:
    """The model's inputs in the check and the golden answers: sentences, or noise that any host can generate."""

    def __init__(self, checkpoint: Checkpoint, context: int) -> None:
        self.text: TextFormat | None = None
        self.speech: Speech | None = None
        self._checkpoint, self._context, self._config = checkpoint, context, checkpoint.config
        self.examples: list[Input]
        if "num_mel_bins" in checkpoint.config:
            check_window(checkpoint)
            self.speech = speech(checkpoint)
            spoken = self.speech
            chosen = [*list(spoken.languages.values())[:1], *([spoken.tasks["transcribe"]] if spoken.languages else [])]
            self.start = [spoken.start, *chosen, spoken.no_timestamps]
            self.examples = [noise(seed) for seed in SEEDS]
            self.golden = [GoldenInput(self.start, source_seed=seed) for seed in SEEDS]
            return
        self.text = text = text_format(checkpoint)
        self.start = list(text.decoder_start)
        if text.target_at_start and text.languages:
            self.start.append(text.languages[text.target or next(iter(text.languages))])
        tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
        longest = min(context, checkpoint.config.get("max_position_embeddings") or context)
        room = longest - len(text.prefix) - len(text.suffix)
        sentences = [tokenizer.encode(sentence, add_special_tokens=False).ids[:room] for sentence in SENTENCES]
        ids = [[*text.prefix, *sentence, *text.suffix] for sentence in sentences]
        self.examples = [np.array(i, np.int64) for i in ids]
        self.golden = [GoldenInput(self.start, source_ids=i) for i in ids[:GOLDEN_SOURCES]]

    def of_calibration(self, calibration: str | Path | None) -> TextInputs | SpeechInputs:
        """Return the inputs that the decoder is calibrated on; default: built-in ones.

        Raises:
            EdgeError: it cannot be read, is too short, or is not of the model's kind of input.
        """
        if self.speech is None:
            assert self.text is not None
            text = read_calibration(calibration) if isinstance(calibration, Path) else calibration
            return text_inputs(self._checkpoint, self.text, self._context, text)
        if isinstance(calibration, str):
            raise ExportError(
                f"{self._checkpoint.name} hears sound, and a text cannot calibrate it; give the path of a recording."
            )
        return speech_inputs(self._checkpoint, self.speech, self._context, calibration)

    def samples(self, engine: Engine, progress: Progress) -> list[Sample]:
        """Generate texts or audio features, and the engine's answers to them, to measure ranges of activations on."""
        from edge.export.targets.kind import Sample

        assert engine.encoder is not None
        samples: list[Sample] = []
        inputs = self.of_calibration(None)
        if isinstance(inputs, TextInputs):
            chosen = inputs.inputs[:: max(1, len(inputs.inputs) // SAMPLES)]
            for source, start in chosen:
                progress(len(samples), len(chosen), WRITING)
                ids = np.array(source, np.int64)
                answer = _greedy(engine, engine.encoder.encode_text(ids), list(start), inputs.max_tokens, inputs.eos)
                samples.append(Sample(ids, np.array(answer, np.int64)))
            return samples
        speech, begin, before = inputs.speech, list(self.start), list[int]()
        # Loud, faint and silent windows reach further: after speech alone, noise diverged three times as far.
        spoken, hiss = inputs.windows, noise(NOISE)
        windows = [*spoken, spoken[0] * np.float32(0.05), hiss, hiss * np.float32(10), np.zeros_like(hiss)]
        for window in windows:
            progress(len(samples), len(windows), WRITING)
            led = [speech.previous, *before] if before and speech.previous is not None else []
            given = [*led, *(begin[:-1] if len(samples) % 2 else begin)]  # with timestamps, and without
            maximum = min(len(given) + inputs.max_tokens, engine.context)
            answer = _greedy(engine, engine.encoder.encode_audio(window), given, maximum, inputs.eos)
            before = [token for token in answer[len(given) :] if token < speech.start]
            samples.append(Sample(engine.encoder.features(window), np.array(answer, np.int64)))
        return samples

    def comparison(self, recorded: check.RecordedAnswers | None) -> Callable[[Engine], Agreement] | None:
        """Return the check for other graphs than the bundle's CPU graphs; None without recorded logits."""
        if recorded is None:
            return None
        return lambda engine: check.check(engine, recorded, lambda given: self.cache(engine, given))

    def torch(self, given: Input) -> dict[str, Any]:
        """Return the Torch model's arguments for an input."""
        import torch

        if self.speech is None:
            return {"input_ids": torch.from_numpy(given)[None]}
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(feature_size=self._config["num_mel_bins"])
        return {"input_features": extractor(given, sampling_rate=16_000, return_tensors="pt").input_features}

    def cache(self, engine: Engine, given: Input) -> KVCache:
        assert engine.encoder is not None
        encode = engine.encoder.encode_text if self.speech is None else engine.encoder.encode_audio
        return engine.new_cache(cross=encode(given))
