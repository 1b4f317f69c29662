"""`watchdog probe`: measure devices by hand, and remember what they did; also the measuring that a diagnosis asks for.

Responsible for never measuring beside a healthy trainer, for comparing with the baseline, and for teaching it (only
`watchdog probe` does; a diagnosis writes nothing). Exit codes as monitoring plugins have them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from watchdog import baselines
from watchdog.checks import compute_floor, wrong_product
from watchdog.checks.catalogue import CATALOGUE, judge
from watchdog.checks.figures import counted
from watchdog.clock import Clock
from watchdog.collectors.probe import CPU, Measured, ProbeReader
from watchdog.core.baselines import Results, baseline, key_of, learned
from watchdog.core.diagnosis import EXIT_UNKNOWN, EXIT_WARNING, exit_code
from watchdog.core.facts import Absent, Device, Fact, Facts, Known, NotMeasured, Probe, Probed, Unknown, value_of
from watchdog.core.findings import Finding, Remedy, next_step
from watchdog.core.limits import Limits, fitting_several
from watchdog.core.probing import beside, refused, to_measure
from watchdog.errors import SettingsError, StateError
from watchdog.render_facts import record_of
from watchdog.settings import Settings

_CHECKS = tuple(check for check in CATALOGUE if check.name in (compute_floor.NAME, wrong_product.NAME))


def baselines_file(settings: Settings) -> Path:
    """One for all jobs of this host."""
    return settings.state.folder / "baselines.json"


class Measuring:
    """Measures one device after the other, beside what is known of each."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        driver: str,
        say: Callable[[str], None],
        reader: ProbeReader | None = None,
    ) -> None:
        """`say` is told what is being measured, as it takes seconds. `trouble`: why there is no baseline to be had.

        `reader`: of who measures again and again.
        """
        self._settings = settings
        self._clock = clock
        self._driver = driver
        self._say = say
        python, memory_bytes = str(settings.probe.python), settings.probe.memory_bytes
        self._reader = reader or ProbeReader(python, clock, memory_bytes=memory_bytes)
        self._keys: dict[str, str] = {}  # of each device, that of its last result
        self.known: Results = {}
        self.trouble = ""
        try:
            self.known = baselines.read(baselines_file(settings))
        except StateError as error:  # what is measured is worth saying all the same
            self.trouble = str(error)

    def measure(self, devices: Sequence[Device]) -> Fact[tuple[Probed, ...]]:
        """All devices, each for itself; Unknown or Absent where none could be measured."""
        probed: list[Probed] = []
        failed: list[NotMeasured] = []
        for device in devices:
            measured = self.one(device.uuid, device.label)
            if isinstance(measured, Known):
                probed.append(measured.value)
                continue
            tried = isinstance(measured, Unknown)
            failed.append(NotMeasured(device=device.uuid, label=device.label, why=measured.why, tried=tried))
        if probed:
            return Known((*probed, *failed), self._clock.monotonic())
        if not any(each.tried for each in failed):  # a Python without torch, which measures none of them
            return Absent(failed[0].why if failed else "there is no device to measure")
        return Unknown("; ".join(f"{each.label}: {each.why}" for each in failed))

    def one(self, device: str, label: str) -> Fact[Probe]:
        """`device` is a UUID or "cpu"."""
        deadline_s = self._settings.probe.deadline_s
        self._say(f"measuring {label}: a matrix product, {deadline_s:.0f} s at most")
        measured = self._reader.measure(device, deadline_s)
        if not isinstance(measured, Known):
            return measured
        value = measured.value
        key = self._keys[device] = self._key(value)
        median, count = baseline(self.known, key)
        return Known(
            Probe(
                device=device,
                name=value.name,
                tflops=value.tflops,
                dtype=value.dtype,
                size=value.size,
                seconds=value.seconds,
                correct=value.correct,
                worst_error=value.worst_error,
                baseline_tflops=median,
                baseline_count=count,
            ),
            measured.at_s,
        )

    def teach(self, probe: Probe, findings: Sequence[Finding], limits: Limits) -> None:
        """Remember a result that nothing is wrong with; what could not be remembered is `trouble`."""
        if self.trouble or any(finding.severity > 0 for finding in findings):
            return
        new = learned(self.known, self._keys[probe.device], probe.tflops, fraction=limits.compute_baseline_fraction)
        if new is not self.known:
            try:
                baselines.write(baselines_file(self._settings), new)
            except StateError as error:
                self.trouble = str(error)
                return
            self.known = new

    def _key(self, measured: Measured) -> str:
        device = measured.device
        if device == CPU:  # OMP_NUM_THREADS=1 is no sick CPU, and torch's own library is what computes there
            device = f"{CPU}:{measured.name}, {measured.threads} threads, torch {measured.torch}"
        return key_of(device=device, driver=self._driver, dtype=measured.dtype, size=measured.size)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbeReport:
    """What `watchdog probe` found: `why` is set when nothing was measured, `note` when nothing could be remembered.

    `left_out` are the job's devices of which there is no result.
    """

    probes: tuple[Probe, ...]
    findings: tuple[Finding, ...]
    why: str | None
    note: str = ""
    left_out: tuple[NotMeasured, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.why is not None:
            return EXIT_UNKNOWN
        return exit_code(self.findings) or (EXIT_WARNING if self.note else 0)


def probe(
    settings: Settings,
    facts: Facts,
    limits: Limits,
    *,
    clock: Clock,
    device: str | None,
    store: bool,
    say: Callable[[str], None],
) -> ProbeReport:
    """Measure `device` (a UUID, its beginning, an index, or "cpu"), or the job's devices; without any, the CPU.

    Raises SettingsError for a device that is no name, or fits several.
    """
    if device is not None and not device.strip():
        raise SettingsError(f"--device {device!r}: must be a UUID, its beginning, an index, or cpu")
    if device not in (None, CPU):
        _require_one(str(device), facts)
    wanted = limits if device in (None, CPU) else replace(limits, devices=(str(device),))
    found = to_measure(facts, wanted)
    on_cpu = device == CPU or (device is None and isinstance(facts.devices, Absent))
    if on_cpu:
        busy = _busy(facts)
        if busy is not None:
            return _nothing(busy)
    elif isinstance(found, str):
        return _nothing(found if device is None else f"--device {device}: {found}{_there(facts)}")
    with baselines.alone(baselines_file(settings), make=store) as alone:
        if not alone:
            return _nothing("another probe is measuring; two at once would falsify each other")
        return _measure(settings, facts, wanted, clock=clock, on_cpu=on_cpu, found=found, store=store, say=say)


def _measure(
    settings: Settings,
    facts: Facts,
    limits: Limits,
    *,
    clock: Clock,
    on_cpu: bool,
    found: tuple[Device, ...] | str,
    store: bool,
    say: Callable[[str], None],
) -> ProbeReport:
    measuring = Measuring(settings, clock, driver_of(facts), say)
    if on_cpu:
        fact = measuring.one(CPU, "the CPU")
        measured: Fact[tuple[Probed, ...]] = Known((fact.value,), fact.at_s) if isinstance(fact, Known) else fact
    else:
        assert not isinstance(found, str)
        measured = measuring.measure(found)
        if isinstance(measured, Known):
            measured = Known((*measured.value, *refused(facts, limits)), measured.at_s)
    if not isinstance(measured, Known):
        return _nothing(measured.why)
    findings = judge(replace(facts, probe=measured), limits, _CHECKS)
    probes = tuple(each for each in measured.value if isinstance(each, Probe))
    if store:
        for each in probes:
            about = [finding for finding in findings if finding.device in (None, each.device)]
            measuring.teach(each, about, limits)
    left_out = tuple(each for each in measured.value if isinstance(each, NotMeasured))
    note = measuring.trouble if store else ""
    return ProbeReport(probes=probes, findings=findings, why=None, note=note, left_out=left_out)


def _require_one(device: str, facts: Facts) -> None:
    """Raises SettingsError for the beginning of several UUIDs."""
    devices: tuple[Device, ...] = value_of(facts.devices) or ()
    fitting = fitting_several(device, devices)
    if fitting:
        names = ", ".join(f"{each.index}: {each.label}" for each in fitting)
        raise SettingsError(f"--device {device}: fits {len(fitting)} devices: {names}; give more of the UUID")


def _there(facts: Facts) -> str:
    """Which devices could have been named."""
    labels = [device.label for device in value_of(facts.devices) or ()]
    return f"; here are {', '.join(labels)}" if labels else ""


def _busy(facts: Facts) -> str | None:
    """The CPU is everybody's; only a trainer of this job is spared."""
    if isinstance(facts.beat, Known) and facts.beat.value.alive is not False:
        beat = facts.beat.value
        return f"run {beat.run_id} is alive (pid {beat.pid}): nothing is measured beside it"
    if isinstance(facts.processes, Known) and facts.processes.value.run:
        return f"a run is alive (pid {facts.processes.value.run[0].pid}): nothing is measured beside it"
    return beside(facts)


def _nothing(why: str) -> ProbeReport:
    return ProbeReport(probes=(), findings=(), why=why)


def needed() -> frozenset[str]:
    """The facts that deciding and judging need."""
    return frozenset({"driver", "devices", "processes", "beat", "locks"}).union(*(check.needs for check in _CHECKS))


def driver_of(facts: Facts) -> str:
    """The driver's version: another one may be faster or slower."""
    version = facts.driver.value.version if isinstance(facts.driver, Known) else None
    return version or "no driver"


def report_lines(report: ProbeReport, options: str = "") -> list[str]:
    """For a person. `options` are the words that a command needs to mean this job."""
    if report.why is not None:
        return [f"not measured: {report.why}"]
    lines = []
    for each in report.probes:
        results = counted(each.baseline_count, "result")
        known = f", {each.baseline_tflops:.3g} before ({results})" if each.baseline_tflops else ""
        right = "right" if each.correct else "WRONG"
        lines.append(
            f"{each.name}: {each.tflops:.3g} TFLOP/s{known} · {each.dtype}, {each.size} x {each.size}, "
            f"{each.seconds * 1000:.3g} ms each · product {right} (worst error {each.worst_error:.2g})"
        )
    lines += [f"{each.label}: not measured: {each.why}" for each in report.left_out if not each.tried]
    if report.note:
        lines.append(f"not remembered: {report.note}")
    for finding in report.findings:
        if finding.severity > 0:
            lines.append(f"{finding.severity.name}  {finding.subject} · {finding.reason}")
            lines.extend(f"  {line}" for line in finding.evidence)
            if finding.remedy is not Remedy.NONE:
                lines.append(f"  next    {next_step(finding, options)}")
    return lines


def report_record(report: ProbeReport) -> dict[str, Any]:
    """For a program."""
    return {
        "format": 1,
        "exit_code": report.exit_code,
        "not_measured": report.why,
        "not_remembered": report.note or None,
        "probes": [record_of(each) for each in report.probes],
        "left_out": [record_of(each) for each in report.left_out],
        "findings": [
            {
                "check": each.check,
                "severity": each.severity.name.lower(),
                "device": each.device,
                "reason": each.reason,
            }
            for each in report.findings
        ],
    }
