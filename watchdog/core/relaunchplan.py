"""What `watchdog relaunch`, or `watchdog stop`, would do: a plan of steps with the reasons against it. Pure.

Made from what status shows and the ledger knows; refuses to promise: a checkpoint is read back and every gate is looked
at again before a launch, and beside a living run nobody knows yet what it gives back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from watchdog.core.choice import Known, Line
from watchdog.core.view import GateView, StatusView

FINISHED = "the job is finished; go back with --from STEP, or begin again: watchdog run --new"
# What a living run itself keeps closed, or may: it is looked at again when it is over.
_HELD_BY_A_RUN = ("memory", "devices")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What is asked for. `step`: to go back to; None: the newest."""

    step: int | None = None
    afresh: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the settings say of a relaunch; seconds."""

    level: int
    grace_s: float
    kill_wait_s: float
    gate_wait_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A checkpoint that lies in the folder. `verified_wall_s`: when it was read back last; None: it never was."""

    step: int
    digest: str
    run_id: str | None
    verified_wall_s: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """`name`: back, lift, budget, wait, stop, proof, choose, gate or launch; of a stop also ask, leave and keep.

    `holds` None: it cannot be told yet.
    """

    name: str
    words: str
    holds: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RelaunchPlan:
    """The steps in their order: what would be done, so none where the relaunch is refused as a whole.

    `why_not`: what is in the way of a launch; empty where nothing is. A launch is among the steps only where nothing
    but a closed gate is in its way.
    """

    steps: tuple[PlanStep, ...]
    why_not: tuple[str, ...]
    checkpoint: Verified | None
    after_it: tuple[Verified, ...] = ()  # what would be tried next, should it be damaged


def in_folder(
    claims: Sequence[Known], verified_wall_s: Mapping[Known, float], line: Line, wish: Wish
) -> tuple[Verified, ...]:
    """Of the manifests in the folder, newest first, those that are chosen from, as they would be read back."""
    if wish.step is not None:
        wanted = [each for each in claims if each.step == wish.step]
    else:
        wanted = [each for each in claims if not line.abandons(each) and not line.is_below(each.step)]
    return tuple(
        Verified(step=each.step, digest=each.digest, run_id=each.run_id, verified_wall_s=verified_wall_s.get(each))
        for each in wanted
    )


