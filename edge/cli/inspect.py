"""`edge inspect`: what is in a bundle, from its manifest, or in a GGUF file, from its header; and with a provider, what
of a bundle runs where."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from edge.bundle import Bundle, open_bundle
from edge.cli import inspect_targets
from edge.cli.arguments import Parser, add_field, add_json
from edge.cli.tables import console, print_json, shown_bytes, table
from edge.errors import InputError
from edge.manifest import Manifest

NAME = "inspect"
HELP = "Show what is in a bundle: sizes, bits per weight, graphs, quality; or in a .gguf file."
SECONDS = 2.0  # for the time that each provider takes


def add_arguments(parser: Parser) -> None:
    from edge.runtime.load_options import LoadOptions

    given = "the bundle, a folder NAME.edge; or a .gguf file"
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help=given)
    add = parser.options()
    add_json(add)
    placement = "open the graphs with it, and show which nodes, weights and time are whose: auto, %(names)s"
    add_field(add, LoadOptions, "provider", placement)
    add_field(add, LoadOptions, "strict")
    add_field(add, LoadOptions, "threads")


def command(args: argparse.Namespace) -> None:
    """Show a bundle's dimensions, bytes per group of weights, bits per weight, graphs, quality and source; of graphs
    for an NPU also what a step moves, and how long that takes a chip at least, by an estimate.

    Of a .gguf file: its facts, the types of its weights, how edge run would store them, and what a token reads.

    With --provider a bundle's graphs are opened and run, and instead of the above it is shown which execution provider
    has which share of the nodes, of the bytes of weights, and of the time of a step of one token.
    """
    if args.bundle.is_file():
        for name in ("provider", "strict", "threads"):
            if getattr(args, name) is not None:
                raise InputError(f"--{name} is about the graphs of a bundle, and {args.bundle} is none; omit it.")
        from edge.cli.inspect_gguf import show_gguf

        show_gguf(args.bundle, args.json)
        return
    opened = open_bundle(args.bundle)
    opened.check_sizes()
    if args.provider is not None:
        _show_placement(opened, args)
        return
    for name in ("strict", "threads"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} is about a provider that runs the graphs; name one with --provider.")
    show_bundle(opened, args.json)


def show_bundle(opened: Bundle, as_json: bool) -> None:
    """Show all that the manifest says."""
    targets, cuda = inspect_targets.targets_of(opened), inspect_targets.for_cuda(opened)
    if as_json:
        others = [] if cuda is None else [dataclasses.asdict(cuda)]
        print_json({**summary(opened.manifest), "targets": [*map(inspect_targets.summary, targets), *others]})
        return
    _show(opened.manifest)
    for target in targets:
        inspect_targets.show(target, console(wrap=True))
    if cuda is not None:
        inspect_targets.show_cuda(cuda, console(wrap=True))


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
        "chat_format": manifest.chat_format is not None,
        "generation": fields["generation"],
        "thinking": fields["thinking"],
        **({} if manifest.embedding is None else {"embedding": fields["embedding"]}),
        "source": fields["source"],
        "files": fields["files"],
        "bytes": sum(file.size for file in manifest.files),
    }


def _show(manifest: Manifest) -> None:
    from edge.runtime.providers.instructions import lacking

    dims, kv, source, out = manifest.dims, manifest.kv, manifest.source, console()
    sizes = {file.path: file.size for file in manifest.files}
    windows = sorted({layer.window for layer in kv.layers if layer.window is not None})
    sliding = sum(layer.window is not None for layer in kv.layers)
    rows = {
        "parameters": f"{sum(group.parameters for group in manifest.groups):,}",
        "weights": f"{manifest.weights}, {manifest.bits_per_weight:.2f} bits per weight",
        "layers": f"{dims.num_layers}, hidden size {dims.hidden_size}, feed-forward size {dims.intermediate_size}",
        "attention": f"{dims.num_heads} heads, {dims.num_kv_heads} KV heads, head size {dims.head_dim}"
        + (f"; {sliding} layers see the last {', '.join(map(str, windows))} tokens" if sliding else ""),
        "vocabulary": f"{dims.vocab_size:,}",
        **_of_vectors(manifest),
        "context": f"{manifest.context:,} tokens"
        + (f", {shown_bytes(kv.bytes_per_token)} of KV cache ({kv.dtype}) for each" if kv.layers else ""),
        **({"chat template": _chats(manifest)} if manifest.kind == "decoder" else {}),
        **(_settings(manifest) if manifest.embedding is None else {}),
        "source": f"{source.name} ({source.kind})",
        "licence": source.licence or "not stated by the source",
        "producer": f"{manifest.producer}, format {manifest.format_version}",
        "size": shown_bytes(sum(sizes.values())),
    }
    if manifest.prefill is not None:
        rows["long prompts"] = f"a graph in {manifest.prefill.weights}, {shown_bytes(_prefill_bytes(manifest))} more"
    _print(f"{manifest.name}, {manifest.family}", ("", ""), rows.items())
    if (sentence := lacking()) is not None:
        out.print(sentence, soft_wrap=False)

    second = [] if manifest.prefill is None else manifest.prefill.groups
    for title, listed in (("Group", manifest.groups), ("Long prompts", second)):
        cells = [
            (
                group.name,
                f"{group.parameters:,}",
                shown_bytes(group.bytes),
                f"{group.bits:.4g}",
                str(group.block_size or "-"),
                f"{8 * group.bytes / group.parameters:.2f}",
                group.method,
            )
            for group in listed
        ]
        _print("", (title, "Weights", "Bytes", "Bits", "Block", "Bits/\nweight", "Method"), cells)
    graphs = [(graph.role, graph.path, shown_bytes(sizes[graph.path])) for graph in manifest.graphs]
    _print("", ("Graph", "File", "Bytes"), graphs)
    if manifest.segments:
        out.print(f"{len(manifest.segments)} segments" + (", with routers" if manifest.routers else ""))
    quality = [(name, f"{figure:.5g}") for name, figure in manifest.quality.items()]
    _print("", ("Check against float32 at export", "Value"), quality)


def _show_placement(bundle: Bundle, args: argparse.Namespace) -> None:
    """Open and run the graphs on a provider, and show what of them runs where."""
    from edge.cli.profile_tables import show_placement
    from edge.cli.providers import described
    from edge.runtime.costs.measured import open_for
    from edge.runtime.engine.variant import Variant
    from edge.runtime.load import make_engine
    from edge.runtime.profile.ops import measure
    from edge.runtime.profile.placement import of_engine
    from edge.targets import target_for

    bundle.check_files_once()
    provider = open_for(bundle, args.provider, args.threads, args.strict)
    if (target := target_for(bundle, provider.name)) is not None:
        placement = of_engine(make_engine(bundle, Variant(target=target), provider))
    else:
        placement = measure(bundle, provider=provider, sizes=(1,), seconds=SECONDS).placement
    if args.json:
        devices = [dataclasses.asdict(device) for device in provider.devices()]
        found = {"name": bundle.manifest.name, "provider": provider.name, "devices": devices}
        print_json({**found, "placement": [dataclasses.asdict(row) for row in placement]})
        return
    console().print(f"{bundle.manifest.name} on {provider.name} ({'; '.join(described(provider.devices()))})")
    show_placement(placement, console())


def _of_vectors(manifest: Manifest) -> dict[str, str]:
    """Rows on a model's vectors, or on what it ranks."""
    given = manifest.embedding
    if given is None:
        return {}
    if given.pair is not None:
        return {
            "ranks": "documents by how well they answer a query" + (", by types of tokens" if given.pair.types else "")
        }
    how = {"mean": "the mean of a text's tokens", "cls": "a text's first token", "last": "a text's last token"}
    made = how.get(given.pooling, "the largest number of a text's tokens")
    rows = {"vectors": f"{given.width} numbers, {made}" + (", at length 1" if given.normalized else "")}
    if given.prompts:
        rows["prompts"] = ", ".join(each[:60] for each in given.prompts)[:300]
    return rows


