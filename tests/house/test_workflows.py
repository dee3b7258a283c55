"""What the files for GitHub, pre-commit and the site name exists: targets of make, programs, extras, versions."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from places import DOCS, ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
FILES = [*WORKFLOWS, *FORMS, ROOT / ".pre-commit-config.yaml", ROOT / "mkdocs.yml"]
TARGETS = re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
SETTINGS = re.findall(r"^([A-Z_]+) [?:]?=", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {"build", "cibuildwheel", "mypy", "pip", "pytest", "twine"}  # of `python -m`


def read(file: Any) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps of all jobs, each with the name of its job."""
    for workflow in WORKFLOWS:
        for name, job in read(workflow)["jobs"].items():
            yield from ((f"{workflow.stem}: {name}", step) for step in job["steps"])


RUN = [(job, line) for job, step in steps() for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_file_is_yaml(file: Any) -> None:
    assert isinstance(read(file), dict)


@pytest.mark.parametrize(("job", "line"), RUN, ids=[f"{job}: {line}" for job, line in RUN])
def test_a_command_names_what_there_is(job: str, line: str) -> None:
    program, *words = shlex.split(line)
    if program == "make":
        targets = [word for word in words if "=" not in word]
        assert targets and {*targets} <= {*TARGETS}
        assert {word.partition("=")[0] for word in words if "=" in word} <= {*SETTINGS}
    elif program == "python":
        assert words[0] == "-m" and words[1] in MODULES
        if words[1:3] == ["pip", "install"]:
            for extras in re.findall(r"\.\[([\w,]+)\]", line):
                assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}
        for word in words[2:]:
            assert not re.match(r"(tests|kernels|constraints)\b", word) or (ROOT / word).exists()
    elif program == ".ci/run":
        assert os.access(ROOT / program, os.X_OK)
    else:
        assert program in ("git", "ruff"), f"{job} runs a program that this test does not know"


def test_a_change_runs_what_is_run_by_hand_and_stops_only_where_it_was_tried() -> None:
    jobs = read(GITHUB / "workflows" / "ci.yml")["jobs"]
    assert ("ci: linux", ".ci/run") in RUN and ("ci: docs", "make docs") in RUN
    assert {name for name, job in jobs.items() if job.get("continue-on-error")} == {"macos", "windows"}


def test_versions_are_those_of_the_project() -> None:
    pythons = [step["with"]["python-version"] for _, step in steps() if "setup-python" in step.get("uses", "")]
    assert {f">={python}" for python in pythons} == {PROJECT["requires-python"]}
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (ruff,) = (repo["rev"] for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] if "ruff" in repo["repo"])
    assert f"\nruff=={ruff.removeprefix('v')}\n" in constraints


def test_one_major_version_of_each_action_is_used() -> None:
    used = {step["uses"] for _, step in steps() if "uses" in step}
    assert len({action.partition("@")[0] for action in used}) == len(used)


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def test_the_site_shows_every_page_once() -> None:
    shown = [page for page in pages(read(ROOT / "mkdocs.yml")["nav"])]
    hooks = (DOCS / "site_hooks.py").read_text(encoding="utf-8")
    outside = dict(re.findall(r'^    "([\w-]+\.md)": "([\w./]+\.md)",$', hooks, re.MULTILINE))
    assert sorted(shown) == sorted([*outside, *(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))])
    assert all((ROOT / place).exists() for place in outside.values())
