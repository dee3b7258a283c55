"""What a server says no with: a status and a sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import JSONResponse

from edge.errors import EdgeError, InputError

_log = logging.getLogger(__name__)

WAIT_S = 1  # after which a client that was sent away may ask again
BAD, UNKNOWN, TOO_LARGE, TOO_SLOW, BUSY, BROKEN, AWAY = 400, 404, 413, 408, 429, 500, 503


class Refusal(EdgeError):
    """A request that is not answered. field: of the request, that it is about. wait_s: when to ask again."""

    def __init__(self, status: int, sentence: str, *, field: str | None = None, wait_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.field, self.wait_s = status, field, wait_s

    @property
    def kind(self) -> str:
        """The name of the status in OpenAI's protocol."""
        names = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        return names.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


def refused(path: str, refusal: Refusal, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response of a refusal in the form of the protocol that a path is of."""
    wait = {} if refusal.wait_s is None else {"Retry-After": str(refusal.wait_s)}
    return JSONResponse({"error": told_in(path, refusal)}, refusal.status, {**wait, **(headers or {})})


def told_in(path: str, refusal: Refusal) -> object:
    """What a refusal is in the JSON of the protocol that a path is of."""
    if path.startswith("/api/"):
        return str(refusal)
    return {"message": str(refusal), "type": refusal.kind, "param": refusal.field, "code": None}


BROKEN_MODEL = "The model cannot be used; the server's log says why."


def told_of(error: EdgeError) -> str:
    """What a client is told of an error: not what is wrong with files of this machine, which the log says."""
    if isinstance(error, InputError | Refusal):
        return str(error)
    _log.error("%s", error)
    return BROKEN_MODEL


class WorkerClosed(InputError):
    """A model was closed meanwhile, and is loaded again when it is asked for again."""


def too_many(waiting: int, name: str, most: int) -> Refusal:
    """The refusal of a request for which too many wait already."""
    sentence = f"{waiting} requests wait for {name}, and no more than {most} may; ask again later."
    return Refusal(BUSY, sentence, wait_s=WAIT_S)
