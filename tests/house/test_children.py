"""No process is started but by `edge.children`, which sees to what it imports and when it ends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

ALLOWED = ROOT / "edge" / "children.py"
MODULES = {
    *("subprocess", "multiprocessing", "pty", "popen2", "commands", "_posixsubprocess", "_winapi", "webbrowser"),
    *("joblib", "loky", "billiard", "pexpect", "plumbum", "antigravity", "asyncio.subprocess"),
    *("concurrent.futures.process", "torch.multiprocessing", "torch.utils.cpp_extension", "torch.distributed"),
    *("ctypes.util", "distutils", "setuptools", "ensurepip", "venv", "idlelib", "turtledemo"),
}
# Of whatever object: no other has methods of these names here.
NAMES = {
    *("popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile", "fork_exec"),
    *(f"{kind}{form}" for kind in ("exec", "spawn") for form in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *("ProcessPoolExecutor", "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec"),
    *("subprocess_shell", "find_library", "Popen", "check_output", "check_call", "getstatusoutput"),
    *("num_workers", "num_proc", "n_jobs", "getnode", "uuid1", "libc_ver"),
}
WHOLE = {"platform.processor", "platform.architecture", "platform.platform", "torch.compile"}


def starts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The places where a module may start a process, or is given something that may, and by what."""
    for node in ast.walk(tree):
        named = list[str]()
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]
            named += [f".{each.name}" for each in node.names if each.name in NAMES | {"system"}]
        elif isinstance(node, ast.Attribute):
            whole = ast.unparse(node)
            if node.attr in NAMES or whole in WHOLE:
                yield node.lineno, whole
        elif isinstance(node, ast.Call) and re.search(r"(?<!^platform)\.system$", ast.unparse(node.func)):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id in NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.keyword) and node.arg in {*NAMES, "preexec_fn"}:
            yield node.value.lineno, str(node.arg)
        elif isinstance(node, ast.Constant) and node.value in MODULES | NAMES:  # getattr, import_module
            yield node.lineno, repr(node.value)
        for name in named:
            parts = name.split(".")
            if any(".".join(parts[:i]) in MODULES for i in range(1, len(parts) + 1)) or name.startswith("."):
                yield getattr(node, "lineno", 0), name


def test_processes_are_started_in_one_module_only() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line} {what}"
        for folder in ("edge", "export", "models", "runtime")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if file != ALLOWED
        for line, what in starts(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []
    assert list(starts(ast.parse(ALLOWED.read_text(encoding="utf-8"))))


WAYS = [
    "import subprocess",
    "import multiprocessing.pool as p",
    "from subprocess import run",
    "from multiprocessing import get_context",
    "from concurrent.futures import ProcessPoolExecutor",
    "from concurrent.futures.process import BrokenProcessPool",
    "import concurrent.futures; concurrent.futures.ProcessPoolExecutor()",
    "import os; os.system('x')",
    "from os import system",
    "from os import fork as f",
    "import os as o; o.execvp('x', ['x'])",
    "import os; os.posix_spawn('x', [], {})",
    "import os; os.popen('x')",
    "import os; getattr(os, 'popen')('x')",
    "import pty; pty.spawn('x')",
    "import asyncio; asyncio.create_subprocess_exec('x')",
    "from asyncio import subprocess",
    "import importlib; importlib.import_module('subprocess')",
    "__import__('multiprocessing')",
    "from torch.utils.data import DataLoader; DataLoader(d, num_workers=2)",
    "import torch; torch.compile(f)",
    "import torch.multiprocessing as mp",
    "from ctypes.util import find_library",
    "import ctypes.util; ctypes.util.find_library('c')",
    "import platform; platform.processor()",
    "import uuid; uuid.getnode()",
    "import webbrowser",
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_start_a_process_is_found(way: str) -> None:
    assert list(starts(ast.parse(way)))


@pytest.mark.parametrize("code", ["import platform; platform.system()", "from concurrent.futures import Future"])
def test_what_starts_none_is_not_found(code: str) -> None:
    assert list(starts(ast.parse(code))) == []


def test_no_checkpoints_own_code_is_run() -> None:
    """transformers runs Python of a model's folder where it is told to trust it."""
    found = [
        f"{file.relative_to(ROOT)}:{node.value.lineno}"
        for folder in ("edge", "export", "models", "runtime")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code" and ast.unparse(node.value) != "False"
    ]
    assert found == []
