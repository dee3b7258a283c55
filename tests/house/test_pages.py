"""Every link of every page leads somewhere: to a file of the repository, and to a heading that it has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from places import DOCS, ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
        *(ROOT / folder / "README.md" for folder in ("examples", "kernels", "android_demo", "android_demo/app")),
    ]
)
FOLDERS = ("android_demo", "benchmarks", "edge", "examples", "export", "fuzz", "kernels", "models", "runtime", "tests")
CODE = re.compile(r"^ *(```|~~~).*?^ *\1 *$|<!--.*?-->", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
# [text](target "title"), ![image](target), [name]: target, and HTML's href and src.
LINK = re.compile(
    r"""\]\(\s*<?([^)\s>]+)>?[^)]*\)|^ {0,3}\[[^\]]+\]:\s*(\S+)|\b(?:href|src)=["']([^"']+)""", re.MULTILINE
)
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.+?)\s*#*\s*$", re.MULTILINE)
NAMED = re.compile(r"""<a\s+(?:name|id)=["']([^"']+)""")


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings: lower case, without marks, with hyphens for spaces; of equal
    ones the second has -1, the third -2."""
    text = CODE.sub("", text)
    found, times = set(NAMED.findall(text)), Counter[str]()
    for _, title in HEADING.findall(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)  # a link's text
        plain = re.sub(r"<[^>]+>|(?<!\w)[*_]+|[*_]+(?!\w)", "", plain)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{anchor}-{times[anchor]}" if times[anchor] else anchor)
        times[anchor] += 1
    return found


@cache
def anchors(page: Path) -> set[str]:
    return anchors_of(page.read_text(encoding="utf-8"))


def links(text: str) -> Iterator[str]:
    """The targets of a page's links, without those in code."""
    for found in LINK.finditer(INLINE_CODE.sub("", CODE.sub("", text))):
        yield next(filter(None, found.groups()))


def dead(page: Path, text: str) -> list[str]:
    """The targets that lead nowhere; what is on other servers is not asked."""
    wrong = []
    for target in links(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / unquote(name)).resolve() if name else page
        there = file.is_relative_to(ROOT) and file.exists()
        if not there or (anchor and (file.suffix != ".md" or unquote(anchor) not in anchors(file))):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead(page, page.read_text(encoding="utf-8")) == []


def test_links_and_anchors_are_read_as_github_reads_them() -> None:
    page = "# `--speculate self`, and [more](x.md)\n## Bits\n```\n# none\n```\n## Bits\n### GCC's *registers*: a_b\n"
    assert anchors_of(page) == {"--speculate-self-and-more", "bits", "bits-1", "gccs-registers-a_b"}
    text = "[a](b.md#c) ![d](e.png 'title') `[f](g)` <img src=\"h.png\">\n[i]: j.md\n```\n[k](l)\n```\n"
    assert [*links(text)] == ["b.md#c", "e.png", "h.png", "j.md"]
    assert sum(len([*links(page.read_text(encoding="utf-8"))]) for page in PAGES) > 200


def test_a_dead_link_is_found() -> None:
    gone = ["gone.md", "README.md#gone", "../elsewhere.md", "#gone", "LICENSE#gone"]
    text = " ".join(f"[x]({target})" for target in [*gone, "README.md", "https://example.org/gone", "docs/guide"])
    assert dead(ROOT / "README.md", text) == gone


def test_pages_that_code_names_exist() -> None:
    """In comments, sentences and commands."""
    code = {".py", ".kt", ".kts", ".c", ".cpp", ".h", ".toml"}
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in code]
    files += [ROOT / ".ci" / "run", *(ROOT / ".github").rglob("*.yml"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    named = [
        (file, page)
        for file in files
        for page in re.findall(r"(?<![\w/.-])(?:docs|kernels|android_demo)/[\w./-]*\.md\b", file.read_text("utf-8"))
    ]
    assert len(named) > 5
    assert [f"{file.relative_to(ROOT)} names {page}" for file, page in named if not (ROOT / page).exists()] == []
