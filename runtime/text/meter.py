"""Budget of one render of a chat template: steps, characters, and a limit of processor time as a last resort."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any

from jinja2 import TemplateError

STEPS = 1 << 18  # of a render of an empty conversation, a second; an honest template takes some dozen for a message
ROOM = 1 << 22  # characters of any one value
TEXT = 4  # times the room: characters of all values together
PER_CHARACTER = 16  # more of each for every character of a conversation
ITEM = 8  # characters that an item of a list counts as
BITS = 4096  # of an integer
DEPTH = 64  # of lists in lists
CPU_S = 5.0
CHECKED = 16  # steps from one look at the clock to the next

ARGUMENTS = 1 << 10  # of a call, and items of a tuple: with more of them it takes long as a key

_NONE: dict[str, str] = {}
VIEWS: tuple[type[Any], ...] = (type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))
CONTAINERS: tuple[type[Any], ...] = (list, tuple, dict, set, *VIEWS)


class Exhausted(TemplateError):
    """Raised where a template does more than any honest one."""


class Meter:
    """The budget that is left to one render. characters: of the conversation, in so many messages."""

    __slots__ = ("_ends", "room", "steps", "text")

    def __init__(self, characters: int = 0, messages: int = 0) -> None:
        self.room = ROOM + PER_CHARACTER * characters
        self.steps = STEPS + PER_CHARACTER * (characters + messages * messages)
        self.text = TEXT * self.room + PER_CHARACTER * characters * messages
        self._ends = time.thread_time() + CPU_S

    def step(self, characters: int = 0, steps: int = 1) -> bool:
        """Count a step that makes so many characters."""
        before = self.steps
        self.steps = after = before - steps
        self.text -= characters
        if before ^ after >= CHECKED or self.text < 0 or characters > self.room:
            self._look(characters)
        return True

    def _look(self, characters: int) -> None:
        if self.steps < 0:
            raise Exhausted("it takes more steps than any template needs")
        if self.text < 0:
            raise Exhausted("it makes more text than any model reads")
        self.check(characters)
        if time.thread_time() > self._ends:
            raise Exhausted("it takes more time than any template needs")

    def check(self, characters: int) -> None:
        """Raise Exhausted where a value of so many characters is too long."""
        if characters > self.room:
            raise Exhausted("it makes more text than any model reads")

    def made(self, value: Any) -> Any:
        """Count a value that the template made, and return it."""
        if isinstance(value, str):
            self.step(len(value))
        elif isinstance(value, CONTAINERS):
            characters, items, depth = weigh(value, self.room)
            if isinstance(value, tuple) and items > ARGUMENTS:
                raise Exhausted(f"it makes tuples of more than {ARGUMENTS} items")
            if depth > DEPTH:
                raise Exhausted(f"its lists are nested more than {DEPTH} times")
            self.check(characters)
            self.step(ITEM * len(value), 1 + items // 4)
        elif isinstance(value, GeneratorType):
            return self.stepped(value)
        else:
            self.step()
            if type(value) is int and value.bit_length() > BITS:
                raise Exhausted(f"it counts beyond 2**{BITS}")
        return value

    def stepped(self, values: Iterable[Any], characters: int = 0, steps: int = 1) -> Iterator[Any]:
        """Yield the values; each counts as so many steps and characters."""
        for value in values:
            self.step(characters, steps)
            yield value

    def texts(self, values: Iterable[Any]) -> list[str]:
        """Convert the values to texts, and count each."""
        made: list[str] = []
        for value in values:
            text = value if isinstance(value, str) else str(value)
            self.step(len(text))
            made.append(text)
        return made


def weigh(value: Any, room: int) -> tuple[int, int, int]:
    """Return the characters of a value when written out, the number of its items, and how deep they are nested. An item
    in two places counts twice, and counting ends beyond the room."""
    characters = items = deepest = 0
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        items += 1
        if isinstance(each, str):
            characters += len(each)
        elif isinstance(each, CONTAINERS):
            depth += 1
            deepest = max(deepest, depth)
            if characters + ITEM * (items + len(each)) > room or depth > DEPTH:
                return room + 1, items, depth
            waiting += [(inner, depth) for inner in each]
            if isinstance(each, dict):
                waiting += [(inner, depth) for inner in each.values()]
        if characters + ITEM * items > room:
            return room + 1, items, deepest
    return characters, items, deepest