def plan_relaunch(
    view: StatusView,
    wish: Wish,
    told: Told,
    *,
    candidates: Sequence[Verified],
    known: Sequence[Known],
    refused: str | None = None,
    next_number: int,
    clock_words: Mapping[float, str],
    devices: Mapping[str, str] | None = None,
) -> RelaunchPlan:
    """`candidates`: see `in_folder`. `clock_words`: a moment of the wall clock in words, for those that are named.

    `refused`: why the step that is wished for cannot be asked for; None: it can be, or none is wished for.
    `devices`: what is to be proven of each, by UUID.
    """
    run = view.run
    alive = run is not None and run.alive is not False
    steps: list[PlanStep] = []
    against: list[str] = []
    refused = refused or _refused_as_a_whole(view, wish, alive=alive)
    if refused is not None:
        return RelaunchPlan(steps=(), why_not=(refused,), checkpoint=None)
    if wish.step is not None:
        words = f"what was saved beyond step {wish.step} is not chosen any more; [retention] lets go all but its newest"
        steps.append(PlanStep(name="back", words=words))
    if view.hold_reason is not None:
        steps.append(PlanStep(name="lift", words=f"the hold is lifted: {view.hold_reason}"))
    if view.hold_reason is not None or wish.afresh:
        steps.append(
            PlanStep(name="budget", words=f"failures in a row: {view.failures}, forgotten; a new budget begins")
        )
        if wish.afresh and view.batch_halvings:
            steps.append(PlanStep(name="budget", words="the micro-batch, made smaller before, is whole again"))
    else:
        steps.append(PlanStep(name="budget", words=f"failures in a row: {view.failures} of {view.failure_limit}, kept"))
    if view.next_launch_s is not None:
        steps.append(PlanStep(name="wait", words=f"the backoff is cut: {view.next_launch_s:.1f} s are left of it"))
    if run is not None and alive:
        steps += _ending(view, told)
        if view.hold_reason is not None:
            against.append(f"run {run.number} is not seen to be gone: {view.hold_reason}")
    else:
        steps.append(PlanStep(name="proof", words="nothing is stopped: no run is alive", holds=True))
    chosen, words, why = _chosen(told, wish, candidates, known, clock_words)
    steps.append(PlanStep(name="choose", words=words, holds=None if why is None else False))
    against += [] if why is None else [why]
    launches = not against
    gates, closed = _gates(view.gates, alive=alive, number=None if run is None else run.number)
    steps += gates
    if not any(gate.name.startswith("device ") for gate in view.gates):  # those of a supervisor that waits say more
        labels = {each.uuid: f"{each.name} ({each.uuid[:12]})" for each in view.devices}
        steps += [
            PlanStep(name="gate", words=f"{labels.get(uuid, uuid[:12])}: {words}")
            for uuid, words in (devices or {}).items()
        ]
    if closed:
        hopeless = any(gate.hopeless and not gate.open for gate in view.gates) and not alive
        waits = f"waited for up to {told.gate_wait_s:g} s, then it is a hold"
        until = "a hold, once a few looks agree" if hopeless else waits
        against.append(f"closed: {'; '.join(closed)} ({until})")
    if not gates:
        against.append("the gates have not been looked at")
    origin = "its beginning" if chosen is None else f"step {chosen.step}; anything else than restoring it is refused"
    if launches:
        steps.append(PlanStep(name="launch", words=f"run {next_number} from {origin}"))
    return RelaunchPlan(steps=tuple(steps), why_not=tuple(against), checkpoint=chosen, after_it=tuple(candidates[1:3]))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StopPlan:
    """The steps in their order; none where there is nothing to stop. `why_not`: why the job would not be stopped."""

    steps: tuple[PlanStep, ...]
    why_not: tuple[str, ...] = ()


def plan_stop(view: StatusView, told: Told, *, now: bool) -> StopPlan:
    """`now`: without saving."""
    run, pid = view.run, view.supervisor_pid
    alive = run is not None and run.alive is not False
    if run is not None and alive and view.hold_reason is not None:
        left = f"supervisor {pid} leaves, and run" if pid is not None else "run"
        return StopPlan(steps=(), why_not=(f"nobody is ended: {view.hold_reason}; {left} {run.number} stays",))
    if pid is None and not alive:
        return StopPlan(steps=())
    steps = []
    if pid is not None:
        steps.append(PlanStep(name="ask", words=f"supervisor {pid} is asked to end what runs, and to leave"))
    elif run is not None:
        words = f"no supervisor runs: this command adopts run {run.number}, ends it, and leaves"
        steps.append(PlanStep(name="ask", words=words))
    if run is not None and alive:
        stop, proof = _ending(view, told)
        if now:
            words = (
                f"run {run.number}: KILL of everything that is proven its own, at once and without saving, for up to "
                f"{told.kill_wait_s:g} s"
            )
            stop = dataclasses.replace(stop, words=words)
        steps += [stop, proof]
    else:
        steps.append(PlanStep(name="proof", words="nobody is ended: no run is alive", holds=True))
    steps.append(PlanStep(name="leave", words="no run follows, until watchdog run"))
    return StopPlan(steps=(*steps, PlanStep(name="keep", words=_kept(view, told, alive=alive, now=now))))


def _kept(view: StatusView, told: Told, *, alive: bool, now: bool) -> str:
    kept = "ledger, logs and the failures that were counted"
    if told.level < 2:
        return f"{kept}; no checkpoints are demanded of this job: the next run begins as its command does"
    newest = (
        "no checkpoint is verified yet" if view.checkpoint_step is None else f"step {view.checkpoint_step}, verified"
    )
    saves = ", and what the run saves at its end" if alive and not now else ""
    lost = "; what was trained since is lost" if alive and now else ""
    return f"{newest}{saves}{lost}; {kept}"


