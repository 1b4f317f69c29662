"""The NVIDIA driver and its devices, as one long-lived child sees them.

Responsible for never waiting: a question is put to the child, the answer is taken when it is there, and silence, a
crash or nonsense becomes a fact. One child at a time: while one is stuck in the driver no second is put beside it.
One question may be for several samples, which the child takes by itself, a second apart: until they are due it is left
alone, since once a second with cold caches even a read that finds nothing takes 75 us.
Remembers of each device, by UUID, its last samples, what changes slowly, and its Xids, over the children's lives.
Refuses to load NVML here, to signal the child (its own alarm ends it), and to start one where there plainly is no
driver.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from watchdog.clock import Clock
from watchdog.collectors import linechild, nvml_child
from watchdog.collectors.linechild import LineChild
from watchdog.collectors.nvml_answer import Refusal, Row, Sample, parse_answer
from watchdog.collectors.nvml_library import device_node, find_library, nothing_here
from watchdog.collectors.nvml_questions import FAST, GLANCE, NAMELESS
from watchdog.collectors.roots import Roots
from watchdog.core.devicefacts import (
    NVML_DRIVER_NOT_LOADED,
    NVML_LIBRARY_NOT_FOUND,
    Device,
    DeviceSample,
    Driver,
    XidFault,
    with_events,
)
from watchdog.core.fact import Absent, Fact, Known, Unknown

_LONGEST_BACKOFF_S = 60.0
_LOOK_AGAIN_S = 60.0  # where there was no driver
_LATE_S = 0.5  # the last of several samples is given so long before its answer is due
_SOONEST_S = 0.9  # samples closer than that would make five of them the proof of a moment
_UPGRADED = ": where the watchdog or Python was upgraded meanwhile, restart the supervisor"
# What a device is, as opposed to how it is: still true when it is lost.
_LASTING = (
    "name",
    "pci_bus_id",
    "minor",
    "compute_capability",
    "memory_total_bytes",
    "power_limit_watts",
    "sm_clock_max_mhz",
    "pcie_generation_max",
    "pcie_width_max",
)


# Of a device that does not change, as long as it was not asked fully.
_NOT_AGAIN: dict[str, Fact[Any]] = dict.fromkeys(list(FAST)[GLANCE:], Unknown("not asked again of this device yet"))


class _Remembered:
    """What is known of one device, over all samples. `row` is what the newest of them said, `now` all it stands for."""

    row: Row
    now: DeviceSample

    def __init__(self, samples: int) -> None:
        self.recent: deque[DeviceSample] = deque(maxlen=samples)
        self._readings = dict(_NOT_AGAIN)
        self.fields: dict[str, Fact[Any]] = {}
        self.counters: dict[str, Fact[int]] = {}
        self.slow_implausible: tuple[str, ...] = ()
        self.xids: Counter[int] = Counter()
        self.xid_faults: tuple[XidFault, ...] = ()

    def take(self, row: Row, *, believe_sample: bool) -> None:
        self.row = row
        # What was not asked again stands as it was, with the time at which it was read.
        readings = self._readings | row.readings
        self.now = DeviceSample(at_s=row.at_s, **readings)
        if believe_sample:
            self._readings = readings
            self.recent.append(self.now)
        if isinstance(row.xids, dict) and row.xids:
            self.xids.update(row.xids)
            self.xid_faults = with_events(self.xid_faults, row.xids, row.at_s)
        if row.slow is None:
            return
        kept = {} if row.lost_code is None else {name: self.fields.get(name) for name in _LASTING}
        self.fields = {
            name: old if isinstance(old := kept.get(name), Known) and not isinstance(fact, Known) else fact
            for name, fact in row.slow.fields.items()
        }
        self.counters = row.slow.counters
        self.slow_implausible = row.slow.implausible

    def forget(self) -> None:
        """What was read before a gap in our schedule does not count any more."""
        self.recent.clear()
        self._readings = dict(_NOT_AGAIN)

    def device(self, *, missing: bool) -> Device:
        row, xids = self.row, self.row.xids
        return Device(
            uuid=row.uuid,
            index=row.index,
            recent=tuple(self.recent) or (self.now,),
            lost_code=row.lost_code,
            missing=missing,
            implausible=() if missing else row.implausible + self.slow_implausible,
            xid_counts=Known(dict(self.xids), row.at_s) if isinstance(xids, dict) else xids,
            xid_faults=self.xid_faults,
            clocks_event_counters_us=self.counters,
            **self.fields,
        )


class DeviceWatch:
    """Asks, and says what is known. For use from one thread."""

    def __init__(
        self,
        roots: Roots,
        clock: Clock,
        environ: Mapping[str, str] | None = None,
        *,
        samples: int = 30,
        alarm_s: float = 90.0,
        silent_after_s: float = 1.0,
    ) -> None:
        """`samples`: how many are kept. `alarm_s`: when a stuck child ends itself.

        `silent_after_s`: an answer that is later than that is silence, which counts from when it was due.
        """
        self._roots = roots
        self._clock = clock
        self._environ = environ
        self._samples = samples
        self._alarm_s = alarm_s
        self._silent_after_s = silent_after_s
        self._library: str | None = None
        self._node: str | None = None
        self._nothing: str | None = None  # why there is no driver
        self._not_before_s = 0.0  # no look, no question and no start before
        self._closed = False
        self._child: LineChild | None = None
        self._outstanding = self._just_asked = self._hurried = False
        self._waited_out = False  # who asks but once has waited in vain: that is silence, however short
        self._batch = 1  # so many samples were asked for
        self._short = False  # there were fewer
        self._question_s = float("-inf")  # the last question's moment
        self._ready_s = 0.0  # when there will be an answer to read
        self._due_s: float | None = None  # when the first question since the last answer should have been answered
        self._failures = 0  # ends of children since the last sample: the backoff
        self._crashes = 0
        self._crash = ""
        self._answer: Sample | Refusal | str | None = None  # str: what is no answer
        self._answer_s = 0.0
        self._versions: tuple[str | None, str | None] = (None, None)
        self._count: int | None = None
        self._known: dict[str, _Remembered] = {}
        self._forgot_s = self._changed_s = float("-inf")
        self._devices: Fact[tuple[Device, ...]] = Unknown("NVML has not been asked yet")
        self._told: tuple[Fact[Driver], Fact[tuple[Device, ...]]] | None = None  # said of these devices before

    @property
    def pid(self) -> int | None:
        """The child's, while there is one."""
        return None if self._child is None else self._child.pid

    @property
    def unread(self) -> bool:
        """The first answer is on its way, or one that was hurried, and not late yet."""
        if self._nothing is not None or self._crashes or self._due_s is None:
            return False
        if self._answer is not None and not (self._outstanding and self._hurried):
            return False
        return self._clock.monotonic() - self._due_s <= self._silent_after_s

    def ask(self, batch: int = 1) -> None:
        """Asks for so many samples, a second apart, unless a question is open; for one: hurries one that is for more.

        Once a second at most. Starts the child where there is none, not too often. `batch`: 20 at most. After an answer
        with fewer samples than asked for the next question is for one: whether the driver was slow is then seen as it
        happens.
        """
        now_s = self._clock.monotonic()
        if self._outstanding and now_s < self._ready_s:
            if batch > 1:
                self._just_asked = True  # nothing can have come: each step here is one with cold caches
                return
            self._take_what_came()
            self._hurry(now_s)
        else:
            self._take_what_came()
        if self._closed or self._outstanding or now_s < self._not_before_s or self._just_seen(now_s):
            return
        if self._child is None:
            self._library = find_library(self._roots, os.environ if self._environ is None else self._environ)
            self._nothing = nothing_here(self._roots, self._library)
            self._look_for_node()
            if self._nothing is not None:
                self._not_before_s = now_s + _LOOK_AGAIN_S
                return
            self._begin(now_s)
        self._batch = 1 if self._short else batch
        if self._child is not None and self._child.say(b"sample %d\n" % self._batch):
            self._outstanding = self._just_asked = True
            self._hurried = False
            self._question_s = now_s
            self._ready_s = now_s if self._batch == 1 else now_s + self._batch - 1 + _LATE_S
            if self._due_s is None:
                self._due_s = self._ready_s
        else:
            self._listen()

    def soon(self) -> None:
        """What is known is of before something changed: the next question may come however short after the last."""
        self._changed_s = self._clock.monotonic()

    def _just_seen(self, now_s: float) -> bool:
        last_s = max(self._question_s, self._answer_s)
        changed_s = max(self._forgot_s, self._changed_s)
        return self._answer is not None and last_s >= changed_s and now_s - last_s < _SOONEST_S

    def _hurry(self, now_s: float) -> None:
        """What there is of several samples is wanted now."""
        self._ready_s = now_s
        self._due_s = now_s if self._due_s is None else min(self._due_s, now_s)
        if self._child is not None and self._child.say(b"hurry\n"):
            self._hurried = self._just_asked = True
        else:
            self._listen()

    def see(self) -> tuple[Fact[Driver], Fact[tuple[Device, ...]]]:
        """The newest that is known, at once."""
        if self._just_asked:  # and took what had come: an answer needs a moment
            self._just_asked = False
        else:
            self._take_what_came()
        if self._nothing is not None:
            return Absent(self._nothing), Absent(self._nothing)
        now_s = self._clock.monotonic()
        silent_s = 0.0 if self._due_s is None else now_s - self._due_s
        if silent_s <= self._silent_after_s and not (self._waited_out and self._outstanding):
            silent_s = 0.0
        if silent_s or self._crashes:
            self._look_for_node()
            why = f"NVML has not answered for {silent_s:.0f} s"
            if not silent_s:
                why = f"the child that asks NVML {self._crash}; {self._crashes} in a row ended without an answer"
            return Known(self._driver(silent_s=silent_s), now_s), Unknown(why)
        answer = self._answer
        if answer is None:
            asked = "answered" if self._outstanding else "been asked"
            return Unknown(f"the driver has not {asked} yet"), Unknown(f"NVML has not {asked} yet")
        if isinstance(answer, str):
            return Unknown(answer), Unknown(answer)
        if isinstance(answer, Sample):
            if self._told is None or self._told[1] is not self._devices:
                self._told = Known(self._driver(), self._answer_s), self._devices
            return self._told
        if answer.code < 0:
            return Unknown(answer.text), Unknown(answer.text)
        if (absent := self._no_driver(answer)) is not None:
            return absent, absent
        why = f"NVML answers with code {answer.code}: {answer.text}"
        return Known(self._driver(code=answer.code, error=answer.text), self._answer_s), Unknown(why)

    def wait(self, deadline_s: float) -> bool:
        """Whether the open question is answered within so many real seconds. For who asks but once."""
        until_s = time.monotonic() + deadline_s
        self._take_what_came()
        while self._outstanding and self._child is not None and (left_s := until_s - time.monotonic()) > 0:
            poll = select.poll()
            if self._child.finished:  # it is ending; of that no descriptor tells
                left_s = min(left_s, 0.005)
            else:
                poll.register(self._child, select.POLLIN)
            poll.poll(left_s * 1000)
            self._listen()
        self._waited_out = self._outstanding
        return self._answer is not None and self._due_s is None and self._crashes == 0

    def forget(self) -> None:
        """After a gap in our own schedule: no answer, silence or crash from before it counts, and no pause goes on."""
        self._forgot_s = self._clock.monotonic()
        self._answer = None
        self._crashes, self._crash, self._not_before_s = 0, "", 0.0
        if self._due_s is not None:
            self._due_s = max(self._due_s, self._forgot_s)
        for remembered in self._known.values():
            remembered.forget()
        self._devices = Unknown("NVML has not been asked since the watchdog itself stood still")

    def close(self) -> None:
        """Lets the child go; it leaves by itself. Nothing is asked any more."""
        self._closed = True
        if self._child is not None:
            self._child.close()
            self._child = None
        self._outstanding, self._due_s = False, None
        linechild.reap()

    # -- the child -----------------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        # Found without importing it: the child needs no `site`, and this process no pynvml.
        from importlib.machinery import PathFinder

        found = PathFinder.find_spec("pynvml")
        site = os.path.dirname(found.origin) if found is not None and found.origin is not None else "/nonexistent"
        argv = [sys.executable, "-I", "-S", nvml_child.__file__, site, self._roots.proc, repr(self._alarm_s)]
        try:
            self._child = LineChild(argv, self._environ)
        except OSError as error:
            self._unasked(f"cannot be started ({error})", now_s)

    def _take_what_came(self) -> None:
        """A child that is idle or at several samples has nothing to say; whether it is there is seen in time."""
        linechild.reap()
        if self._outstanding:
            if self._clock.monotonic() >= self._ready_s:
                self._listen()
        elif self._child is not None and self._child.finished:
            self._listen()

    def _listen(self) -> None:
        child = self._child
        if child is None:
            return
        for line in child.hear():
            self._take(line)
        if not child.finished or (code := child.ended()) is None:
            return
        child.close()
        self._child = None
        now_s = self._clock.monotonic()
        if not self._outstanding or code == 0:  # of its own accord: no fault of the driver, but no start at once
            self._outstanding, self._due_s = False, None
            self._back_off(now_s)
            return
        if code == -signal.SIGALRM and not child.trouble:  # it hung in vain: no crash, and the silence goes on over it
            self._outstanding = False
            self._back_off(now_s)
        elif code >= 0 and not child.trouble:
            self._unasked(f"ended with code {code}{_UPGRADED}", now_s)
        else:
            self._crashed(child.trouble or _how_it_died(-code), now_s)

    def _crashed(self, how: str, now_s: float) -> None:
        self._outstanding, self._due_s = False, None
        self._crashes += 1
        self._crash = how
        self._back_off(now_s)

    def _unasked(self, why: str, now_s: float) -> None:
        """The child never came to ask, or left without a signal: nothing that the driver did."""
        self._outstanding, self._due_s = False, None
        self._crashes, self._crash = 0, ""
        self._answer = f"the child that asks NVML {why}"
        self._back_off(now_s)

    def _back_off(self, now_s: float) -> None:
        self._not_before_s = now_s + min(2.0**self._failures, _LONGEST_BACKOFF_S)
        self._failures = min(self._failures + 1, 6)

    # -- its answers ---------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        now_s = self._clock.monotonic()
        asked_s = self._question_s if self._outstanding else now_s
        self._outstanding, self._due_s = False, None
        self._crashes, self._crash = 0, ""
        self._answer_s = asked_s
        try:
            answers = parse_answer(line, asked_s)
        except ValueError as error:
            self._answer = str(error)
            return
        self._short = len(answers) < self._batch
        believe = asked_s >= self._forgot_s
        for _, answer in answers:
            if isinstance(answer, Sample):
                self._remember(answer, believe=believe)
            elif self._no_driver(answer) is not None:  # each question makes NVML try to load the kernel module
                self._not_before_s = now_s + _LOOK_AGAIN_S
        self._answer_s, answer = answers[-1]
        self._answer = answer if believe else None
        samples = [(at_s, answer) for at_s, answer in answers if isinstance(answer, Sample)]
        if samples:
            self._failures = 0
            self._make_devices(*samples[-1], believe=believe)

    def _remember(self, sample: Sample, *, believe: bool) -> None:
        # Also the same ones again: while the driver was away its node may have been away as well.
        if sample.versions is not None and (sample.versions != self._versions or not isinstance(self._answer, Sample)):
            self._versions = sample.versions
            self._look_for_node()
        for row in sample.rows:
            if row.uuid not in self._known:
                self._known[row.uuid] = _Remembered(self._samples)
            self._known[row.uuid].take(row, believe_sample=believe)

    def _make_devices(self, at_s: float, sample: Sample, *, believe: bool) -> None:
        """Of all that is remembered; `sample` is the newest."""
        self._count = len(sample.rows)
        listed = {row.uuid for row in sample.rows}
        if len(self._known) > len(listed):
            for uuid in [uuid for uuid in self._known if uuid.startswith(NAMELESS) and uuid not in listed]:
                del self._known[uuid]  # it has a UUID by now
        if believe:
            devices = [known.device(missing=uuid not in listed) for uuid, known in self._known.items()]
            devices.sort(key=lambda device: (device.missing, device.index))
            self._devices = Known(tuple(devices), at_s)

    def _no_driver(self, answer: Refusal) -> Absent | None:
        """A driver that is not loaded is no fault where no device node says that there should be one.

        Windows lends WSL its library and its bridge together: there the library alone says so.
        """
        if "/wsl/" in (self._library or ""):
            return None
        if answer.code not in (NVML_DRIVER_NOT_LOADED, NVML_LIBRARY_NOT_FOUND) or self._look_for_node():
            return None
        loaded = answer.code == NVML_LIBRARY_NOT_FOUND
        meaning = "its library cannot be loaded" if loaded else "the driver is not loaded"
        return Absent(f"NVML says that {meaning} (code {answer.code}), and there is no device node")

    def _look_for_node(self) -> str | None:
        self._node = device_node(self._roots, self._library)
        return self._node

    def _driver(self, *, code: int | None = None, error: str = "", silent_s: float = 0.0) -> Driver:
        version, cuda_version = self._versions if code is None else (None, None)
        return Driver(
            version=version,
            cuda_version=cuda_version,
            devices=self._count if code is None else None,
            library=self._library,
            node=self._node,
            code=code,
            error=error,
            silent_s=silent_s,
            crashes=self._crashes,
            crash=self._crash,
        )


def _how_it_died(number: int) -> str:
    try:
        return f"died of signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"died of signal {number}"
