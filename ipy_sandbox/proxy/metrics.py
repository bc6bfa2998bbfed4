"""What `/metrics` shows, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("ipy_sandbox_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "ipy_sandbox_request_seconds",
            "Time to the end of the answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.running = Gauge("ipy_sandbox_requests_running", "Requests being answered now.", registry=registry)
        self.loops = Counter("ipy_sandbox_loops", "Requests that the code interpreter served.", registry=registry)
        self.executions = Counter("ipy_sandbox_executions", "Runs of code, by outcome.", ["outcome"], registry=registry)
        self.execution_seconds = Histogram(
            "ipy_sandbox_execution_seconds", "Time that runs of code took.", buckets=_SECONDS, registry=registry
        )
        self.sandboxes = Gauge("ipy_sandbox_sandboxes_live", "Sandboxes that exist, spare ones too.", registry=registry)
        self.created = Counter("ipy_sandbox_sandboxes_created", "Sandboxes made.", registry=registry)
        self.errors = Counter("ipy_sandbox_errors", "Failures, by kind.", ["kind"], registry=registry)

    def text(self) -> bytes:
        """The answer to a scrape."""
        return generate_latest(self.registry)
