"""Shares of a memory limit. The answers of one model, each in its thread, and its chats may not need more together."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Self, TypeVar

from edge.errors import InputError

WAIT, REFUSE = "wait", "refuse"
WHEN_FULL = (WAIT, REFUSE)  # what becomes of an answer for which there is no room at present
GRACE_S = 1.0  # in which a stream that this thread has begun may go on in another, as in a server's pool of threads
POLL_S = 0.05  # between two looks: whether a stream that nobody has any more was collected, or the answer interrupted

T = TypeVar("T")
Drop = Callable[[], Callable[[], None] | None]
"""A weak reference to what gives memory back."""


def closed(name: str) -> str:
    """Return the message of the error for a model that was closed."""
    return f"The model {name} was closed; load it again."


class Share:
    """Bytes of an answer while it runs, and of a chat between two answers, too. A share ends when it is closed, or when
    no reference to it is left."""

    def __init__(self, shares: Shares, size: int, drop: Drop | None) -> None:
        self._shares, self._drop = shares, drop
        self.size = size
        self.thread = threading.current_thread()  # which computes the answer
        self.idle = False  # whether it may be taken away

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the share back. The garbage collector may call this anywhere, so it does not wait for a lock."""
        self.rest(0)

    def rest(self, size: int) -> None:
        """Mark the share as idle, with so many bytes, until another answer needs them."""
        self.size, self.idle = size, True
        self._shares.changed()

    def take_away(self) -> None:
        """Free the memory of an idle share."""
        drop = None if self._drop is None else self._drop()
        if drop is not None:
            drop()
        self.size = 0


class Shares:
    """A limit on the memory of all answers together. An answer needs a share before its first step. Where there is no
    room, chats between two answers give up their caches; then the answer waits until others have ended, first come
    first served.

    An answer that waits has no share. A thread that has one already, by a stream which it has begun and which no other
    thread continues, is refused instead, so that no thread waits for itself or in a circle.

    Args:
        total: in bytes.
        refuse: whether answers for which there is no room are refused instead of waiting.
        name: of the model.
    """

    def __init__(self, total: int, *, refuse: bool, name: str) -> None:
        self._total, self._refuse, self._name = total, refuse, name
        self._taken: list[weakref.ref[Share]] = []
        self._waiting: list[Share] = []
        self.closed = False  # whether there are no more answers
        self._entering = False
        # Its lock may be taken again by a thread that has it: there, too, the collector may end a stream.
        self._change = threading.Condition()

    def over(
        self, size: int, interrupted: Callable[[], bool], things: Generator[T, None, None]
    ) -> Generator[T, None, None]:
        """Yield what `things` yields, with a share from the first one on; nothing where it was interrupted before there
        was room."""
        share = self.take(size, interrupted)
        if share is None:
            return
        with share:
            try:
                for thing in things:
                    yield thing
                    share.thread = threading.current_thread()
            finally:
                things.close()

    def take(
        self,
        size: int,
        interrupted: Callable[[], bool],
        *,
        instead: Share | None = None,
        drop: Drop | None = None,
    ) -> Share | None:
        """Wait for room and return a share of so many bytes; None where `interrupted` says so before.

        Args:
            instead: an idle share that is given back for it.
            drop: a weak reference to what gives the memory of the share back while it is idle.

        Raises:
            InputError: there is no room, and waiting is not wanted, or would be for this thread itself.
        """
        share = Share(self, min(size, self._total), drop)
        with self._change:
            if (self._holds() or not self._waiting) and self._enter(share, instead):
                return share
            if self._refuse:
                raise InputError(self._full(self._holds()))
            self._waiting.append(share)
        until = time.monotonic() + GRACE_S
        try:
            while not interrupted():
                with self._change:
                    if (self.closed or self._waiting[0] is share) and self._enter(share, instead):
                        return share
                    if not self._holds():
                        until = time.monotonic() + GRACE_S
                    elif time.monotonic() > until:
                        raise InputError(self._full(True))
                    self._change.wait(POLL_S)
            return None
        finally:
            with self._change:
                self._waiting.remove(share)
                self._change.notify_all()

    def spare(self, size: int, drop: Drop) -> Share | None:
        """Return an idle share of so many bytes, which answers take away where they need the room; None where there is
        no room for it beside all that is there. The garbage collector may call this anywhere."""
        share = Share(self, size, drop)
        share.idle = True
        with self._change:
            there = sum(other.size for other in self._there())
            if self.closed or self._waiting or self._entering or there + size > self._total:
                return None
            self._enter(share, None)
        return share

    def close(self) -> None:
        """Refuse all further answers, those that wait included."""
        self.closed = True
        self.changed()

    @property
    def alone(self) -> bool:
        """True if there is at most one share."""
        return len(self._there()) < 2

    def changed(self) -> None:
        """Wake the answers that wait, now or soon."""
        if self._change.acquire(blocking=False):
            try:
                self._change.notify_all()
            finally:
                self._change.release()

    def _holds(self) -> bool:
        """True if a share belongs to this thread, or to one that has ended: waiting for it would not end."""
        return any(not other.idle and _ours(other) for other in self._there())

    def _there(self) -> list[Share]:
        """The shares that are taken, the oldest first."""
        return [share for ref in list(self._taken) if (share := ref()) is not None and share.size]

    def _enter(self, share: Share, instead: Share | None) -> bool:
        """Enter a share if there is room for it. Idle shares are given up for it. True if it was entered; InputError
        where the model was closed."""
        if self.closed:
            raise InputError(closed(self._name))
        self._entering = True
        try:
            return self._entered(share, instead)
        finally:
            self._entering = False

    def _entered(self, share: Share, instead: Share | None) -> bool:
        there = [other for other in self._there() if other is not instead]
        free = self._total - share.size - sum(other.size for other in there)
        idle = [other for other in there if other.idle]
        if free + sum(other.size for other in idle) < 0:
            return False
        for other in idle:
            if free >= 0:
                break
            free += other.size
            other.take_away()
        if instead is not None:
            instead.size = 0
        self._taken = [weakref.ref(other) for other in [*there, share] if other.size]
        share.thread = threading.current_thread()
        return True

    def _full(self, holds: bool) -> str:
        if holds:
            return (
                f"The memory limit of {self._name} has no room for another answer beside those that this thread has "
                "begun, and would wait for itself; read their streams to the end or close them, or raise the memory."
            )
        return (
            f"The memory limit of {self._name} has no room for another answer at present; ask again when one has "
            "ended, raise the memory, or load the model with when_full='wait'."
        )


def _ours(share: Share) -> bool:
    """True if no other thread can give this share back: it belongs to this thread, or to one that has ended."""
    return share.thread is threading.current_thread() or not share.thread.is_alive()