def _refused_as_a_whole(view: StatusView, wish: Wish, *, alive: bool) -> str | None:
    """What whoever is asked would say no to (listening.py, relaunching.py); None where it would be taken up."""
    if view.state == "finished" and wish.step is None:
        return FINISHED
    if view.supervisor_pid is not None and view.hold_reason is not None and alive:
        return f"the run does not end, so nothing is launched: {view.hold_reason}"
    if view.supervisor_pid is not None and view.leaving:
        return "the job is being stopped, as was asked before: nothing is launched; when it has left: watchdog run"
    return None


def _ending(view: StatusView, told: Told) -> list[PlanStep]:
    run = view.run
    assert run is not None
    asked = run.beat_pid or run.leader_pid
    who = "its leader" if asked is None else f"{asked} ({'it beats' if run.beat_pid else 'its leader'})"
    doubt = " (whether it is alive cannot be told from here)" if run.alive is None else ""
    words = (
        f"run {run.number}{doubt}: TERM to {who}, {told.grace_s:g} s and more to save and end, then KILL of everything "
        f"that is proven its own, for up to {told.kill_wait_s:g} s"
    )
    shim = "its shim ends" if run.shim_pid is None else f"shim {run.shim_pid} ends"
    return [
        PlanStep(name="stop", words=words),
        PlanStep(name="proof", words=f"{shim}: nothing of run {run.number} lives"),
    ]


def _chosen(
    told: Told, wish: Wish, candidates: Sequence[Verified], known: Sequence[Known], clock_words: Mapping[float, str]
) -> tuple[Verified | None, str, str | None]:
    """(the checkpoint, words of it, why nothing may be launched)."""
    if told.level < 2:
        if wish.step is not None:
            why = f"--from {wish.step}: the job is of level {told.level}, which has no checkpoints that are verified"
            return None, why, why
        return None, "nothing: no checkpoints are demanded of this job", None
    if not candidates and not known and wish.step is None:
        return None, "nothing: a first start", None
    proven = [each for each in candidates if each.verified_wall_s is not None]
    if not proven and wish.step is not None:
        why = f"--from {wish.step}: what lies in the folder as step {wish.step} is not what was verified"
        return None, why, why
    if not proven:
        why = "none of the checkpoints that are there was ever verified: watchdog run reads them back"
        if not candidates:
            why = "this job had checkpoints, and none that may be chosen is in its folder"
        return None, why, why
    first = candidates[0]
    words = _named(first, clock_words)
    older = ", ".join(str(each.step) for each in candidates[1:3])
    if wish.step is not None:
        words += "; if it fails, nothing is stopped and nobody goes back"
    elif older:
        words += f"; would be moved aside if it fails, then {older}"
    else:
        words += "; would be moved aside if it fails, and then the job is held: no other is there"
    return first, words, None


def _named(checkpoint: Verified, clock_words: Mapping[float, str]) -> str:
    when = "not verified yet"
    if checkpoint.verified_wall_s is not None:
        when = f"verified {clock_words[checkpoint.verified_wall_s]}"
    return f"step {checkpoint.step} {checkpoint.digest[:12]}… ({when}; it is read back again)"


def _gates(gates: Sequence[GateView], *, alive: bool, number: int | None) -> tuple[list[PlanStep], list[str]]:
    steps, closed = [], []
    for gate in gates:
        if gate.name == "lock" and gate.open and alive:
            continue  # that no run is alive is the proof's to say
        beside = alive and not gate.open and gate.name in _HELD_BY_A_RUN
        if beside:
            words = f"{gate.words}; beside run {number}, and looked at again when that is over"
            steps.append(PlanStep(name="gate", words=words, holds=None))
            continue
        steps.append(PlanStep(name="gate", words=gate.words, holds=gate.open))
        if not gate.open:
            closed.append(gate.words)
    return steps, closed
