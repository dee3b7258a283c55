"""`edge inspect`: what is in a bundle, from its manifest alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from edge.bundle import open_bundle
from edge.cli.arguments import Parser, add_bundle, add_json
from edge.manifest import Manifest

NAME = "inspect"
HELP = "Show what is in a bundle: sizes, bits per weight, graphs, quality."


def add_arguments(parser: Parser) -> None:
    add_bundle(parser)
    add_json(parser)


def command(args: argparse.Namespace) -> None:
    """Show a bundle's dimensions, bytes per group of weights, bits per weight, graphs, quality and source."""
    opened = open_bundle(args.bundle)
    opened.check_sizes()
    if args.json:
        print(json.dumps(summary(opened.manifest), indent=1, ensure_ascii=False))
    else:
        _show(opened.manifest)


def summary(manifest: Manifest) -> dict[str, Any]:
    """The manifest's fields that describe the model, with the figures that follow from them."""
    fields = dataclasses.asdict(manifest)
    groups = [{**group, "bits_per_weight": 8 * group["bytes"] / group["parameters"]} for group in fields["groups"]]
    names = "name", "family", "kind", "weights", "producer", "format_version", "dims", "context", "graphs", "quality"
    return {
        **{name: fields[name] for name in names},
        "parameters": sum(group.parameters for group in manifest.groups),
        "groups": groups,
        "bits_per_weight": manifest.bits_per_weight,
        "prefill": fields["prefill"] and {**fields["prefill"], "bytes": _prefill_bytes(manifest)},
        "segments": fields["segments"],
        "routers": manifest.routers,
        "kv_bytes_per_token": manifest.kv.bytes_per_token,
        "tokens": fields["tokens"],
        "chat_template": manifest.chat_template is not None,
        "source": fields["source"],
        "files": fields["files"],
        "bytes": sum(file.size for file in manifest.files),
    }


def _show(manifest: Manifest) -> None:
    from rich.console import Console

    from edge.runtime.providers.instructions import lacking

    console = Console(highlight=False)
    sizes = {file.path: file.size for file in manifest.files}
    parameters = sum(group.parameters for group in manifest.groups)
    dims, kv, source = manifest.dims, manifest.kv, manifest.source
    windows = sorted({layer.window for layer in kv.layers if layer.window is not None})
    sliding = sum(layer.window is not None for layer in kv.layers)

    about = _table("Field", "Value", header=False)
    about.title = f"{manifest.name}, {manifest.family}"
    rows = {
        "parameters": f"{parameters:,}",
        "weights": f"{manifest.weights}, {manifest.bits_per_weight:.2f} bits per weight",
        "layers": f"{dims.num_layers}, hidden size {dims.hidden_size}, feed-forward size {dims.intermediate_size}",
        "attention": f"{dims.num_heads} heads, {dims.num_kv_heads} KV heads, head size {dims.head_dim}"
        + (f"; {sliding} layers see the last {', '.join(map(str, windows))} tokens" if sliding else ""),
        "vocabulary": f"{dims.vocab_size:,}",
        "context": f"{manifest.context:,} tokens, {_bytes(kv.bytes_per_token)} of KV cache ({kv.dtype}) for each",
        "chat template": "yes" if manifest.chat_template else "none: only --raw prompts",
        "source": f"{source.name} ({source.kind})",
        "licence": source.licence or "not stated by the source",
        "producer": f"{manifest.producer}, format {manifest.format_version}",
        "size": _bytes(sum(sizes.values())),
    }
    if manifest.prefill is not None:
        rows["long prompts"] = f"a graph in {manifest.prefill.weights}, {_bytes(_prefill_bytes(manifest))} more"
    for name, value in rows.items():
        about.add_row(name, value)
    console.print(about)
    if (sentence := lacking()) is not None:
        console.print(sentence)

    second = [] if manifest.prefill is None else manifest.prefill.groups
    for title, listed in (("Group", manifest.groups), ("Long prompts", second)):
        groups = _table(title, "Weights", "Bytes", "Bits", "Block", "Bits/weight", "Method")
        for group in listed:
            groups.add_row(
                group.name,
                f"{group.parameters:,}",
                _bytes(group.bytes),
                f"{group.bits:.4g}",
                str(group.block_size) if group.block_size else "-",
                f"{8 * group.bytes / group.parameters:.2f}",
                group.method,
            )
        if listed:
            console.print(groups)

    graphs = _table("Graph", "File", "Bytes")
    for graph in manifest.graphs:
        graphs.add_row(graph.role, graph.path, _bytes(sizes[graph.path]))
    console.print(graphs)
    if manifest.segments:
        console.print(f"{len(manifest.segments)} segments" + (", with routers" if manifest.routers else ""))

    if manifest.quality:
        quality = _table("Check against Torch at export", "Value")
        for name, figure in manifest.quality.items():
            quality.add_row(name, f"{figure:.5g}")
        console.print(quality)


def _prefill_bytes(manifest: Manifest) -> int:
    """Bytes that the bundle would be smaller without its graph for long prompts."""
    assert manifest.prefill is not None
    path = manifest.graph("prefill").path
    return sum(g.bytes for g in manifest.prefill.groups) + sum(f.size for f in manifest.files if f.path == path)


def _table(first: str, *others: str, header: bool = True) -> Any:
    """A rich table whose first and last columns are text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    padding = (0, 1, 0, 0)  # so that a group's figures and its method fit into 80 columns
    table = Table(box=box.SIMPLE, show_header=header, title_justify="left", title_style="bold", padding=padding)
    table.add_column(first, no_wrap=True)
    for name in others:
        numbers = name not in ("Value", "File", "Method")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    return table


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"
