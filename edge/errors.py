"""Every error that a person may meet. Each message is one sentence: what was wrong, where, and what to do.

The command prints the sentence and exits with status 2; a traceback is shown only with ``--debug``.
"""

from __future__ import annotations


class EdgeError(Exception):
    """Base of all errors that `edge` raises on purpose."""


class BundleError(EdgeError):
    """A bundle is missing, damaged, of another version, or breaks the contract."""


class CheckpointError(EdgeError):
    """A source of weights cannot be found, read, or does not match its configuration."""


class CatalogError(EdgeError):
    """A model is not in the catalog, cannot be fetched, or its licence was not accepted."""


class ExportError(EdgeError):
    """An export cannot be carried out as asked."""


class InterruptedExport(ExportError):
    """An export was ended by Ctrl-C or SIGTERM."""


class InputError(EdgeError):
    """A prompt or an option has a value that cannot be used."""


class PhoneError(EdgeError):
    """A phone is not connected, lacks the app, has no room, or went away."""


class DeviceError(EdgeError):
    """A device next to the processor failed in the middle of its work, or is no longer there."""


class MissingExtraError(EdgeError):
    """A command needs an optional dependency that is not installed."""


def brief(value: object, most: int = 60) -> str:
    """What somebody's file says, as part of a sentence of ours: on one line, at most `most` long."""
    return " ".join(str(value).split())[:most]


def on_one_line(error: BaseException, most: int = 300) -> str:
    """A library's message as part of a sentence of ours: on one line, without its full stop, at most `most` long."""
    return brief(error, most).rstrip(".") or type(error).__name__
