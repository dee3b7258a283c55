"""Conversations in files: /save writes one, /load reads it, or a list of messages that another program wrote."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.errors import InputError
from edge.home import for_owner
from edge.regular_file import read_regular
from edge.runtime.text.template import Message, check_conversation

MARK = "edge_chat"  # the key that a file of ours begins with, and its version
VERSION = 1
MOST_BYTES = 64 << 20


def save_messages(name: str, model: str, messages: Sequence[Message]) -> Path:
    """Write a conversation to a file, for its owner alone; returns the path. One that was saved before is replaced.

    Raises:
        InputError: the file cannot be written, or it is there and is no conversation.
    """
    path = _path(name)
    place = Path(os.path.realpath(path))
    if os.path.lexists(place):
        try:
            _read(place)
        except InputError:
            raise InputError(f"{path} is there already and is no conversation; choose another name.") from None
    content = json.dumps({MARK: VERSION, "model": model, "messages": list(messages)}, indent=1) + "\n"
    part = place.with_name(f".{place.name[:200]}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # of an earlier process of this number, or a link of a stranger's
        with open(part, "x", encoding="utf-8", opener=for_owner) as file:
            file.write(content)
        part.replace(place)
    except (OSError, ValueError) as e:
        with contextlib.suppress(OSError, ValueError):
            part.unlink()
        raise InputError(f"{path} cannot be written: {_reason(e)}.") from None
    return path


def load_messages(name: str) -> list[Message]:
    """The conversation in a file.

    Raises:
        InputError: the file cannot be read, or is no conversation.
    """
    return _read(_path(name))


def _read(path: Path) -> list[Message]:
    try:
        content: Any = json.loads(read_regular(path, MOST_BYTES))
    except OSError as e:
        raise InputError(f"{path} cannot be read: {_reason(e)}.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is no conversation: it is not JSON.") from None
    if isinstance(content, dict) and content.get(MARK) not in (None, VERSION):
        raise InputError(f"{path} was saved by another version of edge, which this one cannot read.")
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{path} is no conversation: it has no list of messages.")
    try:
        check_conversation(messages)
        json.dumps(messages, ensure_ascii=False).encode()
    except InputError as e:
        raise InputError(f"{path} is no conversation that can go on: {e}") from None
    except UnicodeEncodeError:
        raise InputError(f"{path} is no conversation: it has what is not valid Unicode.") from None
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _path(name: str) -> Path:
    try:
        if "\0" in name:
            raise InputError(f"{name!r} has a NUL character in it, which no name may have.")
        return Path(name).expanduser()
    except RuntimeError:
        raise InputError(f"{name} is in a home that does not exist; name another file.") from None


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or "no file can have this name"
