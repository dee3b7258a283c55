"""What mkdocs must know of this repository: pages that stand outside of docs/, and anchors as GitHub makes them.

Links are written for GitHub, relative to the page's place in the repository. On the site a page from outside has
another place, and what the site does not have, a folder or a program, is shown without a link.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

# Pages of the repository, by their place on the site.
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "examples.md": "examples/README.md",
    "android-app.md": "android_demo/app/README.md",
    "kernels.md": "kernels/README.md",
}
ON_SITE = {place: page for page, place in OUTSIDE.items()}
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for page, place in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(root / place)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    site = page.file.src_uri
    root, place = Path(config.config_file_path).parent, OUTSIDE.get(site, f"docs/{site}")

    def moved(found: re.Match[str]) -> str:
        text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        if not target or ":" in target:
            return found.group()
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        shown = ON_SITE.get(there, there.removeprefix("docs/"))
        if files.get_file_from_path(shown) is None and (root / there).exists():
            return text[1:-1] if text.startswith("[") else ""
        return f"{text}({posixpath.relpath(shown, posixpath.dirname(site) or '.')}{anchor})"

    return LINK.sub(moved, markdown)
