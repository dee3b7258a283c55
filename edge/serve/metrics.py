"""Figures of a server, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from edge.runtime.decode.answer import Timings
from edge.serve.models import Models

SECONDS = 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60
PER_TOKEN = 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1


class Metrics:
    """Counts of answers and tokens, and how long they took, by model."""

    def __init__(self, models: Models) -> None:
        self._registry = registry = CollectorRegistry()
        of_model = ["model"]
        self._answers = Counter("edge_answers", "Answers that ended", of_model, registry=registry)
        self._prompt = Counter("edge_prompt_tokens", "Tokens of prompts", of_model, registry=registry)
        self._cached = Counter(
            "edge_cached_prompt_tokens", "Tokens of prompts that were known", of_model, registry=registry
        )
        self._generated = Counter("edge_generated_tokens", "Tokens of answers", of_model, registry=registry)
        self._first = Histogram(
            "edge_first_token_seconds",
            "From the request to the first token",
            of_model,
            registry=registry,
            buckets=SECONDS,
        )
        self._each = Histogram(
            "edge_token_seconds", "Between two tokens, on the average of an answer", of_model, registry=registry,
            buckets=PER_TOKEN,
        )  # fmt: skip
        registry.register(_Queues(models))

    def count(self, model: str, timings: Sequence[Timings]) -> None:
        """Count the answers to a request."""
        for each in timings:
            self._answers.labels(model).inc()
            self._prompt.labels(model).inc(each.prompt_tokens)
            self._cached.labels(model).inc(each.cached_tokens)
            self._generated.labels(model).inc(each.generated_tokens)
            if each.ttft_ms is not None:
                self._first.labels(model).observe(each.ttft_ms / 1e3)
            if each.decode_tokens_per_s is not None:
                self._each.labels(model).observe(1 / each.decode_tokens_per_s)

    def families(self) -> list[Metric]:
        """All figures."""
        return [*self._registry.collect()]

    def text(self) -> bytes:
        """All figures, as Prometheus reads them."""
        return generate_latest(self._registry)


class _Queues(Collector):
    """The answers that wait and that grow, and the memory that earlier texts take."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[GaugeMetricFamily]:
        waiting = GaugeMetricFamily("edge_waiting_answers", "Answers that wait for their turn", labels=["model"])
        growing = GaugeMetricFamily("edge_growing_answers", "Answers that grow", labels=["model"])
        kept = GaugeMetricFamily(
            "edge_beginnings_bytes", "Keys and values that are kept for prompts that begin like them", labels=["model"]
        )
        for name, worker in self._models.loaded.items():
            waiting.add_metric([name], worker.waiting)
            growing.add_metric([name], worker.growing)
            kept.add_metric([name], worker.kept_bytes)
        yield waiting
        yield growing
        yield kept
