"""Write what follows from the fields of options: `make options` does it, after a field was added or changed.

For type checkers, a TypedDict of each class, so that they know every keyword of `edge.load(path, memory="2GB")`: none
of them derives one from a dataclass. The other way, signatures that name every keyword, would state an option of an
answer ten times. For people, docs/reference/options.md. `tests/house/test_options_written.py` fails where a file is not
as this writes it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from edge.export.request.export_request import ExportRequest
from edge.export.tune.settings import Settings
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.embed.embed_options import EmbedOptions
from edge.runtime.embed.rerank_options import RerankOptions
from edge.runtime.load_options import LoadOptions
from edge.runtime.options import Option, fields, has_option, option_of, wanted
from edge.runtime.speech.transcribe_options import TranscribeOptions

ROOT = Path(__file__).parents[1]
KEYWORDS = {
    "runtime/keywords.py": (
        *(LoadOptions, GenerateOptions, Text2TextOptions, TranscribeOptions),
        *(EmbedOptions, RerankOptions),
    ),
    "export/request/keywords.py": (ExportRequest,),
}
PAGE = "docs/reference/options.md"
SECTIONS: dict[str, tuple[type[Any], str]] = {
    "Loading": (LoadOptions, "`edge.load`, and `edge run`"),
    "Answers": (GenerateOptions, "`generate`, `stream`, `answers` and `chat` of a `Model`, and `edge run`"),
    "Text to text": (Text2TextOptions, "`generate`, `stream` and `candidates` of a `Text2Text`, and `edge run`"),
    "Transcription": (TranscribeOptions, "`transcribe` and `transcribe_stream` of a `Transcriber`, and `edge run`"),
    "Vectors": (EmbedOptions, "`embed` of an `Embedder`, and `edge embed`"),
    "Ranking": (RerankOptions, "`rank` of a `Reranker`, and `edge rerank`"),
    "Export": (ExportRequest, "`edge.export`, and `edge export`"),
    "Tuning": (Settings, "`edge tune`, and its recipes, which name an option as the command line does"),
}
INTRO = """\
# Options

<!-- Written by `make options` from the fields of the classes below. Do not edit. -->

Every option is a field of a frozen dataclass, and is given as such, as a keyword, or on the command line. `None` stands
for what the bundle or the device decides, as its row says. A value out of its range and an option that would be ignored
are refused in a sentence.
"""


def written() -> dict[str, str]:
    """The files that follow from the fields, by their path in the repository."""
    return {path: keywords(classes) for path, classes in KEYWORDS.items()} | {PAGE: _page()}


def keywords(classes: tuple[type[Any], ...]) -> str:
    """A module with a TypedDict of each class of options."""
    wanted_from = defaultdict[str, set[str]](set)
    dicts = []
    for options in classes:
        lines = []
        for field in filter(has_option, fields(options)):
            lines.append(f"    {field.name}: {field.type}\n")
            home = next(each for each in options.__mro__ if field.name in inspect.get_annotations(each))
            origins = _imports(home)
            names = {node.id for node in ast.walk(ast.parse(str(field.type))) if isinstance(node, ast.Name)}
            for name in names & origins.keys():
                wanted_from[origins[name]].add(name)
        name = options.__name__.removesuffix("Options").removesuffix("Request")
        doc = f'    """The fields of `{options.__name__}`."""\n\n'
        dicts.append(f"\n\nclass {name}Keywords(TypedDict, total=False):\n{doc}{''.join(lines)}")
    imports = [f"    from {home} import {', '.join(sorted(names))}\n" for home, names in sorted(wanted_from.items())]
    ours = [line for line in imports if line.startswith("    from edge.")]
    theirs = [line for line in imports if line not in ours]
    return (
        '"""The fields of options, as keywords for type checkers. Written by `make options`; do not edit."""\n\n'
        "from __future__ import annotations\n\nfrom typing import TYPE_CHECKING, TypedDict\n\nif TYPE_CHECKING:\n"
        + ("".join(theirs) + ("\n" if theirs and ours else "") + "".join(ours))
        + "".join(dicts)
    )


def _imports(options: type[Any]) -> dict[str, str]:
    """The modules that the names in the module of a class come from."""
    source = sys.modules[options.__module__].__file__
    assert source is not None
    nodes = [node for node in ast.walk(ast.parse(Path(source).read_text())) if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in nodes for name in node.names}


def _page() -> str:
    parts = [INTRO]
    for heading, (options, where) in SECTIONS.items():
        head = "| keyword | on the command line | type and range | meaning | default |\n|---|---|---|---|---|\n"
        parts.append(f"\n## {heading}\n\n`{options.__name__}`: {where}.\n\n{head}{rows(options)}")
    return "".join(parts)


def rows(options: type[Any]) -> str:
    """The rows of a table of the options of a class."""
    return "".join(map(_row, filter(has_option, fields(options))))


def _row(field: dataclasses.Field[Any]) -> str:
    known = option_of(field)
    first, _, value = known.flag.partition(" ")
    flag = f"`{' '.join(filter(None, [first.partition('/')[0], value]))}`" if known.flag else ""
    takes = ": ".join(filter(None, [f"`{field.type}`", wanted(known.check)]))
    cells = [f"`{field.name}`", flag, takes, _meaning(known), _default(field.default)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _meaning(known: Option) -> str:
    text = known.about or known.help
    if known.names is None:
        return text
    listed = str(known.names())  # names, or each with what it is
    return text.replace("%(names)s", listed if ":" in listed else ", ".join(f"`{name}`" for name in listed.split(", ")))


def _default(value: Any) -> str:
    if callable(value):
        return value.__name__
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    for path, text in written().items():
        (ROOT / path).write_text(text, encoding="utf-8")
