"""What drafts gain encoder-decoders: translations, outputs that repeat their input, and speech.

    python benchmarks/speculation_encoder_decoder.py --translator en-de.edge --multi30k multi30k --whisper whisper.edge

All forms answer each text in turns, in one process. `off~` is plain decoding, one token a step; `off` runs an even
number of tokens in every step, so that its texts are what drafts must not change; drafters are exact too, or not where
their name ends in ~. A speed is the time of `off~`, or of `off`, over that of a form, for all texts: encoder included,
and of speech the whole transcription. Texts that differ from those of `off` are counted.

Translations are of captions. Outputs that repeat their input are simulated: every step is the translator's own, and
the tokens that it chooses are those of its input, every eighth one replaced, whatever the logits say. So does a model
for corrections at its best. That says what is to be gained there, not how good any model is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import machine
import recordings
from engines.decoding_engine import Unavailable
from report import table

if TYPE_CHECKING:
    from edge.runtime.engine.engine import Engine
    from edge.runtime.text2text import Text2Text

OFF, PLAIN = "off", "off~"
TEST = "test_2016_flickr"
MOST = 60  # tokens of a translation
REPLACED = 8  # every so many tokens of a copy one is another


@dataclass
class Did:
    """What one form did with all texts of a part, round by round."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    differing: int = 0  # texts, from those of `off`

    def add(self, tokens: int, figures: dict[str, Any] | None) -> None:
        """One more text."""
        self.tokens += tokens
        self.steps += tokens if figures is None else figures["steps"]
        self.drafted += 0 if figures is None else figures["drafted"]
        self.accepted += 0 if figures is None else figures["accepted"]


Answer = Callable[[str, Any], tuple[object, int, dict[str, Any] | None]]
"""Given a form and an input: the output, its tokens, and what drafts did."""


def main() -> int:
    """Measure, print, write. Returns the exit status, 1 where an exact text differs."""
    args = parse(sys.argv[1:])
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Did]] = {}
    for name, (asked, answer) in parts(args):
        print(f"\n## {name}: {len(asked)} inputs, {args.rounds} rounds\n", flush=True)
        found[name] = measured(forms_of(args, name), asked, answer, args.rounds)
        print(shown(found[name]), flush=True)
    content = {name: {form: asdict(did) for form, did in forms.items()} for name, forms in found.items()}
    path = args.out / "speculation_encoder_decoder.json"
    path.write_text(json.dumps({"machine": machine.description(), "parts": content}, indent=1) + "\n")
    return int(any(did.differing for forms in found.values() for form, did in forms.items() if not form.endswith("~")))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--translator", type=Path, metavar="BUNDLE", help="from English to German")
    parser.add_argument("--multi30k", type=Path, metavar="DIR", help=f"the folder with {TEST}.en")
    parser.add_argument("--whisper", type=Path, metavar="BUNDLE")
    parser.add_argument(
        "--audio",
        type=Path,
        metavar="DIR",
        help="recordings; default: public ones, fetched, and texts read by espeak-ng",
    )
    parser.add_argument("--work", type=Path, help="folder that keeps them as samples; default: in the user's cache")
    parser.add_argument("--text-forms", default="input lookup input~", help="drafters of texts, between blanks")
    parser.add_argument("--speech-forms", default="lookup trigram lookup~", help="drafters of speech, between blanks")
    parser.add_argument("--count", type=int, default=200, help="sentences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON")
    return parser.parse_args(arguments)


def forms_of(args: argparse.Namespace, part: str) -> list[str]:
    """Plain decoding first."""
    asked = args.speech_forms if part == "speech" else args.text_forms
    return [PLAIN, OFF, *asked.split()]


def parts(args: argparse.Namespace) -> Iterator[tuple[str, tuple[list[Any], Answer]]]:
    """Each part's name, inputs and what answers them."""
    if args.translator is not None and args.multi30k is not None:
        models = {form: translator(form, engine) for form, engine in engines(args, args.translator, "texts")}
        captions = (args.multi30k / f"{TEST}.en").read_text().splitlines()[: args.count]
        yield "translations", (captions, lambda form, text: translated(models[form], text))
        yield "copies, simulated", (captions, lambda form, text: copied(models[form], text))
    if args.whisper is not None:
        import numpy as np

        heard_by = {form: transcriber(form, engine) for form, engine in engines(args, args.whisper, "speech")}
        heard = speech(args)
        print(f"\n{sum(each.seconds for each in heard):.0f} s of speech")
        yield "speech", ([np.load(each.pcm) for each in heard], lambda form, pcm: heard_in(heard_by[form], pcm))


def speech(args: argparse.Namespace) -> list[recordings.Recording]:
    """A folder's recordings, or the public ones and texts read by espeak-ng."""
    from edge.home import cache_dir

    work = args.work or cache_dir() / "benchmarks" / "speech"
    work.mkdir(parents=True, exist_ok=True)
    if args.audio is not None:
        return recordings.from_folder(args.audio, work)
    found = recordings.fetched(work, print)
    try:
        found += recordings.synthesized(work)
    except Unavailable as error:
        print(f"No synthesized speech: {error}")
    return found


