"""A bundle's table of successors, with which the drafter `blend` guesses: what follows what in the model's own answers.

Half of the questions are the model's own as well, as in Xu et al. 2024, "Magpie": after the opening of a user's turn,
a model that was trained on chats writes what users write. The others are the built-in prompts, as long as there are
some: translations, word problems and more that people ask for, and a model by itself hardly does. A model without chats
goes on with a few words.

A successor counts once for each answer it occurs in: what an answer repeats, `lookup` finds in the answer. Of a context
of several tokens it must have come in two answers. How likely it is to follow is measured: by what was counted in other
answers, for each length of the context and each count and share.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from edge.bundle import Bundle, BundleWriter
from edge.errors import InputError
from edge.export.drafts.prompts import by_themselves
from edge.export.facts.progress import Progress
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.model import Model
from edge.runtime.speculate.drafter import OFF
from edge.runtime.speculate.successors import FILE, Context, level_of, write_table
from edge.runtime.text.template import fixed_day
from edge.runtime.text.tokenizer import Text

QUESTION, ANSWER = 128, 160  # tokens at most
BEGUN = 16  # tokens that a model without chats adds to the first words
OPENINGS = (
    *("", "What", "", "Write", "", "How", "", "Explain"),
    *("Summarize", "Who", "Translate", "If", "Why", "A", "Please", "When"),
)
BLOCK = 32  # questions that are drawn, and answered, in one batch
PLACE = "\u2063?\u2063"  # stands for a user's words, which no template writes by itself

ORDERS = 3  # tokens of the longest context
TWICE = 2  # answers that a successor of several tokens must have come in
BEFORE = 2  # tokens of the prompt that stand before an answer, which say that they begin
FOLDS = 4
PRIOR = 0.2  # of a successor's chance to follow, before any was seen
COUNTS = (2, 3, 5, 12)  # bounds of a successor's count, and of its share in what followed its context
SHARES = (0.33, 0.5, 0.67, 0.9)
UNLIKELY = 1  # levels below which a successor is worth no slot

Counts = dict[Context, Counter[int]]


def write_successors(writer: BundleWriter, bundle: Bundle, engine: Engine, tokens: int, report: Progress) -> None:
    """Let the model answer until it has written `tokens` tokens, and write the table of successors in its answers."""
    engine.prefill = None  # which form is faster on this device must not decide what a bundle holds
    answers, done = list[list[int]](), 0
    report(0, tokens, "writing text to draft from")  # the first answers come after a quarter of a minute
    model = Model(bundle, engine, Text(bundle), speculate=OFF, day=fixed_day(bundle.manifest))
    for answer in own_answers(model):
        answers.append(answer)
        done += len(answer) - BEFORE
        report(min(done, tokens), tokens, "writing text to draft from")
        if done >= tokens:
            break
    if answers:
        writer.write_file(FILE, write_table(successors(answers)))


def own_answers(model: Model) -> Iterator[list[int]]:
    """Greedy answers to built-in prompts and to questions that the model draws at random, in turns: the token ids of
    each, after the last `BEFORE` of its prompt. Each time the same, and without end but where a model says nothing to
    `BLOCK` questions in a row."""
    opening, room = _opening(model), model.engine.context // 3
    begins = itertools.cycle(OPENINGS if opening else tuple(filter(None, OPENINGS)))
    built_in = iter(by_themselves() if opening else ())
    greedy = GenerateOptions(max_tokens=min(ANSWER, room), temperature=0, think=False)
    drawn = GenerateOptions(max_tokens=min(QUESTION if opening else BEGUN, room), temperature=1.0, top_p=0.9)
    for first in itertools.count(0, BLOCK):
        given = list(itertools.islice(built_in, BLOCK // 2))
        words = list(itertools.islice(begins, BLOCK - len(given)))
        options = [dataclasses.replace(drawn, seed=first + i) for i in range(len(words))]
        turns = itertools.zip_longest(given, _drawn(model, opening, words, options))
        questions, prompts = list[str](), list[list[int]]()
        for question in filter(None, itertools.chain.from_iterable(turns)):
            with contextlib.suppress(InputError):  # the template does not take it
                prompt = model.prompt_ids(question, raw=not opening, think=False)
                if len(prompt) < model.engine.context:
                    questions.append(question)
                    prompts.append(prompt)
        answers = model.generate_all(questions, greedy, raw=not opening) if questions else []
        if not any(answer.token_ids for answer in answers):
            return
        for prompt, answer in zip(prompts, answers, strict=True):
            if answer.token_ids:
                yield [*prompt[-BEFORE:], *answer.token_ids]


def _drawn(model: Model, opening: str, words: Sequence[str], options: Sequence[GenerateOptions]) -> list[str]:
    """Return questions that begin with these words, as far as the model asks any."""
    questions = list[str]()
    with contextlib.suppress(InputError):  # the context is too short for the template
        said_behind = model.generate_all([opening + each for each in words], options, raw=True)
        for begun, said in zip(words, said_behind, strict=True):
            if model.text.special.isdisjoint(said.token_ids[:-1]):
                questions.append((begun + said.text).strip())
    return questions


def _opening(model: Model) -> str:
    """Return the text that the chat template writes before a user's first words; empty without a template."""
    if model.template is None:
        return ""
    try:
        before, place, _ = model.render([{"role": "user", "content": PLACE}], think=False).partition(PLACE)
    except InputError:
        return ""
    return before if place else ""


