"""Options: values of the Python API, and arguments of the command."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

from fuzz.damage import TEXTS, VALUES, number
from fuzz.oracle import command

NAME = "options"
HELP = "values of the API, and arguments of the command"
TRAITS = {"inputs": ("decoder", "translator", "whisper")}
# What only takes long: threads, and more tokens than a case has time for.
MOST = {"max_tokens": 3, "beams": 4, "threads": 1}
NUMPY = ["float16", "float32", "float64", "int8", "int64", "uint64", "bool"]
COMMANDS = ["run", "inspect", "plan", "verify", "profile", "eval", "models", "providers", "export", "push", "tune", "x"]
MODELS: dict[str, Any] = {}
BUNDLES: dict[str, Path] = {}


def prepare(whole: Path) -> None:
    import edge

    for name in TRAITS["inputs"]:
        BUNDLES[str(name)] = whole / str(name) / "model.edge"
        MODELS[str(name)] = edge.load(BUNDLES[str(name)], threads=1)


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    name = choose.choice(["decoder", "decoder", "translator", "whisper"])
    kind = choose.choice(["answer", "answer", "load", "command"])
    values: Any
    if kind == "command":
        values = _arguments(choose)
    else:
        fields = _fields(name, kind)
        chosen = choose.sample(fields, choose.choice([1, 1, 2, 3]))
        values = {field: _value(choose) for field in chosen}
    case = {"model": name, "kind": kind, "values": values}
    (place / "case.json").write_text(json.dumps(case), encoding="utf-8")


def try_one(place: Path) -> None:
    case = json.loads((place / "case.json").read_text(encoding="utf-8"))
    name, values = case["model"], case["values"]
    if case["kind"] == "command":
        command([*(str(BUNDLES[name]) if each == "BUNDLE" else each for each in values)])
        return
    values = {field: _made(value) for field, value in values.items()}
    if case["kind"] == "load":
        import edge

        with edge.load(BUNDLES[name], **({"threads": 1} | values)) as model:
            _answer(model, {})
    else:
        _answer(MODELS[name], values)


def _answer(model: Any, values: dict[str, Any]) -> None:
    import numpy as np

    import edge

    if isinstance(model, edge.Transcriber):
        model.transcribe(np.zeros(1600, np.float32), **values)
    else:
        most = values.get("max_tokens", 3)
        small = most if type(most) is not int or most < MOST["max_tokens"] else MOST["max_tokens"]
        model.generate("Hello", **values | {"max_tokens": small})


def _fields(name: str, kind: str) -> list[str]:
    import edge
    from edge.runtime.load_options import LoadOptions

    options = {"decoder": edge.GenerateOptions, "translator": edge.Text2TextOptions, "whisper": edge.TranscribeOptions}
    known = [field.name for field in dataclasses.fields(LoadOptions if kind == "load" else options[name])]
    return [field for field in known if field not in ("interrupted", "provider")]


def _value(choose: random.Random) -> Any:
    kind = choose.random()
    if kind < 0.2:
        return {"numpy": choose.choice(NUMPY), "value": choose.choice([0, 1, 2, 0.5, 100])}
    if kind < 0.4:
        return choose.choice([0, 1, 2, 0.5, 0.9, True, "int8", "auto", "off", "300MB", "lookup", "en", ["a"]])
    return choose.choice(VALUES)


def _made(value: Any) -> Any:
    if not (isinstance(value, dict) and "numpy" in value):
        return value
    import numpy as np

    return getattr(np, value["numpy"] if value["numpy"] != "bool" else "bool_")(value["value"])


def _arguments(choose: random.Random) -> list[str]:
    """A command with options of its own and others, most of which have values that they cannot have."""
    from edge.cli.main import COMMANDS as KNOWN

    name = choose.choice(["run", "run", "run", *COMMANDS])
    arguments = [name] if name != "push" else ["inspect"]  # it would look for a phone
    if choose.random() < 0.9:
        arguments.append(choose.choice(["BUNDLE", "BUNDLE", "BUNDLE", "no/such", *TEXTS]))
    options = _options(name) if name in KNOWN and name not in ("export", "tune", "profile", "push") else ["--x"]
    for option in choose.sample(options, min(len(options), choose.randrange(4))):
        arguments.append(option)
        if choose.random() < 0.8:
            arguments.append(choose.choice([str(number(choose, 1)), "0.5", "nan", "inf", "auto", "off", "3", *TEXTS]))
    if name == "run":
        arguments += ["--max-tokens", "2", choose.choice(["Hello", *TEXTS])]
    # No system hands a null character to a process, and what is echoed is as long as it was.
    return [text.replace("\0", "\ufffd")[:400] for text in arguments]


def _options(name: str) -> list[str]:
    from edge.cli.arguments import Parser
    from edge.cli.main import COMMANDS as KNOWN

    parser = Parser(f"edge {name}", "")
    KNOWN.find(name).load().add_arguments(parser)
    skipped = {"--stdin-pcm", "--output", "--file", "-f", "--lines", "--seconds", "--help", "-h", "--provider"}
    names = {option for action in parser._actions for option in action.option_strings}
    return sorted(names - skipped)
