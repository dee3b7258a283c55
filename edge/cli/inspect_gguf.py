"""`edge inspect FILE.gguf`: what a GGUF file says of itself, and how `edge run` would store it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from edge.cli.tables import console, print_json, shown_bytes, table
from edge.extras import needing


def show_gguf(path: Path, as_json: bool) -> None:
    """Show a file's facts, the types of its weights, and what a token reads.

    Raises:
        CheckpointError: it is no GGUF file, or a damaged one.
    """
    with needing("Reading a GGUF file", "gguf"):
        from edge.export.request.gguf_summary import summarize
    found = summarize(path)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    out = console(wrap=True)
    facts = {
        "Model": " · ".join(filter(None, [found.name, found.architecture])),
        "Licence": found.licence,
        "Quantized": found.quantized_by and f"by {found.quantized_by}",
        "Size": f"{found.layers or '?'} layers, vocabulary {found.vocabulary:,}, context {found.context or 0:,}",
        "Tokenizer": found.tokenizer,
        "Chat": _template(found.chat_template, found.named_templates),
        "Settings": _settings(found.settings, found.unread_settings),
    }
    for label, text in facts.items():
        if text:
            out.print(f"{label:9}  {text}", markup=False)
    columns = "type", "tensors", "weights", "size", "in a bundle", "size"
    rows = table(f"{path}: {shown_bytes(found.bytes)}", *columns, text={"type", "in a bundle"})
    for share in found.types:
        sizes = shown_bytes(share.bytes), share.stored, shown_bytes(share.bundle_bytes)
        rows.add_row(share.type, f"{share.tensors}", f"{share.weights:,}", *sizes)
    out.print(rows)
    out.print(
        f"A token reads {shown_bytes(found.token_bytes)} of the file's weights, and "
        f"{shown_bytes(found.bundle_token_bytes)} of those of the bundle that edge run makes of it.",
        markup=False,
    )
    if found.refusal is not None:
        out.print(f"edge does not run it: {found.refusal}", markup=False)


def _template(there: bool, named: list[str]) -> str:
    used = "a template" if there else "no template: prompts are continued as they are"
    return f"{used}; others, which edge does not use: {', '.join(named)}" if named else used


def _settings(read: dict[str, Any], unread: dict[str, Any]) -> str:
    said, others = (", ".join(f"{name} {value}" for name, value in each.items()) for each in (read, unread))
    return "; ".join([said] * bool(said) + [f"not read: {others}"] * bool(others))
