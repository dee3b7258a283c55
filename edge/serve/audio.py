"""OpenAI's protocol for sound: transcripts, and translations to English."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from edge.errors import EdgeError, InputError
from edge.runtime.options import SPEECH, shown
from edge.runtime.speech.formats import FORMATS
from edge.runtime.speech.transcribe import TRANSLATE, Transcript
from edge.runtime.speech.transcribe_options import WARMEST, TranscribeOptions, warmer_from
from edge.serve.answering import in_time, limited, waiting, while_there
from edge.serve.fields import Fields
from edge.serve.refusal import BAD, Refusal, told_of

if TYPE_CHECKING:
    from edge.runtime.speech.segments import Segment
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
    form = await in_time(_form(request), SOUND_S)
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
        streamed: bool = fields.take("stream", _flag, False)
        if streamed and shape != "json":
            raise Refusal(BAD, "A stream has the response_format json; leave the other one out.", field="stream")
        fields.end()
        file = tempfile.NamedTemporaryFile(prefix="edge-sound-")  # noqa: SIM115 - whose name nothing of the request has
        try:
            while piece := await sound.read(1 << 20):
                file.write(piece)
            file.flush()
        except BaseException:
            file.close()
            raise
    finally:
        await form.close()
    hearing = Hearing(server, name, file, options)
    if not streamed:
        return _written(await while_there(request, hearing.run), shape, task)
    parts = hearing.parts()
    first = await anext(parts)  # what is wrong with the sound is a status, and no event
    return StreamingResponse(
        _events(first, parts), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


class Hearing:
    """The transcription of a file, which is closed in the end, in a thread."""

    def __init__(self, server: Server, name: str, file: IO[bytes], options: TranscribeOptions) -> None:
        self._server, self._name, self._file, self._options = server, name, file, options

    def run(self, interrupted: Callable[[], bool], tell: Callable[[Segment], None] | None = None) -> Transcript:
        """Transcribe it. tell: is given each segment as it is understood.

        Raises:
            InputError: the sound cannot be read; without the name of the file.
        """
        path = Path(self._file.name)

        def work(model: Transcriber) -> Transcript:
            running, segments = model.transcribe_stream(path, self._options, interrupted=interrupted), []
            for segment in running:
                segments.append(segment)
                if tell is not None:
                    tell(segment)
            return running.transcript(segments)

        try:
            return self._server.models.run(self._name, work)
        except InputError as e:
            said = str(e).replace(f"The sound file {path}", "The file").replace(str(path), "The file")
            raise InputError(said) from None
        finally:
            self._file.close()

    async def parts(self) -> AsyncGenerator[Segment | Transcript, None]:
        """The segments as they are understood, and the transcript in the end. Leave it early, and it ends."""
        loop, gone = asyncio.get_running_loop(), threading.Event()
        came: asyncio.Queue[Segment | None] = asyncio.Queue()

        def put(segment: Segment | None) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(came.put_nowait, segment)

        def work() -> Transcript:
            try:
                return self.run(gone.is_set, put)
            finally:
                put(None)

        task = asyncio.ensure_future(waiting(work))
        try:
            while (segment := await came.get()) is not None:
                yield segment
            yield await task
        finally:
            gone.set()
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _events(
    first: Segment | Transcript, rest: AsyncGenerator[Segment | Transcript, None]
) -> AsyncGenerator[str, None]:
    """The events of a stream."""
    said = False
    try:
        async for part in _after(first, rest):
            if isinstance(part, Transcript):
                yield _event({"type": "transcript.text.done", "text": part.text.strip()})
            else:
                delta, said = part.text if said else part.text.lstrip(), True
                yield _event({"type": "transcript.text.delta", "delta": delta})
    except EdgeError as e:
        yield _event({"error": {"message": told_of(e), "type": "server_error", "param": None, "code": None}})


async def _after(
    first: Segment | Transcript, rest: AsyncGenerator[Segment | Transcript, None]
) -> AsyncGenerator[Segment | Transcript, None]:
    try:
        yield first
        async for part in rest:
            yield part
    finally:
        await rest.aclose()


def _event(found: dict[str, Any]) -> str:
    return f"data: {json.dumps(found, ensure_ascii=False)}\n\n"


def _flag(value: Any) -> bool:
    """True or false, as forms say it."""
    if not isinstance(value, str) or value.lower() not in ("true", "false"):
        raise InputError(f"The stream must be true or false, not {shown(value)}.")
    return value.lower() == "true"


async def _form(request: Request) -> FormData:
    """The parts of a form; Refusal where there is none, or it is too large."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise Refusal(BAD, "Sound is sent as a form (multipart/form-data) with a file.")
    try:
        parser = MultiPartParser(request.headers, limited(request, MOST_SOUND), max_files=1, max_fields=MOST_PARTS)
        return await parser.parse()
    except MultiPartException as e:
        raise Refusal(BAD, f"The form is damaged: {e.message[:200]}.") from None
    except (KeyError, ValueError, UnicodeError):
        raise Refusal(BAD, "The form is damaged.") from None


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