def _chats(manifest: Manifest) -> str:
    if manifest.chat_template is None:
        return "none: only --raw prompts"
    if manifest.external:  # which no phone reads, and so has none
        return "yes"
    return "yes" if manifest.chat_format is not None else "yes, but no chat format: a phone cannot render it"


def _settings(manifest: Manifest) -> dict[str, str]:
    """Rows on how chats are answered, sampling and thoughts, where the model's makers set any."""
    shown = manifest.generation.sampling if manifest.kind == "decoder" and manifest.generation is not None else ""
    rows = {"sampling": f"{shown}; --temperature 0 is greedy"} if shown else {}
    if (marks := manifest.thinking) is not None:
        default = "unless --no-think" if marks.default else "with --think"
        rows["thoughts"] = f"between {marks.open} and {marks.close}, {default}"
    return rows


def _prefill_bytes(manifest: Manifest) -> int:
    """Bytes of the int8 prefill graph and its weights."""
    assert manifest.prefill is not None
    path = manifest.graph("prefill").path
    return sum(g.bytes for g in manifest.prefill.groups) + sum(f.size for f in manifest.files if f.path == path)


def _print(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, unless it is empty."""
    shown = table(title, *columns, text={columns[0], "", "Value", "File", "Method"}, compact=True)
    for row in rows:
        shown.add_row(*row)
    if shown.row_count:
        console(wrap=True).print(shown)
