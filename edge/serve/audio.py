"""OpenAI's protocol for sound: transcripts, and translations to English."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from edge.errors import InputError
from edge.runtime.options import SPEECH, shown
from edge.runtime.speech.formats import FORMATS
from edge.runtime.speech.transcribe import TRANSLATE, Transcript
from edge.runtime.speech.transcribe_options import WARMEST, TranscribeOptions, warmer_from
from edge.serve.answering import in_time, while_there
from edge.serve.fields import Fields
from edge.serve.refusal import BAD, Refusal

if TYPE_CHECKING:
    from edge.runtime.speech.transcribe import Transcriber
    from edge.serve.server import Server

MOST_SOUND = 64 << 20  # bytes of a file
SOUND_S = 300.0  # in which it must be here
MOST_PARTS = 16
FORMS = ("json", "text", "srt", "verbose_json", "vtt")


async def transcriptions(server: Server, request: Request) -> Response:
    """`POST /v1/audio/transcriptions`."""
    return await _transcribed(server, request, translates=False)


async def translations(server: Server, request: Request) -> Response:
    """`POST /v1/audio/translations`: to English."""
    return await _transcribed(server, request, translates=True)


async def _transcribed(server: Server, request: Request, *, translates: bool) -> Response:
    """The transcript of the sound in a form."""
    form = await in_time(_form(server, request), SOUND_S)
    task = TRANSLATE if translates else "transcribe"
    try:
        given: dict[str, Any] = {name: value for name, value in form.multi_items() if not name.endswith("[]")}
        kinds = [value for name, value in form.multi_items() if name == "timestamp_granularities[]"]
        sound = given.pop("file", None)
        if not isinstance(sound, UploadFile):
            raise Refusal(BAD, "The form has no file.", field="file")
        fields = Fields(given)
        name = server.models.name(fields.text("model"))
        server.models.check_kind(name, SPEECH)
        shape = fields.text("response_format") or "json"
        if shape not in FORMS:
            raise Refusal(
                BAD, f"The response_format must be {', '.join(FORMS)}, not {shown(shape)}.", field="response_format"
            )
        if any(kind != "segment" for kind in kinds):
            raise Refusal(BAD, "Times are those of segments; leave timestamp_granularities out.")
        language = None if translates else fields.text("language")
        options = TranscribeOptions(
            language=language,
            task=task,
            temperatures=_temperatures(fields.text("temperature")),
        )
        fields.only("prompt", [""], "A prompt is not served with sound; leave it out.")
        fields.only("stream", ["false"], "A transcript comes whole; leave stream out.")
        fields.end()
        with tempfile.NamedTemporaryFile(prefix="edge-sound-") as file:  # whose name nothing of the request has
            while piece := await sound.read(1 << 20):
                file.write(piece)
            file.flush()
            heard = await while_there(request, partial(_hear, server, name, Path(file.name), options))
    finally:
        await form.close()
    return _written(heard, shape, task)


async def _form(server: Server, request: Request) -> FormData:
    """The parts of a form; Refusal where there is none, or it is too large."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise Refusal(BAD, "Sound is sent as a form (multipart/form-data) with a file.")
    try:
        parser = MultiPartParser(
            request.headers, server.limited(request, MOST_SOUND), max_files=1, max_fields=MOST_PARTS
        )
        return await parser.parse()
    except MultiPartException as e:
        raise Refusal(BAD, f"The form is damaged: {e.message[:200]}.") from None
    except (KeyError, ValueError, UnicodeError):
        raise Refusal(BAD, "The form is damaged.") from None


def _hear(
    server: Server, name: str, path: Path, options: TranscribeOptions, interrupted: Callable[[], bool]
) -> Transcript:
    """Transcribe a file; InputError where it cannot be read, without its name."""

    def work(model: Transcriber) -> Transcript:
        return model.transcribe(path, options, interrupted=interrupted)

    try:
        return server.models.run(name, work)
    except InputError as e:
        raise InputError(str(e).replace(f"The sound file {path}", "The file").replace(str(path), "The file")) from None


def _temperatures(first: str | None) -> list[float]:
    """The temperatures that are tried one after another, from what a form says."""
    try:
        begin = float(first or 0)
    except ValueError:
        raise Refusal(BAD, f"The temperature must be a number, not {shown(first)}.", field="temperature") from None
    if not 0 <= begin <= WARMEST:
        raise Refusal(BAD, f"The temperature must be from 0 to 1, not {shown(first)}.", field="temperature")
    return warmer_from(begin)


def _written(heard: Transcript, shape: str, task: str) -> Response:
    """A transcript in one of the forms."""
    if shape == "json":
        return JSONResponse({"text": heard.text.strip()})
    if shape == "verbose_json":
        segments = [
            {
                "id": i,
                "start": round(each.start, 3),
                "end": round(each.end, 3),
                "text": each.text,
                "tokens": each.tokens,
                "temperature": each.temperature,
                "avg_logprob": each.avg_logprob,
                "compression_ratio": each.compression_ratio,
                "no_speech_prob": each.no_speech_prob,
            }
            for i, each in enumerate(heard.segments)
        ]
        told = {
            "task": task,
            "language": heard.language,
            "duration": round(heard.duration, 3),
            "text": heard.text.strip(),
        }
        return JSONResponse(told | {"segments": segments})
    form = FORMATS[shape]
    lines = [form.segment(number, each) for number, each in enumerate(heard.segments, 1)]
    return PlainTextResponse("".join([form.begin(), *lines, form.end(heard, {})]))
