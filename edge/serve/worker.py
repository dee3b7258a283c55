"""The thread in which one model answers all that is asked of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edge.errors import EdgeError, InputError
from edge.runtime.batch.answer import BatchAnswer, Deliver
from edge.runtime.batch.batch import Batch
from edge.runtime.decode.answer import check_prompt
from edge.runtime.decode.generate_options import EFFORTS, GenerateOptions, never
from edge.runtime.decode.sampling import Sampler
from edge.runtime.decode.thoughts import THINK_TOKENS
from edge.runtime.memory.shares import closed
from edge.serve.hold import Held
from edge.serve.refusal import WorkerClosed, too_many

if TYPE_CHECKING:
    from edge.runtime.model import Model, Prompt

CLOSE_S = 30.0  # in which a step ends


class Job(NamedTuple):
    """An answer that somebody asked for. ended: is called once it has ended, or failed (`BatchAnswer.error`)."""

    answer: BatchAnswer
    ended: Callable[[BatchAnswer], None]


class Worker(Held):
    """Answers what is asked of a decoder, several at a time, in a thread of its own. It rests while nothing is asked.

    Args:
        model: which answers; it is closed with the worker.
        parallel: maximum answers that grow at a time.
        queue: maximum answers that wait.
    """

    def __init__(self, model: Model, *, parallel: int, queue: int) -> None:
        super().__init__(model.bundle.manifest.name)
        self.model, self._parallel, self._queue = model, parallel, queue
        self._new: list[Job] = []
        self._jobs: dict[BatchAnswer, Job] = {}
        self._thread = threading.Thread(target=self._run, name="edge serve", daemon=True)
        self._thread.start()

    def make(
        self,
        prompt: Prompt,
        options: GenerateOptions,
        deliver: Deliver,
        *,
        raw: bool = False,
        wrap: Callable[[Sampler], Sampler] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> BatchAnswer:
        """An answer that is ready to be asked for. Takes as long as the prompt's text to be encoded.

        Raises:
            InputError: the prompt is empty, longer than the context, or refused by the template; or an option is.
            WorkerClosed: the worker was closed.
        """
        started, model = time.perf_counter(), self.model
        try:
            options = _thinking(model, model.settled(options, raw=raw), bool(tools))
            ids, block = model.asked(prompt, None, raw, options.think, tools, options.effort)
            check_prompt(ids, model.engine, "shorten it")
            if options.max_tokens is None:  # as long as the context has room, of which the finish reason tells
                thinks = block is not None and not block.closed and options.think_tokens is None
                thoughts = min(THINK_TOKENS, model.engine.context // 2) if thinks else options.think_tokens
                options = replace(options, max_tokens=model.engine.context, think_tokens=thoughts)
            return BatchAnswer(
                0, (ids, block), options, model.engine, model.text, deliver=deliver, started=started, wrap=wrap
            )
        except InputError:
            if self._closed:  # meanwhile
                raise WorkerClosed(closed(self.name)) from None
            raise

    def ask(self, jobs: Sequence[Job]) -> None:
        """Let answers wait for their turn.

        Raises:
            Refusal: too many wait already, and then none of these does.
            WorkerClosed: the worker was closed.
        """
        with self._change:
            self._check_open()
            self._check_room(len(jobs))
            self._new += jobs
            self._change.notify_all()

    def check_room(self, count: int) -> None:
        """Raise Refusal where so many more answers would be too many that wait; before a prompt is read at all."""
        with self._change:
            self._check_room(count)

    def _check_room(self, count: int) -> None:
        there = len(self._new) + len(self._jobs)
        # The answers of one request that finds nobody there are welcome, however many they are.
        if there and there + count - self._parallel > self._queue:
            raise too_many(self.waiting, self.name, self._queue)

    @property
    def waiting(self) -> int:
        """Answers that wait for their turn."""
        return max(0, len(self._new) + len(self._jobs) - self._parallel)

    @property
    def growing(self) -> int:
        """Answers that grow, or whose prompt is being read."""
        return min(len(self._new) + len(self._jobs), self._parallel)

    @property
    def kept_bytes(self) -> int:
        """Bytes of keys and values of earlier texts."""
        return self.model.prefixes.bytes

    @property
    def idle(self) -> bool:
        """True if nothing is asked."""
        return not self._new and not self._jobs

    @property
    def dead(self) -> bool:
        """True if it answers no more, whatever ended it."""
        return self._closed or not self._thread.is_alive()

    def close(self) -> None:
        """End all answers after the step that runs, and give the model's memory back."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(CLOSE_S)
        self.model.close()

    def _run(self) -> None:
        try:
            while self._more():
                try:
                    with ExitStack() as stack:
                        batch = self._batch(stack)
                        stack.callback(batch.close)
                        while self._more(batch):
                            for answer in batch.step():
                                self._end(answer)
                except BaseException as e:  # a panic of a library is no Exception; the next request is answered
                    self._fail(e)
        finally:
            with self._change:
                self._closed = True
            self._fail(WorkerClosed(closed(self.name)))

    def _more(self, batch: Batch | None = None) -> bool:
        """Give new answers to the batch. Waits where there is nothing to do; False once the worker is closed."""
        with self._change:
            while not self._closed and not self._new and (batch is None or batch.idle):
                self._change.wait()
            if batch is not None:
                for job in self._new:
                    self._jobs[job.answer] = job
                    batch.add(job.answer)
                self._new = []
            return not self._closed

    def _batch(self, stack: ExitStack) -> Batch:
        """The batch of all answers, with its share of a memory limit."""
        model, engine = self.model, self.model.engine
        width = self._parallel
        if engine.plan is not None:
            assert engine.shares is not None
            width = min(width, max(1, engine.plan.demand.branches - 1))  # one more is being read
            needed = engine.plan.answer_bytes((width + 1) * engine.context)
            share = engine.shares.take(needed, never)
            assert share is not None, "nobody interrupts it"
            stack.enter_context(share)
        model.prefixes.serve()
        return Batch(
            engine,
            model.text,
            capacity=engine.context,
            width=width,
            chunk=model.prefill_chunk,
            fair=True,
            speculation=model.speculation,
            prefixes=model.prefixes,
        )

    def _end(self, answer: BatchAnswer) -> None:
        job = self._jobs.pop(answer, None)
        if job is not None:
            job.ended(answer)

    def _fail(self, error: BaseException) -> None:
        """End all answers with an error."""
        with self._change:
            jobs, self._new, self._jobs = [*self._jobs.values(), *self._new], [], {}
        for job in jobs:
            job.answer.error = (
                error if isinstance(error, EdgeError) else RuntimeError(f"{type(error).__name__}: {error}")
            )
            job.ended(job.answer)


def _thinking(model: Model, options: GenerateOptions, tools: bool) -> GenerateOptions:
    """The options with what the model's chat template can have said of thoughts."""
    marks = model.bundle.manifest.thinking
    # An answer whose channel the prompt opens can call nothing: calls have a channel of their own.
    calls = tools and options.think is False and options.form is None and marks is not None and bool(marks.answer)
    if options.effort is None and not calls:
        return options
    options = replace(options, think=None, effort=EFFORTS[0]) if calls else options
    knows = model.template is not None and model.template.takes_effort
    return options if knows else replace(options, effort=None)
