"""Prometheus metrics: every one of them in one table.

Responsible for turning the last published view of the job into samples. A scrape reads that view and nothing else: it
never touches the host, the driver or a lock. What is not known has no series: neither 0 nor NaN stands for it (a NaN
that the trainer reported is a value and is exported as such).
Refuses to keep values of its own, to use a global registry, and to be imported by commands that answer and leave
(prometheus_client costs 60 ms and 20 MiB). The HTTP side is metrics_server.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from watchdog.contract import printable
from watchdog.core.causes import Cause
from watchdog.core.notice import EVENTS, OUTCOMES
from watchdog.core.verdict import Kind
from watchdog.core.view import CollectorView, DeviceView, RunView, StatusView
from watchdog.metrics_server import Server, serve

__all__ = ["Metrics", "Row", "Server", "serve", "table"]

Samples = Iterable[tuple[tuple[str, ...], float | None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One metric. `samples` gives (label values, value) pairs; those whose value is None are left out."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Callable[[StatusView], Samples]
    labels: tuple[str, ...] = ()


def _of_view(get: Callable[[StatusView], float | None]) -> Callable[[StatusView], Samples]:
    return lambda view: [((), get(view))]


def _of_run(get: Callable[[RunView], float | None]) -> Callable[[StatusView], Samples]:
    return lambda view: [((), None if view.run is None else get(view.run))]


def _of_collectors(get: Callable[[CollectorView], float | None]) -> Callable[[StatusView], Samples]:
    return lambda view: [((name,), get(collector)) for name, collector in view.collectors.items()]


def _of_devices(get: Callable[[DeviceView], float | None]) -> Callable[[StatusView], Samples]:
    return lambda view: [((device.uuid, device.name), get(device)) for device in view.devices]


def _xids(view: StatusView) -> Samples:
    return [
        ((device.uuid, device.name, number), count) for device in view.devices for number, count in device.xids.items()
    ]


def _findings(view: StatusView) -> Samples:
    # One series each: of two alike, or of bytes that are no UTF-8, Prometheus would refuse the whole scrape.
    labels = ((each.check, each.severity, printable(each.subject)) for each in view.findings)
    return [(label, 1.0) for label in dict.fromkeys(labels)]


def _runs(view: StatusView) -> Samples:
    # Every cause from the start, at 0: rate() does not see the first rise of a series that was not there.
    counts: Mapping[str, int] = {cause.value: 0 for cause in Cause} | dict(view.runs_by_cause)
    return [((cause,), count) for cause, count in counts.items()]


def _verdicts(view: StatusView) -> Samples:
    verdict = view.verdict
    return () if verdict is None else [((kind.value,), float(kind.value == verdict.kind)) for kind in Kind]


def _lost(view: StatusView) -> Samples:
    return [((kind,), seconds) for kind, seconds in view.lost_s.items()]


def _notifications(view: StatusView) -> Samples:
    counts = view.notifications
    return [((event, outcome), counts.get(event, {}).get(outcome, 0)) for event in EVENTS for outcome in OUTCOMES]


_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[DeviceView], float | None]], ...] = (
    ("power_watts", "Power draw of the device", lambda device: device.power_watts),
    ("power_limit_watts", "Enforced power limit of the device", lambda device: device.power_limit_watts),
    ("utilization_ratio", "Share of time in which any kernel ran", lambda device: device.utilization_ratio),
    ("memory_used_bytes", "Device memory in use", lambda device: device.memory_used_bytes),
    ("memory_total_bytes", "Device memory", lambda device: device.memory_total_bytes),
    ("temperature_celsius", "Temperature of the device", lambda device: device.temperature_celsius),
    ("sm_clock_hertz", "Clock of the multiprocessors", lambda device: device.sm_clock_hertz),
)


def table(states: Sequence[str]) -> tuple[Row, ...]:
    """All metrics of the supervisor. `states`: every value that `StatusView.state` can have."""
    return (
        Row(
            "watchdog_state",
            "gauge",
            "The supervisor's state: 1 for the one it is in, 0 for the others",
            lambda view: [((state,), float(state == view.state)) for state in states],
            ("state",),
        ),
        Row(
            "watchdog_verdict",
            "gauge",
            "How the job is: 1 for the verdict that stands, 0 for the others",
            _verdicts,
            ("verdict",),
        ),
        Row(
            "watchdog_view_timestamp_seconds",
            "gauge",
            "When the loop last published what all other metrics show; old means that the loop itself stands still",
            _of_view(lambda view: view.now_wall_s),
        ),
        Row(
            "watchdog_state_since_timestamp_seconds",
            "gauge",
            "When the supervisor entered its state",
            _of_view(lambda view: view.since_wall_s),
        ),
        Row("watchdog_runs_total", "counter", "Runs that have ended, by cause", _runs, ("cause",)),
        Row(
            "watchdog_notifications_total",
            "counter",
            "Attempts to tell a person by the command of [notify], by event and outcome",
            _notifications,
            ("event", "outcome"),
        ),
        Row(
            "watchdog_restarts_total",
            "counter",
            "Launches of the job after its first",
            _of_view(lambda view: view.restarts),
        ),
        Row(
            "watchdog_steps_repeated_total",
            "counter",
            "Steps that were trained again after a resume",
            _of_view(lambda view: view.steps_repeated),
        ),
        Row(
            "watchdog_checkpoints_pruned_total",
            "counter",
            "Checkpoints that were deleted by [retention] or watchdog prune",
            _of_view(lambda view: view.pruned),
        ),
        Row(
            "watchdog_checkpoints_pruned_bytes_total",
            "counter",
            "Bytes that pruning gave back, of checkpoints and leftovers",
            _of_view(lambda view: view.pruned_bytes),
        ),
        Row(
            "watchdog_ettr_ratio",
            "gauge",
            "Effective training time: committed steps x median step time / time since the first launch",
            _of_view(lambda view: view.ettr_ratio),
        ),
        Row(
            "watchdog_lost_seconds_total",
            "counter",
            "Time since the first launch that brought no new step, by what it went to",
            _lost,
            ("kind",),
        ),
        Row(
            "watchdog_failures_in_a_row",
            "gauge",
            "Failures since the last new verified checkpoint",
            _of_view(lambda view: view.failures),
        ),
        Row(
            "watchdog_failures_allowed",
            "gauge",
            "Failures in a row at which the supervisor holds",
            _of_view(lambda view: view.failure_limit),
        ),
        Row(
            "watchdog_batch_halvings",
            "gauge",
            "How often the micro-batch is halved since device memory ran out; 0: whole",
            _of_view(lambda view: view.batch_halvings),
        ),
        Row("watchdog_run_number", "gauge", "Number of the run", _of_run(lambda run: run.number)),
        Row("watchdog_run_alive", "gauge", "1 while the run lives", _of_run(lambda run: run.alive)),
        Row("watchdog_step", "gauge", "Step of the last beat", _of_run(lambda run: run.step)),
        Row("watchdog_target_step", "gauge", "Step at which the job is finished", _of_run(lambda run: run.target_step)),
        Row("watchdog_tokens", "gauge", "Tokens trained on, as of the last beat", _of_run(lambda run: run.tokens)),
        Row("watchdog_loss", "gauge", "Training loss of the last beat, in nats", _of_run(lambda run: run.loss)),
        Row(
            "watchdog_gradient_norm", "gauge", "Gradient norm of the last beat", _of_run(lambda run: run.gradient_norm)
        ),
        Row(
            "watchdog_learning_rate", "gauge", "Learning rate of the last beat", _of_run(lambda run: run.learning_rate)
        ),
        Row("watchdog_beat_age_seconds", "gauge", "Age of the last beat", _of_run(lambda run: run.beat_age_s)),
        Row(
            "watchdog_beat_deadline_seconds",
            "gauge",
            "Age at which a beat of this phase is stale",
            _of_run(lambda run: run.beat_deadline_s),
        ),
        Row(
            "watchdog_checkpoint_step",
            "gauge",
            "Step of the newest verified checkpoint",
            _of_view(lambda view: view.checkpoint_step),
        ),
        Row(
            "watchdog_checkpoint_age_seconds",
            "gauge",
            "Age of the newest verified checkpoint",
            _of_view(lambda view: view.checkpoint_age_s),
        ),
        Row(
            "watchdog_host_memory_available_bytes",
            "gauge",
            "Host memory a job could get: MemAvailable, or what the tightest cgroup limit leaves",
            _of_view(lambda view: view.memory_available_bytes),
        ),
        Row(
            "watchdog_host_memory_need_bytes",
            "gauge",
            "Host memory the job says it needs",
            _of_view(lambda view: view.memory_need_bytes),
        ),
        Row(
            "watchdog_finding",
            "gauge",
            "1 for each finding that stands now: a warning or worse",
            _findings,
            ("check", "severity", "subject"),
        ),
        Row(
            "watchdog_driver_silent_seconds",
            "gauge",
            "How long the NVIDIA driver has not answered; 0 while it does",
            _of_view(lambda view: view.driver_silent_s),
        ),
        *(
            Row(f"watchdog_gpu_{name}", "gauge", text, _of_devices(get), ("uuid", "name"))
            for name, text, get in _DEVICE_GAUGES
        ),
        Row(
            "watchdog_gpu_xids_total",
            "counter",
            "Xid events that the driver delivered, by number",
            _xids,
            ("uuid", "name", "xid"),
        ),
        Row(
            "watchdog_collector_duration_seconds",
            "gauge",
            "How long the collector's last call took, or has been silent",
            _of_collectors(lambda collector: collector.duration_s),
            ("collector",),
        ),
        Row(
            "watchdog_collector_success",
            "gauge",
            "1 if the collector's last call gave an answer",
            _of_collectors(lambda collector: collector.success),
            ("collector",),
        ),
        Row(
            "watchdog_collector_last_success_timestamp_seconds",
            "gauge",
            "When the collector last gave an answer",
            _of_collectors(lambda collector: collector.last_success_wall_s),
            ("collector",),
        ),
    )


class Metrics(Collector):
    """The last published view as Prometheus sees it."""

    def __init__(self, registry: CollectorRegistry, *, states: Sequence[str], version: str) -> None:
        """Registers with `registry`. Raises ValueError when that has metrics of these names already."""
        self._table = table(states)
        self._version = version
        self._view: StatusView | None = None
        registry.register(self)

    def publish(self, view: StatusView) -> None:
        """What the next scrape shows. One assignment: a scrape in another thread sees the old view or the new one."""
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Names, types and help without samples: what the registry checks for duplicates."""
        yield self._build()
        for row in self._table:
            yield _family(row)

    def collect(self) -> Iterable[Metric]:
        """All families of the last published view; before the first there is only the build."""
        view = self._view
        yield self._build()
        if view is None:
            return
        for row in self._table:
            family = _family(row)
            for labels, value in row.samples(view):
                if value is not None:
                    family.add_metric(labels, float(value))
            if family.samples:
                yield family

    def _build(self) -> Metric:
        family = GaugeMetricFamily(
            "watchdog_build_info", "Always 1; the version of this supervisor", labels=["version"]
        )
        family.add_metric((self._version,), 1)
        return family


def _family(row: Row) -> GaugeMetricFamily | CounterMetricFamily:
    if row.kind == "counter":
        return CounterMetricFamily(row.name.removesuffix("_total"), row.help, labels=row.labels)
    return GaugeMetricFamily(row.name, row.help, labels=row.labels)
