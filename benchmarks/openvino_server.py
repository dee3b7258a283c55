"""A server over OpenVINO GenAI's continuous batching, for `serving.py`: it has none of its own. Of OpenAI's protocol it
knows streamed chats alone.

    python openvino_server.py FOLDER PORT PARALLEL THREADS
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openvino_genai as og

CACHE_GB = 4
TOKENS_A_STEP = 256


class Growing:
    """The answers that grow, in one thread."""

    def __init__(self, folder: str, parallel: int, threads: int) -> None:
        scheduler = og.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = CACHE_GB, parallel
        scheduler.max_num_batched_tokens, scheduler.dynamic_split_fuse = TOKENS_A_STEP, True
        scheduler.enable_prefix_caching = True
        settings = {"INFERENCE_NUM_THREADS": threads, "CACHE_DIR": f"{folder}/cache"}
        self._pipeline = og.ContinuousBatchingPipeline(folder, scheduler, "CPU", settings)
        self.tokenizer = self._pipeline.get_tokenizer()
        self._new: queue.Queue[tuple[str, Any, queue.Queue[str | None]]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, prompt: str, tokens: int) -> queue.Queue[str | None]:
        """The words of an answer as they come, and None after the last."""
        config = og.GenerationConfig()
        config.max_new_tokens, config.do_sample = tokens, False
        words: queue.Queue[str | None] = queue.Queue()
        self._new.put((prompt, config, words))
        return words

    def _run(self) -> None:
        growing: dict[int, tuple[Any, queue.Queue[str | None]]] = {}
        for number in itertools.count():
            while not growing or not self._new.empty():
                prompt, config, words = self._new.get()
                key = number * 1000 + len(growing)
                growing[key] = self._pipeline.add_request(key, prompt, config), words
            self._pipeline.step()
            for key, (handle, words) in [*growing.items()]:
                while handle.can_read():
                    for output in handle.read().values():
                        words.put(self.tokenizer.decode([*output.generated_ids]))
                if handle.get_status() != og.GenerationStatus.RUNNING:
                    words.put(None)
                    del growing[key]


class Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    growing: Growing

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = self.growing.tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True)
        words, count = self.growing.ask(prompt, asked["max_tokens"]), 0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while (word := words.get()) is not None:
            count += 1
            self._send({"choices": [{"delta": {"content": word}}]})
        self._send({"choices": [], "usage": {"completion_tokens": count}})

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Takes many clients at once."""

    request_queue_size = 128


def main() -> None:
    """Serve until it is ended."""
    folder, port, parallel, threads = sys.argv[1:]
    Handler.growing = Growing(folder, int(parallel), int(threads))
    Server(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
