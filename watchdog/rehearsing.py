"""The dry runs of `watchdog relaunch` and `stop`: told by the supervisor's view and the ledger, else by looking.

Writes nothing, takes no lock, sends no signal and reads no checkpoint back; so it promises nothing, either.
"""

from __future__ import annotations

import dataclasses
import os
import time

from watchdog.asking import living_view, status_of
from watchdog.control import NoSupervisorError, SilentError
from watchdog.core.choice import Known
from watchdog.core.gpuproof import foretold
from watchdog.core.history import Event, fold
from watchdog.core.relaunchplan import RelaunchPlan, StopPlan, Told, Wish, in_folder, plan_relaunch, plan_stop
from watchdog.core.view import GateView, StatusView
from watchdog.errors import EXIT_FAILURE, EXIT_HELD, EXIT_HOLD, EXIT_OK, EXIT_USAGE
from watchdog.folders import JobFolders
from watchdog.goingback import claims_in, moment, not_offered
from watchdog.ledger import read_events
from watchdog.places import folders_of, require_visible
from watchdog.settings import Settings

_LOOK_EVERY_S = 0.1
_GATES_WAIT_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What would be done, what it was told from, and the exit code."""

    view: StatusView
    wish: Wish
    plan: RelaunchPlan
    exit_code: int


def dry_run(settings: Settings, wish: Wish) -> DryRun:
    """Look, and change nothing. Raises StateError, ControlError."""
    folders = folders_of(settings)
    require_visible(folders)
    held = ""
    try:
        view = _as_it_will_be(settings, folders, wish, _once_gated(folders, living_view(folders)))
    except (NoSupervisorError, SilentError):
        view = status_of(settings)
        if view.silence is None:
            view = dataclasses.replace(view, gates=_gates_seen(settings, folders, forgets=_forgets(view, wish)))
            if view.supervisor_pid is not None:
                held = f"another supervisor (pid {view.supervisor_pid}) has this job, and is not reached from here"
    events, _ = read_events(folders.ledger)
    history = fold(events)
    verified_wall_s = _verified_at(events)
    there = claims_in(folders)
    refused = None
    if wish.step is not None:
        level, now_wall_s = settings.job.level, view.now_wall_s
        refused = not_offered(wish.step, events, history.known, there, level=level, now_wall_s=now_wall_s)
    candidates = in_folder(there, verified_wall_s, history.line, wish)
    plan = plan_relaunch(
        view,
        wish,
        _told(settings),
        candidates=candidates,
        known=history.known,
        refused=refused,
        next_number=history.last_number + 1,
        clock_words={at_s: moment(at_s, view.now_wall_s) for at_s in verified_wall_s.values()},
        devices=foretold(history.gpu, history.last_run_id),
    )
    out_of_reach = view.silence or held
    if out_of_reach:
        plan = dataclasses.replace(plan, steps=(), why_not=(out_of_reach, *plan.why_not))  # nothing would be done
    code = EXIT_HOLD if plan.why_not else EXIT_OK
    if out_of_reach:
        code = EXIT_HELD if held else EXIT_FAILURE
    if refused is not None:
        code = EXIT_USAGE
    return DryRun(view=view, wish=wish, plan=plan, exit_code=code)


def dry_stop(settings: Settings, *, now: bool) -> tuple[StatusView, StopPlan, int]:
    """The same of `watchdog stop`, and the exit code. Raises StateError, ControlError."""
    folders = folders_of(settings)
    require_visible(folders)
    code, why = EXIT_OK, ""
    try:
        view = living_view(folders)
    except (NoSupervisorError, SilentError):
        view = status_of(settings)
        if view.silence is not None:
            code, why = EXIT_FAILURE, view.silence
        elif view.supervisor_pid is not None:
            code, why = EXIT_HELD, f"another supervisor (pid {view.supervisor_pid}) has this job, and is not reached"
    if why:
        return view, StopPlan(steps=(), why_not=(why,)), code
    plan = plan_stop(view, _told(settings), now=now)
    return view, plan, EXIT_HOLD if plan.why_not else EXIT_OK


def _told(settings: Settings) -> Told:
    return Told(
        level=settings.job.level,
        grace_s=settings.stop.grace_s,
        kill_wait_s=settings.stop.kill_wait_s,
        gate_wait_s=settings.relaunch.gate_wait_s,
    )


def _verified_at(events: tuple[Event, ...]) -> dict[Known, float]:
    """When each was read back last, and found to be what it says."""
    found = {}
    for event in events:
        if event.kind in ("checkpoint_verified", "branched"):
            data = event.data
            known = Known(step=int(data["step"]), digest=str(data["digest"]), run_id=data.get("run_id"))
            found[known] = event.wall_s
    return found


def _once_gated(folders: JobFolders, view: StatusView) -> StatusView:
    """The supervisor's view, once its first answers are there. Raises NoSupervisorError, ControlError."""
    deadline_s = time.monotonic() + _GATES_WAIT_S
    while not view.gates and time.monotonic() < deadline_s:
        time.sleep(_LOOK_EVERY_S)
        view = living_view(folders)
    return view


def _forgets(view: StatusView, wish: Wish) -> bool:
    """Whether the relaunch forgets what was learned of the job's need of host memory, see core/memoryneed.py."""
    return view.hold_reason is not None or wish.afresh


def _as_it_will_be(settings: Settings, folders: JobFolders, wish: Wish, view: StatusView) -> StatusView:
    """The supervisor's view, its gate of host memory as it stands once what was learned is forgotten."""
    closed = any(gate.name == "memory" and not gate.open for gate in view.gates)
    if not (closed and view.memory_need_why and _forgets(view, wish)):
        return view
    seen = {gate.name: gate for gate in _gates_seen(settings, folders, forgets=True)}
    gates = tuple(seen.get(gate.name, gate) if gate.name == "memory" else gate for gate in view.gates)
    return dataclasses.replace(view, gates=gates)


def _gates_seen(settings: Settings, folders: JobFolders, *, forgets: bool) -> tuple[GateView, ...]:
    """The gates with the very eyes that a supervisor would have."""
    from watchdog.clock import SystemClock
    from watchdog.hostwatch import HostWatch

    history = fold(read_events(folders.ledger)[0])
    host = HostWatch(settings, folders, SystemClock(), os.environ, used=history.gpus)
    if not forgets:
        host.remember(history.host_memory)
    deadline_s = time.monotonic() + _GATES_WAIT_S
    try:
        while True:
            gates = host.gates(lock_intact=True)
            # A device is looked at several times before it can be told to be in order.
            unsure = not gates or any(gate.name == "devices" and not gate.open for gate in gates)
            if not unsure or time.monotonic() >= deadline_s:
                break
            time.sleep(_LOOK_EVERY_S)
    finally:
        host.close()
    return tuple(GateView(name=g.name, open=g.open, words=g.words, hopeless=g.hopeless) for g in gates)