def engines(args: argparse.Namespace, path: Path, part: str) -> Iterator[tuple[str, Engine]]:
    """Each form with its engine, of which there are two: an exact one and one that is not."""
    from edge.bundle import open_bundle
    from edge.runtime.load import open_engine

    bundle = open_bundle(path)
    made = {exact: open_engine(bundle, threads=args.threads, exact=exact) for exact in (True, False)}
    for form in forms_of(args, part):
        yield form, made[not form.endswith("~")]


def translator(form: str, engine: Engine) -> Text2Text:
    """A model over an engine, with this form's drafter."""
    from edge.runtime.text.tokenizer import Text
    from edge.runtime.text2text import Text2Text

    return Text2Text(engine.bundle, engine, Text(engine.bundle), speculate=form.removesuffix("~"))


def transcriber(form: str, engine: Engine) -> Any:
    """As `translator`, of speech."""
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.speech.words import spoken

    return Transcriber(engine.bundle, engine, spoken(engine.bundle), speculate=form.removesuffix("~"))


def translated(model: Text2Text, text: str) -> tuple[object, int, dict[str, Any] | None]:
    """A greedy translation."""
    from edge.runtime.decode.text2text_options import Text2TextOptions

    result = model.generate(text, Text2TextOptions(beams=1, max_tokens=MOST))
    return result.token_ids, result.generated_tokens, result.speculation


def copied(model: Text2Text, text: str) -> tuple[object, int, dict[str, Any] | None]:
    """The input said again, every eighth token replaced, by the loop and the steps that a translation takes."""
    import numpy as np

    from edge.runtime.decode.answer import Ends, Timings, drafts_of
    from edge.runtime.decode.generate_options import never
    from edge.runtime.decode.loop import generate
    from edge.runtime.decode.text2text_options import Text2TextOptions

    engine = model.engine
    source, prompt = model.text.encode(text), list(model.bundle.manifest.text.decoder_start)  # type: ignore[union-attr]
    wanted = [token ^ 1 if place % REPLACED == REPLACED - 1 else token for place, token in enumerate(source)]
    following, timings = iter([*wanted, wanted[-1]]), Timings(len(source))
    ends = Ends((), len(wanted), len(wanted))
    drafts = drafts_of(model.speculation, prompt, ends, model.text, Text2TextOptions(), timings, source)
    cross = engine.encoder.encode_text(np.array(model.prompt_ids(text)))  # type: ignore[union-attr]
    cache, chunk = engine.new_cache(len(prompt) + len(wanted), cross), len(prompt)
    tokens = generate(
        engine, cache, np.array(prompt), lambda logits: next(following), chunk=chunk, interrupted=never, drafts=drafts
    )
    said = [token for token, _ in zip(tokens, wanted, strict=False)]
    return said, len(said), None if timings.speculation is None else timings.speculation.summary()


def heard_in(model: Any, pcm: Any) -> tuple[object, int, dict[str, Any] | None]:
    """A transcription by the default's rules, in English."""
    import edge

    running = model.transcribe_stream(pcm, edge.TranscribeOptions(language="en"))
    segments = [(segment.start, segment.end, segment.tokens) for segment in running]
    return segments, sum(len(tokens) for _, _, tokens in segments), running.speculation


def measured(forms: Sequence[str], asked: Sequence[Any], answer: Answer, rounds: int) -> dict[str, Did]:
    """Every form answers every input, in turns, round after round; one round before is not counted."""
    found = {form: Did() for form in forms}
    for number in range(rounds + 1):
        seconds = dict.fromkeys(forms, 0.0)
        for place, one in enumerate(asked):
            outputs: dict[str, object] = {}
            for form in forms if (place + number) % 2 else forms[::-1]:
                start = time.perf_counter()
                outputs[form], tokens, figures = answer(form, one)
                seconds[form] += time.perf_counter() - start
                if number == rounds:
                    found[form].add(tokens, figures)
            if number == rounds:
                for form in forms:
                    found[form].differing += outputs[form] != outputs[OFF]
        if number:
            for form in forms:
                found[form].seconds.append(seconds[form])
    return found


def shown(found: dict[str, Did]) -> str:
    """A row for each form: its speed over plain decoding and over exact plain decoding, and what drafts did."""
    rows = [["", f"times {PLAIN}", f"times {OFF}", "tokens/s", "tokens a step", "drafted", "accepted", "texts differ"]]
    for form, did in found.items():
        over = [_ratio(found[each].seconds, did.seconds) for each in (PLAIN, OFF)]
        rows.append(
            [
                form,
                *over,
                f"{did.tokens / median(did.seconds):,.0f}",
                f"{did.tokens / max(did.steps, 1):.2f}",
                f"{did.drafted:,}",
                f"{did.accepted / did.drafted:.0%}" if did.drafted else "",
                str(did.differing),
            ]
        )
    return table(rows)


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """The median of the rounds' ratios, and the smallest and largest."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
