"""Transcribe a recording into subtitles: python examples/subtitles.py whisper-base talk.mp3

Writes talk.srt next to the recording, which each segment joins as soon as it is understood.
"""

import sys
from pathlib import Path

import edge
from edge.runtime.speech.formats import FORMATS

path, recording = sys.argv[1:]
srt, subtitles = FORMATS["srt"], Path(recording).with_suffix(".srt")

model = edge.load(path, kind=edge.Transcriber)
running = model.transcribe_stream(recording)
with subtitles.open("w", encoding="utf-8") as file:
    for number, segment in enumerate(running, start=1):
        file.write(srt.segment(number, segment))
        file.flush()
        print(f"{segment.start:7.1f} s {segment.text.strip()}")
print(f"{subtitles}: {running.position:.0f} s of sound")