def successors(answers: Sequence[Sequence[int]]) -> dict[Context, tuple[int, int]]:
    """Return the most frequent successor of one to three tokens in `answers`, each after `BEFORE` tokens of its prompt,
    and the level of its probability. A context is included only if it says more than its end alone."""
    chances, best = _chances(answers), _best(_counts(answers))
    found: dict[Context, tuple[int, int]] = {}
    for context in sorted(best, key=len):
        token, count, seen = best[context]
        level = level_of(chances[_bucket(context, count, seen)])
        shorter = next((found[context[i:]] for i in range(1, len(context)) if context[i:] in found), None)
        if (token, level) != shorter and (shorter is not None or level >= UNLIKELY):
            found[context] = token, level
    return found


def _counts(answers: Sequence[Sequence[int]]) -> Counts:
    """Count the answers in which each token followed each context."""
    counts: Counts = defaultdict(Counter)
    for answer in answers:
        counts_here = {
            (tuple(answer[at - order : at]), answer[at])
            for at in range(BEFORE + 1, len(answer))
            for order in range(1, ORDERS + 1)
        }
        for context, token in counts_here:
            counts[context][token] += 1
    return counts


def _best(counts: Counts) -> dict[Context, tuple[int, int, int]]:
    """Return the most frequent successor of each context, its count and that of all; of equals the smallest token."""
    best = {}
    for context, followed in counts.items():
        token, count = max(followed.items(), key=lambda each: (each[1], -each[0]))
        if count >= TWICE or len(context) == 1:
            best[context] = token, count, followed.total()
    return best


def _bucket(context: Context, count: int, seen: int) -> tuple[int, int, int]:
    """Return the bucket of a successor; those of one bucket are about equally likely to follow."""
    return len(context), bisect.bisect_right(COUNTS, count), bisect.bisect_right(SHARES, count / seen)


def _chances(answers: Sequence[Sequence[int]]) -> dict[tuple[int, int, int], float]:
    """Return the share of successors of each bucket that followed in answers that they were not counted in."""
    seen, right = Counter[tuple[int, int, int]](), Counter[tuple[int, int, int]]()
    for fold in range(FOLDS):
        best = _best(_counts([answer for i, answer in enumerate(answers) if i % FOLDS != fold]))
        for answer in answers[fold::FOLDS]:
            for at in range(BEFORE + 1, len(answer)):
                contexts = (tuple(answer[at - order : at]) for order in range(ORDERS, 0, -1))
                context = next((context for context in contexts if context in best), None)
                if context is not None:
                    token, *counted = best[context]
                    bucket = _bucket(context, *counted)
                    seen[bucket] += 1
                    right[bucket] += token == answer[at]
    # One observation of a rare one: a bucket that never came is as good as none.
    return defaultdict(lambda: PRIOR, {bucket: (right[bucket] + PRIOR) / (seen[bucket] + 1) for bucket in seen})
