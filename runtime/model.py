"""`Model`: a loaded bundle that answers prompts, at once or streamed, and holds chats."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.background import Background
from edge.runtime.chat import Chat
from edge.runtime.decode.answer import Piece, Result, answer, check_length, check_prompt, collect, ends_of, own, settled
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.stream import Stream
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.prefixes import Prefixes, grouped
from edge.runtime.keywords import GenerateKeywords
from edge.runtime.loaded import Loaded
from edge.runtime.options import flag, integer, shown, text, unless_none, with_keywords
from edge.runtime.speculate.drafter import AUTO, OFF
from edge.runtime.text.template import ChatTemplate, Message, chat_template, check_messages, learn_end, written
from edge.runtime.text.thinking import Block, render
from edge.runtime.text.tokenizer import Text

Prompt = str | Sequence[Message]
RAW = unless_none(flag("option raw"))
SYSTEM = unless_none(text("system message"))
WIDTH = integer("number of prompts side by side", "1 or more", least=1)


class Model(Loaded):
    """A bundle in memory. `edge.load` makes one.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        text: its tokenizer.
        prefill_chunk: most prompt tokens to run in one step; default: the engine's.
        speculate: what drafts tokens that are verified several in a step: ``auto``, ``off`` or a name of
            `edge.runtime.speculate.drafter.DRAFTERS`.
        day: the date, YYYY-MM-DD, of a chat template that tells the model one; default: today.

    Raises:
        InputError: `prefill_chunk` below 1, or no such drafter.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine | Background[Engine],
        text: Text,
        *,
        prefill_chunk: int | None = None,
        speculate: str = AUTO,
        day: str | None = None,
    ) -> None:
        if prefill_chunk is not None and prefill_chunk < 1:
            raise InputError(f"The prefill chunk must be 1 token or more, not {prefill_chunk}.")
        super().__init__(bundle, engine, speculate)
        self.text = text
        self._prefill_chunk, self._day = prefill_chunk, day
        self._knows_end = False
        self._prefixes: Prefixes | None = None
        self._making = threading.Lock()  # what several threads may ask for first

    def close(self) -> None:
        if self._prefixes is not None:
            self._prefixes.close()
        super().close()

    @property
    def prefill_chunk(self) -> int:
        """Maximum prompt tokens of one step: as asked, or fewer where memory has no room for so many."""
        plan = self.engine.plan
        if plan is not None:
            return plan.demand.chunk
        return self.engine.chunk if self._prefill_chunk is None else self._prefill_chunk

    @property
    def prefixes(self) -> Prefixes:
        """What this model read last, which prompts may begin like."""
        engine = self.engine
        with self._making:
            if self._prefixes is None:
                self._prefixes = Prefixes(engine, self.prefill_chunk)
            return self._prefixes

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The bundle's chat template; None where it has none."""
        return chat_template(self.bundle.manifest, self.text, self._day)

    def learn_end(self) -> None:
        """Know what ends answers, those to raw prompts too: bundles made earlier name what the configuration names."""
        if not self._knows_end:
            learn_end(self.bundle.manifest, self.text, lambda: self.template)
            self._knows_end = True

    def prompt_ids(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        think: bool | None = None,
        effort: str | None = None,
    ) -> list[int]:
        """The token ids that `generate` would run for this prompt.

        Raises:
            InputError: the prompt is empty, or a system message cannot be placed; or `think` or `effort` where the
                model has no such thing.
        """
        return self.asked(prompt, system, raw, think, effort=effort)[0]

    def asked(
        self,
        prompt: Prompt,
        system: str | None = None,
        raw: bool = False,
        think: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        effort: str | None = None,
    ) -> tuple[list[int], Block | None]:
        """A prompt's token ids, and the block of thoughts that its answer may begin with. tools: that the answer may
        call. Errors are those of `prompt_ids`, and InputError where the chat template knows no tools."""
        text = self._rendered(prompt, SYSTEM(system), RAW(raw), think, tools, effort)
        check_length(len(text), self.most_tokens)
        return self.text.encode_prompt(text), None if raw else self.block(text)

    def render(
        self,
        messages: Sequence[Message],
        think: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        effort: str | None = None,
    ) -> str:
        """The prompt for the assistant's next turn of a conversation, with typed control tokens hidden; think, effort:
        as in `GenerateOptions`. tools: that it may call.

        Raises:
            InputError: the template refuses the conversation, or knows no tools or effort; or the model cannot think.
        """
        if (template := self.template) is None:
            return "".join(m["content"] + "\n" for m in messages)
        self.learn_end()
        marks = self.bundle.manifest.thinking
        if tools and not template.takes_tools:
            raise InputError(f"The chat template of {self.bundle.manifest.name} knows no tools; leave them out.")
        offered = self._hidden(tools) if tools else None
        messages = [self._safe(each) for each in messages]
        more = think, offered, effort
        return written(template, messages, self.text, lambda said: render(template, marks, said, *more))

    def _safe(self, message: Message) -> Message:
        """A message with the control tokens hidden in what it has besides its content, which `written` sees to."""
        message = message.copy()
        if "tool_calls" in message:
            message["tool_calls"] = self._hidden(message["tool_calls"])
        if "reasoning_content" in message:
            message["reasoning_content"] = self.text.controls.hide(message["reasoning_content"], answer=True)
        if "tool_call_id" in message:
            message["tool_call_id"] = self._hidden(message["tool_call_id"])
        if "name" in message:
            message["name"] = self._hidden(message["name"])
        return message

    def _hidden(self, value: Any) -> Any:
        """A value of JSON with the control tokens hidden that its texts have."""
        if isinstance(value, str):
            return self.text.controls.hide(value)
        if isinstance(value, Mapping):
            return {self._hidden(name): self._hidden(each) for name, each in value.items()}
        return [self._hidden(each) for each in value] if isinstance(value, list | tuple) else value

    def block(self, prompt: str) -> Block | None:
        """The block of thoughts that the answer to a rendered prompt may begin with; None where the model has none."""
        marks = self.bundle.manifest.thinking
        return None if marks is None or self.template is None else Block.at_end(prompt, marks)

    def _rendered(
        self,
        prompt: Prompt,
        system: str | None,
        raw: bool,
        think: bool | None,
        tools: Sequence[Mapping[str, Any]] | None,
        effort: str | None,
    ) -> str:
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
            raise InputError(f"A prompt is a text, or a list of messages, and not {shown(prompt)}.")
        messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        check_messages(messages)
        self.learn_end()
        if isinstance(prompt, str) and (raw or self.template is None):
            if system is not None:
                why = "the bundle has no chat template" if self.template is None else "a raw prompt takes none"
                raise InputError(f"The system message has no place, because {why}; put it into the prompt.")
            return prompt
        if self.template is None or raw:
            raise InputError("A list of messages needs the bundle's chat template; give the prompt as one string.")
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return self.render(messages, think, tools, effort)

    def settled(self, options: GenerateOptions, *, raw: bool = False) -> GenerateOptions:
        """Return the options with the values that the model's makers set for chats where an option is not set and the
        prompt is not raw."""
        return settled(options, self.bundle.manifest, raw=raw)

    def stream(
        self,
        prompt: Prompt,
        options: GenerateOptions | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        **keywords: Unpack[GenerateKeywords],
    ) -> Iterator[Piece]:
        """Answer a prompt, piece by piece as the tokens come.

        Args:
            prompt: the user's words, or a conversation as a list of messages.
            options: what shapes the answer; default: as the model's makers set it, or greedy where they set nothing; up
                to 512 tokens.
            system: a system message to put in front.
            raw: give the prompt to the model as it is, without the chat template.
            keywords: fields of `GenerateOptions`, which go before those of `options`.

        Raises:
            InputError: the prompt is empty or longer than the context.
        """
        asked = time.perf_counter_ns()
        options = self.settled(with_keywords(own(options), keywords), raw=raw)
        ids, block = self.asked(prompt, system, raw, options.think, effort=options.effort)
        encoded = time.perf_counter_ns()
        engine = self.engine
        started = time.perf_counter_ns() - (encoded - asked)  # waiting for the weights to load does not count
        check_prompt(ids, engine, "shorten it")
        if options.particles > 1:
            from edge.runtime.batch.aligned import aligned

            made_of, width = (engine, self.text, (ids, block), options, self.prefixes), self._width(None)
            return Stream(aligned(*made_of, width=width, chunk=self.prefill_chunk, started_ns=started))
        cache = engine.new_cache(min(engine.context, len(ids) + ends_of(options, engine.context, block).most))
        made = answer(
            *(engine, self.text, cache, ids, options),
            chunk=self.prefill_chunk,
            started_ns=started,
            speculation=self.speculation,
            block=block,
            shares=None if engine.plan is None else engine.shares,
            prefixes=self.prefixes,
        )
        return Stream(made)

    def generate(
        self,
        prompt: Prompt,
        options: GenerateOptions | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        **keywords: Unpack[GenerateKeywords],
    ) -> Result:
        """Answer a prompt; see `stream`."""
        return collect(self.stream(prompt, options, system=system, raw=raw, **keywords))

    def answers(
        self,
        prompts: Sequence[Prompt],
        options: GenerateOptions | Sequence[GenerateOptions] | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        width: int | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> Iterator[tuple[int, Result]]:
        """Answer prompts, up to `width` of them in parallel (default: 8, or 32 on a GPU with CUDA). Yields each
        prompt's index, counted from 0, and its answer, as they are finished.

        Unless the model was loaded with `exact=False`, an answer is the same whatever the other prompts are and
        whatever `width` is, from 2 on. It may differ in a near-tie from what `generate` gives to its prompt alone,
        whose steps run two tokens or more: onnxruntime's attention takes a lone token by another kernel, and of several
        sequences it takes lone tokens only. `options` may be a list, with the options of each prompt.

        They are answered one after another, as by `generate`, where steps take one sequence alone: of a policy that
        decides by the prompt which layers it leaves out, a drafter that was named, or a bundle that was exported
        earlier; or where the memory was planned for one. A `width` above 1 is refused there. So they are, each by
        several answers side by side, with aligned sampling.

        Raises:
            InputError: a prompt is empty or longer than the context, named by its number; or as `check_width`.
        """
        self.check_width(width)
        if isinstance(prompts, str | bytes | bytearray | Mapping) or not isinstance(prompts, Iterable):
            raise InputError(f"Prompts are a list of texts or conversations, and not {shown(prompts)}.")
        prompts = list(prompts)
        if not isinstance(options, Sequence):
            options = [own(options)] * len(prompts)
        options = [self.settled(with_keywords(own(each), keywords), raw=raw) for each in options]
        if len(options) != len(prompts):
            raise InputError(f"There are {len(prompts)} prompts and options for {len(options)} of them.")
        asked = []
        for number, (prompt, own_options) in enumerate(zip(prompts, options, strict=True), 1):
            try:
                asked.append(self.asked(prompt, system, raw, own_options.think, effort=own_options.effort))
                check_prompt(asked[-1][0], self.engine, "shorten it")
            except InputError as e:
                raise InputError(f"Prompt {number}: {e}") from None
        return Stream(self._answers(prompts, asked, options, system, raw, width))

    def check_width(self, width: int | None) -> None:
        """Raise InputError where `width` answers cannot grow in parallel; None: as many as can."""
        if width is None or WIDTH(width) == 1:
            return
        if not self.bundle.manifest.graph("decoder").batch:
            raise InputError(
                f"The graph of {self.bundle.manifest.name} takes one prompt at a time, not {width} side by side; "
                "export the model again."
            )
        if self._alone:
            raise InputError(
                f"{width} answers cannot grow side by side with a policy that reads the prompt or a drafter that was "
                "named; leave out that, or the number."
            )
        plan = self.engine.plan
        if plan is not None and width > plan.demand.branches:
            raise InputError(
                f"The memory was planned for {plan.demand.branches} at a time, and not for {width} answers side by "
                f"side; load the model with beams={width}."
            )

    @property
    def _alone(self) -> bool:
        """True if prompts are answered one after another."""
        return not self.engine.supports_batching or self._speculate not in (OFF, AUTO)

    def _answers(
        self,
        prompts: Sequence[Prompt],
        asked: Sequence[tuple[list[int], Block | None]],
        options: Sequence[GenerateOptions],
        system: str | None,
        raw: bool,
        width: int | None,
    ) -> Generator[tuple[int, Result], None, None]:
        ids = [each for each, _ in asked]
        apart = any(each.particles > 1 for each in options)  # each of them is several answers by itself
        width = self._width(width)
        if width < 2 or len(prompts) < (1 if self.engine.exact else 2) or self._alone or apart:
            for i in grouped(ids):
                yield i, self.generate(prompts[i], options[i], system=system, raw=raw)
            return
        from edge.runtime.batch.answer import BatchAnswer
        from edge.runtime.batch.grow import grown

        answers = [BatchAnswer(i, asked[i], options[i], self.engine, self.text) for i in grouped(ids)]
        for each in grown(
            *(self.engine, self.text, answers),
            width=width,
            chunk=self.prefill_chunk,
            prefixes=self.prefixes,
            interrupted=options[0].interrupted,
        ):
            if each.error is not None:
                raise each.error
            yield each.place, each.whole()

    def _width(self, width: int | None) -> int:
        """The number of answers that grow in parallel where up to `width` are wanted."""
        plan = self.engine.plan
        width = width or self.engine.side_by_side
        return width if plan is None else min(width, plan.demand.branches)

    def generate_all(
        self,
        prompts: Sequence[Prompt],
        options: GenerateOptions | Sequence[GenerateOptions] | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        width: int | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> list[Result]:
        """Answer prompts in parallel, and return their answers in the prompts' order. See `answers`."""
        found = dict(self.answers(prompts, options, system=system, raw=raw, width=width, **keywords))
        return [found[i] for i in range(len(found))]

    def chat(self, *, system: str | None = None, messages: Sequence[Message] | None = None) -> Chat:
        """A conversation that keeps its KV cache from turn to turn. messages: one to go on from; see `Chat`."""
        return Chat(self, system=system, messages=messages)
