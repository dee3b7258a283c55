"""Sampling settings for a decoder's chats, as the model's makers set them in generation_config.json or in GGUF's
sampling keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.export.facts.checkpoint import Checkpoint
from edge.export.manifest.text_format import UNKNOWN
from edge.manifest import Generation
from edge.manifest_checks import DRAWN

# Further settings of transformers and llama.cpp that no answer of a decoder obeys, with the values that change nothing.
OTHERS: dict[str, Any] = {
    **UNKNOWN,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "penalty_alpha": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "xtc_probability": 0.0,
    "mirostat": 0,
}
del OTHERS["do_sample"]


def chat_settings(checkpoint: Checkpoint, say: Callable[[str], None]) -> Generation | None:
    """Return the checkpoint's settings for chats; None if it has none. `say` is told what is omitted: values out of
    range, and settings that a bundle has no field for."""
    given = {name: value for name, value in checkpoint.generation.items() if value is not None}
    kept: dict[str, Any] = {"do_sample": given.get("do_sample", False)}
    for name, (least, most) in DRAWN.items():
        if name not in given:
            continue
        if least <= given[name] <= most:
            kept[name] = int(given[name]) if name == "top_k" else float(given[name])
        else:
            say(
                f"The checkpoint's generation settings have {name} {given[name]:g}, which is none from {least:g} to "
                f"{most:g}; the bundle leaves that out."
            )
    if names := [name for name, neutral in OTHERS.items() if given.get(name, neutral) != neutral]:
        say(f"The checkpoint's generation settings also have {', '.join(names)}; the bundle leaves that out.")
    found = Generation(**kept)
    return None if found == Generation() else found


def described(settings: Generation | None) -> str | None:
    """Return a sentence about the settings for the export's output; None if chats are greedy without them."""
    if settings is None or not settings.sampling:
        return None
    how = "draw tokens as" if settings.do_sample else "are answered as"
    return f"Chats {how} the model's makers set it: {settings.sampling}; --temperature 0 is greedy."
