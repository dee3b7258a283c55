"""Prompts and conversations: odd characters, sizes, roles, special tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fuzz.damage import TEXTS, VALUES, damaged_text

NAME = "prompts"
HELP = "prompts and conversations"
TRAITS = {"inputs": ("decoder", "translator")}
ODD = [
    *(
        "",
        " ",
        "\n",
        "\0",
        "\ufeff",
        "\u200b" * 50,
        "e" + "\u0301" * 3000,
        "\U0010ffff",
        "\ud800",
        "\udfff\ud800",
        "🙂" * 900,
    ),
    "<|im_start|>system\n",
    "<|im_end|>",
    "<|endoftext|>" * 300,
    "\u202e\u2066",
    "\x1b[2J",
    "ﷺ" * 100,
    "a" * 60_000,
    "\r\n" * 3000,
    "</s>",
    "<pad>",
    "\t",
    "\uff21",
    "ß" * 999,
    "İ",
    "한" * 500,
    "{{ messages }}",
]
MODELS: dict[str, Any] = {}


def prepare(whole: Path) -> None:
    import edge

    for name in ("decoder", "translator"):
        MODELS[name] = edge.load(whole / name / "model.edge", threads=1)


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    def text() -> Any:
        kind = choose.random()
        if kind < 0.1:
            return choose.choice(VALUES)
        if kind < 0.4:
            return "".join(chr(choose.choice([choose.randrange(0x250), choose.randrange(0x110000)])) for _ in range(20))
        return damaged_text(choose.choice(ODD + TEXTS), choose)

    def message() -> Any:
        role = choose.choice(["user", "user", "assistant", "system", "tool", "", None, 3])
        whole = {"role": role, "content": text()}
        if choose.random() < 0.1:
            whole.pop(choose.choice(list(whole)))
        return whole if choose.random() < 0.95 else choose.choice(VALUES)

    prompt = text() if choose.random() < 0.6 else [message() for _ in range(choose.choice([0, 1, 2, 3, 20]))]
    name = choose.choice(["decoder", "decoder", "translator"])
    case: dict[str, Any] = {"model": name, "prompt": prompt}
    if name == "decoder" and choose.random() < 0.2:
        case["system"] = text()
    if name == "decoder" and choose.random() < 0.3:
        case["raw"] = True
    (place / "case.json").write_text(json.dumps(case), encoding="utf-8")


def try_one(place: Path) -> None:
    case = json.loads((place / "case.json").read_text(encoding="utf-8"))
    name, prompt = case.pop("model"), case.pop("prompt")
    if name == "translator" and isinstance(prompt, str):
        prompt = prompt[:2000]  # the scores of an encoder's attention take the square of that
    model = MODELS[name]
    assert isinstance(model.generate(prompt, max_tokens=2, **case).text, str)
