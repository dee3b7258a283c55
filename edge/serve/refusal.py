"""What a server says no with: a status and a sentence."""

from __future__ import annotations

from edge.errors import EdgeError

BAD, UNKNOWN, TOO_LARGE, TOO_SLOW, BUSY, BROKEN = 400, 404, 413, 408, 429, 500


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
