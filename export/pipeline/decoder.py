"""A decoder's way into a bundle: the first stage writes weights, graphs and tokenizer; `finish.py` has the second."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from edge.bundle import TOKENIZER, Bundle, BundleWriter
from edge.errors import EdgeError, ExportError
from edge.export import quantize as methods
from edge.export.check import of_decoder as check
from edge.export.facts.checkpoint import Checkpoint
from edge.export.graph.families import is_like_llama
from edge.export.manifest.chat_format import chat_format, special_tokens
from edge.export.manifest.chat_settings import chat_settings
from edge.export.manifest.chat_settings import described as described_settings
from edge.export.manifest.thinking import channel_ends, ids_of, matched_whole, thinking
from edge.export.manifest.thinking import described as described_thinking
from edge.export.manifest.tokenizer import compact, fitted
from edge.export.manifest.written import RecordedWeights, manifest_of, say_what_changed
from edge.export.pipeline.finish import RECORDED, StagedDecoder
from edge.export.pipeline.pack import Packing
from edge.export.pipeline.settle import Plan
from edge.export.pipeline.survey import Survey
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.method import Options
from edge.export.quantize.prefill import prefill_weights
from edge.export.targets.cpu.decoder import build_decoder
from edge.export.targets.cpu.kv8 import write_kv8
from edge.external_file import ExternalFile, described
from edge.manifest import Manifest
from edge.runtime.check.golden import GoldenInput
from edge.runtime.memory.process import release_freed
from edge.runtime.text.template import FIXED_DAY, Message, chat_template, fixed_day, learn_end, written
from edge.runtime.text.thinking import render
from edge.runtime.text.tokenizer import Text

# Answered at export and recorded in golden.json: prose, arithmetic, code, another language.
GOLDEN_PROMPTS = [
    "Why does the moon change its shape in the sky?",
    "A train leaves at 9:40 and arrives at 11:05. How long does it take?",
    "Write a Python function that returns the largest of three numbers.",
    "Traduis en français : the library opens at ten o'clock.",
]
QUICK_PROMPTS = GOLDEN_PROMPTS[:1]


def stage_decoder(plan: Plan, options: Options, writer: BundleWriter, say: Callable[[str], None]) -> StagedDecoder:
    """Write tensors, graphs and tokenizer, and record the logits for the check if it is asked for. A quick export
    records them with the reference in numpy, which also measures the rest."""
    request, checkpoint, name = plan.request, plan.checkpoint, plan.name
    weights, context = plan.chosen.weights, plan.chosen.context
    tokenizer = fitted(checkpoint, say)
    windows = calibration_windows(checkpoint, options.calibration)
    # Before the weights, so that Torch's model of the check and that of a calibrated method are never there together.
    if survey := _survey(plan, options, windows, writer):
        recorded = survey.recorded
    else:
        compared = request.check and not (request.quick and plan.keeps_blocks)
        recorded = check.reference(checkpoint, context, options.progress) if compared else None
    given = dataclasses.replace(options, measured=survey and survey.method)
    eights = prefill_weights(checkpoint, given) if request.prefill_weights == "int8" else None
    quantized = methods.quantize(checkpoint, weights, given)
    gc.collect()  # a calibrated method's Torch model, whose modules point at each other
    release_freed()
    recording = RecordedWeights(quantized, options.report, "writing weights")
    graph = build_decoder(checkpoint, recording, writer, context, eights)
    external = _external(checkpoint) if request.in_place and plan.keeps_blocks else []
    writer.flush()
    template = checkpoint.tokenizer.chat_template
    common = manifest_of(
        checkpoint, graph, name, "decoder", weights, context, external=external, chat_template=template
    )
    packing = Packing(writer, common) if plan.keeps_blocks else None
    with packing or nullcontext():
        kv8 = None if survey is None else write_kv8(writer, survey.largest, sum(map(len, survey.method.texts)))
        say_what_changed(checkpoint, recording, say)
        del quantized, recording, eights, survey, given
        manifest, golden = with_text(plan, common, tokenizer, writer, say)
        staged = StagedDecoder(manifest, recorded, windows, golden, kv8)
        if packing is not None:
            packing.wait(options.report)
        return staged


def with_text(
    plan: Plan, common: Manifest, tokenizer: str, writer: BundleWriter, say: Callable[[str], None]
) -> tuple[Manifest, list[GoldenInput]]:
    """Write the tokenizer. Returns the manifest with what it says of texts and chats, and the prompts of golden
    answers."""
    request, checkpoint, template = plan.request, plan.checkpoint, common.chat_template
    writer.write_file(TOKENIZER, compact(tokenizer))
    writer.flush()
    release_freed()
    special = special_tokens(checkpoint.tokenizer)
    vocabulary = matched_whole(checkpoint.tokenizer)
    marks = thinking(template, special, vocabulary)
    # For hosts without jinja2, which read no weights that stay in a GGUF file; finding it takes a second or two.
    plain = None if template is None or request.in_place else chat_format(template, special, marks)
    settings = chat_settings(checkpoint, say)
    for sentence in (described_settings(settings) if template is not None else None, described_thinking(marks)):
        if sentence is not None:
            say(sentence)
    ends = ids_of(checkpoint.tokenizer, channel_ends(template, marks, vocabulary))
    tokens = dataclasses.replace(common.tokens, eos=list(dict.fromkeys([*common.tokens.eos, *ends])))
    manifest = dataclasses.replace(common, tokens=tokens, chat_format=plain, generation=settings, thinking=marks)
    bundle = Bundle(writer.staging, manifest)
    text = Text(bundle)
    prompts = QUICK_PROMPTS if request.quick else GOLDEN_PROMPTS
    return _with_end(manifest, text, say), golden_inputs(bundle, text, prompts, say)


def _external(checkpoint: Checkpoint) -> list[ExternalFile]:
    """The files that the weights stay in; ExportError where one cannot be read, or named."""
    try:
        return [described(file) for file in checkpoint.files]
    except OSError as e:
        raise ExportError(f"The weights of {checkpoint.name} cannot stay in their file: {e.strerror or e}.") from None


def _with_end(manifest: Manifest, text: Text, say: Callable[[str], None]) -> Manifest:
    """Return the manifest with the token that ends an answer in the chat template as an end token."""
    named = text.eos
    learn_end(manifest, text, lambda: chat_template(manifest, text, fixed_day(manifest)))
    if not (new := sorted(text.eos - named)):
        return manifest
    say(
        f"The chat template ends an answer with {text.token(new[0])!r}, which the model's configuration does not name "
        "as an end; the bundle does."
    )
    return dataclasses.replace(manifest, tokens=dataclasses.replace(manifest.tokens, eos=[*manifest.tokens.eos, *new]))


def _survey(plan: Plan, options: Options, windows: NDArray[np.int64], writer: BundleWriter) -> Survey | None:
    """Measure the model for a quick export, in one run of the reference; None for other efforts, and for weights that
    are a file's own: those are not compared; and for decoders that are not like Llama, which Torch alone computes."""
    checkpoint, context = plan.checkpoint, plan.chosen.context
    if not plan.request.quick or plan.keeps_blocks or not is_like_llama(str(checkpoint.config.get("model_type"))):
        return None
    (text,) = check.check_text(checkpoint, context, check.QUICK_WINDOW)
    method = methods.observer(checkpoint, plan.chosen.weights, options, windows)
    compared = text if plan.request.check else None
    return Survey(checkpoint, context, method, compared, writer.staging / RECORDED, options.progress)


def golden_inputs(bundle: Bundle, text: Text, texts: Sequence[str], tell: Callable[[str], None]) -> list[GoldenInput]:
    """Return the prompts `texts`, on a fixed day, in the model's chat format if it has one that can be rendered."""
    prompts, dates = list(texts), list[str | None]([None] * len(texts))
    try:
        if (template := chat_template(bundle.manifest, text, fixed_day(bundle.manifest))) is not None:

            def unthinking(talk: Sequence[Message]) -> str:
                return render(template, bundle.manifest.thinking, talk, think=False)

            talks = [[Message(role="user", content=each)] for each in texts]
            prompts = [written(template, talk, text, unthinking) for talk in talks]
            dates = [FIXED_DAY if template.tells_date(talk) else None for talk in talks]
    except EdgeError as e:
        tell(f"{e} The golden answers are recorded without it.")
    return [GoldenInput(text.encode_prompt(p), date=date) for p, date in zip(prompts, dates, strict=True)]
