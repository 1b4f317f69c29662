"""Metrics: the table, a real scrape, and clients that mean no good."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import resource
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from watchdog import metrics_server
from watchdog.core.causes import Cause
from watchdog.core.view import CollectorView, DeviceView, FindingView, RunView, StatusView
from watchdog.errors import SettingsError
from watchdog.metrics import Metrics, Server, serve, table

STATES = ("starting", "running", "hold")
RUN = RunView(
    number=3,
    run_id="r3",
    alive=True,
    step=412,
    target_step=600,
    tokens=1_200_000,
    loss=3.41,
    gradient_norm=0.7,
    learning_rate=3e-4,
    beat_age_s=0.25,
    beat_deadline_s=60.0,
)
VIEW = StatusView(
    job="default",
    state="running",
    since_wall_s=1_700_000_000.0,
    now_wall_s=1_700_000_100.0,
    sentence="run 3 trains",
    run=RUN,
    runs_by_cause={"signalled": 2},
    failures=1,
    restarts=2,
    steps_repeated=14,
    pruned=5,
    pruned_bytes=60_000,
    checkpoint_step=400,
    checkpoint_age_s=12.5,
    memory_available_bytes=22 * 1024**3,
    memory_need_bytes=1024**3,
    collectors={
        "memory": CollectorView(duration_s=0.001, success=True, last_success_wall_s=1_700_000_099.0),
        "driver": CollectorView(duration_s=12.0, success=False, last_success_wall_s=None, why="hangs"),
    },
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, states=STATES, version="0.1.0")


@pytest.fixture
def server(registry: CollectorRegistry, metrics: Metrics) -> Iterator[Server]:
    server = serve(registry, 0)
    yield server
    server.close()


def scrape(server: Server, accept: str = "text/plain") -> str:
    request = urllib.request.Request(server.url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def parse(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_real_scrape_shows_the_published_view(server: Server, metrics: Metrics) -> None:
    metrics.publish(VIEW)
    samples = parse(scrape(server))
    expected = {
        "watchdog_step": 412.0,
        "watchdog_target_step": 600.0,
        "watchdog_tokens": 1_200_000.0,
        "watchdog_loss": 3.41,
        "watchdog_gradient_norm": 0.7,
        "watchdog_learning_rate": 3e-4,
        "watchdog_beat_age_seconds": 0.25,
        "watchdog_run_number": 3.0,
        "watchdog_run_alive": 1.0,
        "watchdog_failures_in_a_row": 1.0,
        "watchdog_failures_allowed": 3.0,
        "watchdog_restarts_total": 2.0,
        "watchdog_steps_repeated_total": 14.0,
        "watchdog_checkpoints_pruned_total": 5.0,
        "watchdog_checkpoints_pruned_bytes_total": 60_000.0,
        "watchdog_checkpoint_step": 400.0,
        "watchdog_checkpoint_age_seconds": 12.5,
        "watchdog_host_memory_available_bytes": 22.0 * 1024**3,
        "watchdog_host_memory_need_bytes": 1024.0**3,
        "watchdog_view_timestamp_seconds": 1_700_000_100.0,
    }
    assert {name: samples[(name, ())] for name in expected} == expected
    assert samples[("watchdog_build_info", (("version", "0.1.0"),))] == 1
    assert [samples[("watchdog_state", (("state", state),))] for state in STATES] == [0, 1, 0]
    assert samples[("watchdog_collector_success", (("collector", "driver"),))] == 0
    assert samples[("watchdog_collector_duration_seconds", (("collector", "driver"),))] == 12
    last = "watchdog_collector_last_success_timestamp_seconds"
    assert samples[(last, (("collector", "memory"),))] == 1_700_000_099
    assert (last, (("collector", "driver"),)) not in samples


def test_every_cause_is_counted_from_the_start(server: Server, metrics: Metrics) -> None:
    metrics.publish(VIEW)
    samples = parse(scrape(server))
    counts = {
        dict(labels)["cause"]: value for (name, labels), value in samples.items() if name == "watchdog_runs_total"
    }
    assert counts == {cause.value: 2.0 if cause is Cause.SIGNALLED else 0.0 for cause in Cause}


def test_ettr_and_what_was_lost(server: Server, metrics: Metrics) -> None:
    metrics.publish(dataclasses.replace(VIEW, ettr_ratio=0.94, lost_s={"load": 12.5, "replay": 0.0}))
    text = scrape(server)
    assert "watchdog_ettr_ratio 0.94" in text
    assert 'watchdog_lost_seconds_total{kind="load"} 12.5' in text
    assert 'watchdog_lost_seconds_total{kind="replay"} 0.0' in text
    metrics.publish(VIEW)
    assert "watchdog_ettr_ratio" not in scrape(server)


def test_what_is_not_known_has_no_series(server: Server, metrics: Metrics) -> None:
    metrics.publish(dataclasses.replace(VIEW, run=None, checkpoint_step=None, memory_available_bytes=None))
    names = {name for name, _ in parse(scrape(server))}
    assert "watchdog_state" in names
    unknown = {"watchdog_step", "watchdog_loss", "watchdog_run_alive", "watchdog_checkpoint_step"}
    assert not names & (unknown | {"watchdog_host_memory_available_bytes"})
    metrics.publish(dataclasses.replace(VIEW, run=dataclasses.replace(RUN, loss=None, step=0)))
    samples = parse(scrape(server))
    assert samples[("watchdog_step", ())] == 0  # a real zero is a value
    assert ("watchdog_loss", ()) not in samples


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_exported_as_it_is(server: Server, metrics: Metrics, loss: float) -> None:
    metrics.publish(dataclasses.replace(VIEW, run=dataclasses.replace(RUN, loss=loss)))
    found = parse(scrape(server))[("watchdog_loss", ())]
    assert found == loss or (math.isnan(found) and math.isnan(loss))


HOT = FindingView(check="thermal", severity="critical", subject="a card", reason="91 C", next="look at fans")
CARD = DeviceView(
    uuid="GPU-1",
    name="a card",
    power_watts=151.5,
    power_limit_watts=170.0,
    utilization_ratio=0.97,
    memory_used_bytes=10 * 1024**3,
    memory_total_bytes=12 * 1024**3,
    temperature_celsius=71.0,
    sm_clock_hertz=1.837e9,
    xids={"79": 2, "13": 1},
)


def test_devices_and_their_xids(server: Server, metrics: Metrics) -> None:
    silent = DeviceView(uuid="GPU-2", name="", utilization_ratio=0.0)
    metrics.publish(dataclasses.replace(VIEW, devices=(CARD, silent), driver_silent_s=0.0))
    samples = parse(scrape(server))
    expected = {
        "power_watts": 151.5,
        "power_limit_watts": 170.0,
        "utilization_ratio": 0.97,
        "memory_used_bytes": 10.0 * 1024**3,
        "memory_total_bytes": 12.0 * 1024**3,
        "temperature_celsius": 71.0,
        "sm_clock_hertz": 1.837e9,
    }
    first = (("name", "a card"), ("uuid", "GPU-1"))
    assert {name: samples[(f"watchdog_gpu_{name}", first)] for name in expected} == expected
    assert samples[("watchdog_gpu_xids_total", (*first, ("xid", "79")))] == 2
    assert samples[("watchdog_gpu_xids_total", (*first, ("xid", "13")))] == 1
    assert samples[("watchdog_driver_silent_seconds", ())] == 0
    second = {name for name, labels in samples if dict(labels).get("uuid") == "GPU-2"}
    assert second == {"watchdog_gpu_utilization_ratio"}, "a real zero is a value, what is not known has no series"


def test_without_devices_and_driver_there_are_no_such_series(server: Server, metrics: Metrics) -> None:
    metrics.publish(VIEW)
    assert not [name for name, _ in parse(scrape(server)) if "gpu" in name or "driver" in name or "finding" in name]


def test_findings_that_stand_are_one_series_each(server: Server, metrics: Metrics) -> None:
    other = dataclasses.replace(HOT, severity="warning", subject="two")
    again = dataclasses.replace(HOT, reason="92 C")
    metrics.publish(dataclasses.replace(VIEW, findings=(HOT, other, again)))
    text = scrape(server)
    assert text.count("watchdog_finding{") == 2, "of two alike, Prometheus would refuse the whole scrape"
    samples = parse(text)
    for subject, severity in (("a card", "critical"), ("two", "warning")):
        labels = (("check", "thermal"), ("severity", severity), ("subject", subject))
        assert samples[("watchdog_finding", labels)] == 1


@pytest.mark.parametrize("subject", ["/srv/\udcff", 'a "b" \\ c', "two\nlines", "\x1b[31m"])
def test_whatever_a_subject_is_called_it_can_be_scraped(server: Server, metrics: Metrics, subject: str) -> None:
    metrics.publish(dataclasses.replace(VIEW, findings=(dataclasses.replace(HOT, subject=subject),)))
    samples = parse(scrape(server))
    ((_, labels),) = [key for key in samples if key[0] == "watchdog_finding"]
    assert dict(labels)["subject"] == subject.encode("utf-8", "backslashreplace").decode()


def test_before_the_first_view_there_is_only_the_build(server: Server) -> None:
    assert parse(scrape(server)) == {("watchdog_build_info", (("version", "0.1.0"),)): 1.0}


def test_names_and_help_follow_the_rules() -> None:
    rows = table(STATES)
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert re.fullmatch(r"watchdog_[a-z_]+", row.name)
        assert row.name.endswith("_total") is (row.kind == "counter")
        assert row.help
        assert not row.help.endswith(".")
        assert not re.search(r"_(ms|gb|gib|mb|mib|minutes|percent)(_|$)", row.name)


def test_two_of_the_same_registry_are_refused(registry: CollectorRegistry, metrics: Metrics) -> None:
    with pytest.raises(ValueError, match="watchdog_"):
        Metrics(registry, states=STATES, version="0.1.0")


def test_openmetrics_is_spoken_when_asked_for(server: Server, metrics: Metrics) -> None:
    metrics.publish(VIEW)
    text = scrape(server, "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert text.endswith("# EOF\n")
    assert 'watchdog_runs_total{cause="signalled"} 2.0' in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt install prometheus)")
def test_promtool_has_nothing_to_say(server: Server, metrics: Metrics) -> None:
    metrics.publish(VIEW)
    checked = subprocess.run(["promtool", "check", "metrics"], input=scrape(server), capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def ask(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(request)
        answer = b""
        while block := client.recv(65536):
            answer += block
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /favicon.ico HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"DELETE / HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\x02\x00 tls?\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 9000, b"431"),
    ],
)
def test_only_get_of_metrics(server: Server, request_: bytes, status: bytes) -> None:
    assert ask(server, request_).split(b" ")[1] == status
    assert "watchdog_build_info" in scrape(server)


def test_a_collector_with_a_bug_is_an_answer_and_no_end(
    registry: CollectorRegistry, server: Server, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("seven by nought")

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "collect", broken)
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scrape(server)
    assert "watchdog_build_info" in scrape(server)


def test_a_thousand_idle_connections_stop_neither_a_scrape_nor_grow_threads(server: Server, metrics: Metrics) -> None:
    metrics.publish(VIEW)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2300  # both ends are in this process
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files allowed, {wanted} needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    threads = threading.active_count()
    try:
        with contextlib.ExitStack() as stack:
            for number in range(1000):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                if number % 2:
                    client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")  # never goes on
                if number % 100 == 0:
                    assert "watchdog_step 412" in scrape(server)
            assert "watchdog_step 412" in scrape(server)
            assert threading.active_count() == threads
            assert len(server._connections) <= metrics_server.MOST_CONNECTIONS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_slow_client_has_a_deadline_for_the_whole(
    registry: CollectorRegistry, metrics: Metrics, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., object]
) -> None:
    monkeypatch.setattr(metrics_server, "DEADLINE_S", 0.3)
    server = serve(registry, 0)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.settimeout(0.05)

            def dropped() -> bool:
                try:
                    client.sendall(b"x")  # a byte now and then does not buy more time
                    return client.recv(10) == b""
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            wait_until(dropped, "the server to drop a client that never comes to an end")
    finally:
        server.close()


def test_only_loopback_is_bound(server: Server) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert server._listener.getsockname() == ("127.0.0.1", server.port)


def test_a_taken_port_is_one_line_that_names_it_and_who_has_it(server: Server, registry: CollectorRegistry) -> None:
    with pytest.raises(SettingsError) as caught:
        serve(registry, server.port)
    text = str(caught.value)
    assert "\n" not in text
    assert f"127.0.0.1:{server.port} is taken by pid " in text
    assert "this very process" in text
    assert "[metrics] port" in text


def test_a_taken_port_of_somebody_else_names_the_command(registry: CollectorRegistry) -> None:
    program = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True);"
        "sys.stdin.read()"
    )
    argv = ["python3", "-c", program, "--token", "hunter22"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(SettingsError, match=rf"taken by pid {other.pid} \(") as caught:
            serve(registry, port)
        assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(registry: CollectorRegistry, port: int) -> None:
    with pytest.raises(SettingsError, match="0 to 65535"):
        serve(registry, port)


def test_after_close_the_port_is_free_and_the_thread_gone(registry: CollectorRegistry, metrics: Metrics) -> None:
    before = threading.active_count()
    server = serve(registry, 0)
    scrape(server)
    server.close()
    server.close()
    assert threading.active_count() == before
    serve(registry, server.port).close()
