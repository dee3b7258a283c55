"""A profile as one page that works offline: its style, its scripts and its figures stand in it.

report.html is the page, report.css its style; charts.js draws, operators.js and report.js say what.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from importlib.resources import files

from edge.profile.roofline import step_times
from edge.runtime.costs.record import Profile

SCRIPTS = ("operators.js", "report.js")


def page(profile: Profile) -> str:
    """The page of a profile; sections whose figures it lacks are left out."""
    parts = {
        "TITLE": html.escape(f"{profile.bundle.name} on {profile.device.name}"),
        "STYLE": _read("report.css"),
        "DATA": _data(profile),
        "CHARTS": _read("charts.js"),
        "REPORT": "\n".join(map(_read, SCRIPTS)),
    }
    return re.sub(r"%([A-Z]+)%", lambda match: parts[match[1]], _read("report.html"))


def _data(profile: Profile) -> str:
    """Return the data of the scripts as JSON that cannot end the element around it. Operators are summed up by step,
    not listed one by one."""
    steps = []
    for step in step_times(profile.ops, profile.peaks):
        layers = {name: [(place, round(us, 2)) for place, us in nodes] for name, nodes in step.layers.items()}
        steps.append(dataclasses.asdict(step) | {"layers": layers, "order": list(layers)})
    whole = dataclasses.asdict(dataclasses.replace(profile, ops=[]))
    return json.dumps({"profile": whole, "steps": steps}, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (files("edge.profile") / name).read_text(encoding="utf-8")
