"""The common base of `Model`, `Text2Text` and `Transcriber`: a bundle, its engine, and what drafts."""

from __future__ import annotations

import gc
from functools import cached_property
from typing import TYPE_CHECKING, Self

from edge.errors import InputError
from edge.home import curves_dir, is_folder
from edge.runtime.background import Background
from edge.runtime.memory.process import release_freed
from edge.runtime.memory.shares import closed
from edge.runtime.speculate.drafter import OFF, chosen, find

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.engine.engine import Engine
    from edge.runtime.speculate.speculation import Speculation


class Loaded:
    """A bundle in memory.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        speculate: what drafts tokens that are verified several in a step: ``auto``, ``off`` or a name of
            `edge.runtime.speculate.drafter.DRAFTERS`.

    Raises:
        InputError: there is no such drafter, or it does not serve the bundle.
    """

    def __init__(self, bundle: Bundle, engine: Engine | Background[Engine], speculate: str) -> None:
        self.bundle = bundle
        self._engine: Engine | Background[Engine] | None = engine
        self._speculate = chosen(speculate, bundle)
        if self._speculate != OFF:  # imported while the weights load
            import edge.runtime.speculate.speculation

            find(self._speculate)
            if is_folder(curves_dir()):
                import edge.runtime.costs.curve  # noqa: F401

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the weights and whatever else the model holds, its chats' caches too once nobody has them. It answers
        no more: answers under way, in other threads too, end at their next step with an InputError."""
        engine, self._engine = self._engine, None
        if engine is not None and not isinstance(engine, Background):
            engine.close()
        self.__dict__.pop("speculation", None)
        gc.collect()
        release_freed()

    @property
    def engine(self) -> Engine:
        """The engine, as soon as it has loaded.

        Raises:
            InputError: the model was closed.
        """
        engine = self._engine
        if engine is None:
            raise InputError(closed(self.bundle.manifest.name))
        if isinstance(engine, Background):
            self._engine = engine = engine.result()
            release_freed()  # what reading the tokenizer took: 48 MiB of one with 128,000 tokens
        return engine

    def wait(self) -> None:
        """Wait until the engine has loaded. Its errors are raised here, and not as a fault of a text."""
        self.engine.check_open()

    @property
    def most_tokens(self) -> int:
        """Maximum tokens of a text, as far as that is known without waiting for the weights."""
        engine, manifest = self._engine, self.bundle.manifest
        if manifest.encoder is not None:
            return manifest.encoder.max_length
        return manifest.context if engine is None or isinstance(engine, Background) else engine.context

    @cached_property
    def speculation(self) -> Speculation | None:
        """The drafter and its planner, with what they have learnt; None where nothing drafts."""
        if self._speculate == OFF:
            return None
        from edge.runtime.speculate.speculation import make_speculation

        return make_speculation(self._speculate, self.engine)
