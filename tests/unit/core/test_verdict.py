"""The verdict: each rule by the case it is for, two looks where one proves nothing, and never healthy unless known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.checks.host import AT_S, UUID, gpu, host, progress
from tests.unit.checks.standstill import standstill
from tests.unit.core.verdicts import TWICE
from tests.unit.core.world import FAKED, OPEN, acknowledgement, make_beat, make_policy, make_run, member, said
from watchdog.contract import PHASES
from watchdog.core.causes import Cause
from watchdog.core.decide import decide
from watchdog.core.facts import Absent, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.phase import Phase
from watchdog.core.seen import EndSeen, Left, Seen, Shim
from watchdog.core.state import Ended, State, Stop
from watchdog.core.verdict import RULES, Kind, Verdict, judge

NOW_S = AT_S
POLICY = make_policy()
RUN = {"run_id": "7-abc", "number": 7, "launched_s": NOW_S - 900, "grace_from_s": NOW_S - 900, "beat_seen": True}


def state_of(phase: Phase = Phase.RUNNING, *, stop: Stop | None = None, run: dict[str, Any] | None = None) -> State:
    living = make_run(**RUN | {"first_step": 11} | (run or {}) | {"stop": stop})
    return State(phase=phase, since_s=NOW_S - 900, run=living)


def no_run(phase: Phase, cause: Cause | None = None, **changes: Any) -> State:
    ended = None
    if cause is not None:
        ended = Ended(number=7, run_id="7-abc", cause=cause, words="exit 1: it broke", baseline_step=10)
    return State(phase=phase, since_s=NOW_S, ended=ended, **changes)


def looks(age_s: float = 0.4, **changes: Any) -> Seen:
    """A turn of a run that beats."""
    given: dict[str, Any] = dict(
        now_s=NOW_S, shim=Shim.ALIVE, leader_alive=True, beat=make_beat(NOW_S - age_s, run_id="7-abc"),
        judged_s=NOW_S - 0.1, members=(member(500), member(501)), gates=OPEN,
    )  # fmt: skip
    return Seen(**(given | changes))


def without_beats(**changes: Any) -> Seen:
    return looks(**{"beat": Absent("no beat yet")} | changes)


def found(check: str, severity: Severity = Severity.WARNING, **changes: Any) -> Finding:
    given: dict[str, Any] = dict(subject="RTX 3060", reason="100 % utilization at 60 W of 170 W", device=UUID)
    return Finding(check=check, severity=severity, **(given | changes))


def ghost(**changes: Any) -> Finding:
    return found("ghost-context", Severity.CRITICAL, **{"remedy": Remedy.RELAUNCH} | changes)


def stop(cause: Cause, **changes: Any) -> Stop:
    given: dict[str, Any] = dict(reason="no beat for 61 s", since_s=NOW_S, kill_from_s=NOW_S + 9, give_up_s=NOW_S + 29)
    return Stop(cause=cause, **(given | changes))


def verdict_of(state: State, seen: Seen, **given: Any) -> Verdict:
    """After two looks, a second apart, at the same."""
    policy = given.pop("policy", POLICY)
    earlier = dataclasses.replace(seen, now_s=seen.now_s - 1.0, judged_s=seen.judged_s - 1.0)
    first = judge(state, earlier, policy, **given)
    return judge(state, seen, policy, **given | {"before": first})


EXITED = EndSeen(cause=Cause.EXITED, words="exit 1")
CLEAN = EndSeen(cause=Cause.FINISHED, words="exit 0")
LEVEL_0 = {"level": 0, "beat_seen": False, "first_step": None}
LATE_ONCE = {"stale_looks": 1, "stale_look_s": NOW_S}
LATE_TWICE = {"stale_looks": 1, "stale_look_s": NOW_S - 2}
STILL = progress(step_changed_s=NOW_S - 40.0)
PRINTING = progress(source="log (any)", points=(), step_changed_s=None, heard_s=None, printed_s=NOW_S - 3)
LOGGED = progress(source="log (huggingface)")
NOTHING = host(progress=Absent("none"), beat=Absent("none"), devices=Absent("no driver"))

CASES: list[tuple[str, Kind, State, Seen, dict[str, Any]]] = [
    ("target reached", Kind.FINISHED, no_run(Phase.FINISHED), Seen(now_s=NOW_S), {}),
    (
        "ghost of a run that is over", Kind.GHOST, no_run(Phase.GATING),
        Seen(now_s=NOW_S, judged_s=NOW_S, findings=(ghost(remedy=Remedy.WSL_SHUTDOWN),)), {"launches": 1},
    ),
    ("ended by its numbers", Kind.DIVERGED, no_run(Phase.WEIGHING, Cause.NUMERIC), Seen(now_s=NOW_S), {}),
    ("end not weighed", Kind.BLIND, no_run(Phase.WEIGHING, Cause.FINISHED), Seen(now_s=NOW_S), {}),
    ("first start", Kind.STARTING, no_run(Phase.GATING), Seen(now_s=NOW_S), {}),
    ("no run", Kind.DEAD, no_run(Phase.WEIGHING, Cause.OOM_KILL), Seen(now_s=NOW_S), {"launches": 1}),
    ("no run", Kind.DEAD, no_run(Phase.GATING), Seen(now_s=NOW_S), {"launches": 1}),
    ("no run", Kind.DEAD, no_run(Phase.HOLD, hold="why"), Seen(now_s=NOW_S), {}),
    ("end not heard", Kind.BLIND, state_of(), looks(shim=Shim.ENDED, leader_alive=False, end_awaited=True), {}),
    ("shim killed", Kind.DEAD, state_of(), looks(shim=Shim.LOST), {}),
    ("busy with nothing", Kind.GHOST, state_of(), looks(findings=(FAKED, ghost())), {}),
    ("ended as stalled", Kind.STALLED, state_of(Phase.STOPPING, stop=stop(Cause.STALLED)), looks(61.0), {}),
    ("being ended", Kind.DEAD, state_of(Phase.STOPPING, stop=stop(Cause.WRONG_RESTORE)), looks(), {}),
    ("being ended", Kind.DEAD, state_of(Phase.STOPPING, stop=stop(Cause.STOPPED, killing=True)), looks(), {}),
    ("just launched", Kind.STARTING, state_of(), Seen(now_s=NOW_S), {}),
    ("leader ended", Kind.DEAD, state_of(), without_beats(leader_alive=False, end=EXITED), {}),
    ("leader is gone", Kind.BLIND, state_of(), without_beats(leader_alive=False, end=CLEAN), {}),
    ("beats are late", Kind.STALLED, state_of(run=LATE_TWICE), looks(61.0, traced=(501,)), {}),
    ("late while it ends", Kind.STALLED, state_of(Phase.STOPPING, stop=stop(Cause.DRAINED)), looks(65.0), {}),
    ("steps stand still", Kind.STALLED, state_of(), looks(findings=(FAKED,)), {}),
    ("steps stand still", Kind.STALLED, state_of(), looks(findings=(standstill("cpu works"),)), {}),
    ("no step for long", Kind.SLOW, state_of(), looks(findings=(standstill("device works"),)), {}),
    ("stuck in the kernel", Kind.STALLED, state_of(), looks(findings=(found("run-stuck", Severity.CRITICAL),)), {}),
    (
        "stopped by a signal", Kind.STALLED, state_of(),
        looks(beat=Known(dataclasses.replace(make_beat(NOW_S - 1, run_id="7-abc").value, stopped=True), NOW_S)), {},
    ),
    ("who beat is gone", Kind.DEAD, state_of(), looks(beat=make_beat(NOW_S - 1, run_id="7-abc", alive=False)), {}),
    (
        "busy, and no step", Kind.GHOST, state_of(), looks(findings=(found("utilization-power"),)),
        {"facts": host(progress=STILL)},
    ),
    ("loss is no number", Kind.DIVERGED, state_of(), looks(findings=(found("loss-nan", Severity.CRITICAL),)), {}),
    ("loss explodes", Kind.DIVERGED, state_of(), looks(findings=(found("loss-exploding"),)), {}),
    ("loss is frozen", Kind.DIVERGED, state_of(), looks(findings=(found("loss-frozen"),)), {}),
    ("beat cannot be read", Kind.BLIND, state_of(), looks(beat=Unknown("it is torn")), {}),
    ("beat is gone", Kind.BLIND, state_of(), without_beats(), {}),
    ("late at one look", Kind.BLIND, state_of(run=LATE_ONCE), looks(61.0), {}),
    ("restore not proven", Kind.BLIND, state_of(run={"acknowledged": False}),
     looks(acknowledgement=Unknown("it is torn")), {}),
    ("steps are slow", Kind.SLOW, state_of(), looks(findings=(found("throughput"),)), {}),
    ("device pages", Kind.SLOW, state_of(), looks(findings=(found("sysmem-paging"),)), {}),
    ("no step for long", Kind.SLOW, state_of(), looks(findings=(found("steps-frozen"),)), {}),
    (
        "before its first step", Kind.STARTING, state_of(run={"first_step": None}),
        looks(beat=make_beat(NOW_S - 5, run_id="7-abc", phase="load", step=None)), {},
    ),
    (
        "before its first step", Kind.STARTING, state_of(run=LEVEL_0 | {"launched_s": NOW_S - 9, "grace_from_s": 0.0}),
        without_beats(), {"facts": NOTHING},
    ),
    ("beats in time", Kind.HEALTHY, state_of(), looks(), {}),
    ("beats in time", Kind.HEALTHY, state_of(Phase.STOPPING, stop=stop(Cause.DRAINED)), looks(), {}),
    (
        "what is left works", Kind.HEALTHY, state_of(run=LEVEL_0),
        without_beats(leader_alive=False, end=CLEAN, left=Left(works=True, words="its output grew 3 s ago")), {},
    ),
    ("steps in its output", Kind.HEALTHY, state_of(run=LEVEL_0), without_beats(), {"facts": host(progress=LOGGED)}),
    ("output grows", Kind.HEALTHY, state_of(run=LEVEL_0), without_beats(), {"facts": host(progress=PRINTING)}),
    ("device works", Kind.HEALTHY, state_of(run=LEVEL_0), without_beats(), {"facts": host(progress=Absent("none"))}),
    ("nothing to go by", Kind.BLIND, state_of(run=LEVEL_0), without_beats(), {"facts": NOTHING}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "kind", "state", "seen", "given"), CASES, ids=[case[0] for case in CASES])
def test_the_rule_that_fires(rule: str, kind: Kind, state: State, seen: Seen, given: dict[str, Any]) -> None:
    verdict = verdict_of(state, seen, **given)
    assert (verdict.rule, verdict.kind) == (rule, kind), verdict
    assert verdict.evidence
    assert set(verdict.evidence) <= {need for each in RULES for need in each.needs}
    assert verdict.run in (7, None)


def test_every_rule_has_a_case_and_every_kind_a_rule() -> None:
    assert {rule.name for rule in RULES} == {case[0] for case in CASES}
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.kind for rule in RULES} == set(Kind)


@pytest.mark.parametrize(
    ("state", "seen", "given"),
    [case[2:] for case in CASES if case[0] in TWICE],
    ids=[case[0] for case in CASES if case[0] in TWICE],
)
def test_one_odd_look_makes_no_verdict(state: State, seen: Seen, given: dict[str, Any]) -> None:
    """However many turns see the same judgement; and what is gone at the next look begins anew."""
    well = judge(state, looks() if state.run else Seen(now_s=NOW_S), POLICY, **given)
    odd = judge(state, seen, POLICY, **given | {"before": well})
    assert odd.rule not in TWICE
    again = judge(state, dataclasses.replace(seen, now_s=NOW_S + 0.1), POLICY, **given | {"before": odd})
    assert again.rule not in TWICE
    fine = looks() if state.run else Seen(now_s=NOW_S)
    assert judge(state, fine, POLICY, **given | {"before": again}).pending == ()


@pytest.mark.parametrize("check", ["ghost-context", "steps-frozen", "throughput", "loss-nan", "run-stuck"])
@pytest.mark.parametrize("when", ["before its launch", "before a gap"])
def test_what_was_found_before_is_no_word_about_this_run(check: str, when: str) -> None:
    run = {"launched_s": NOW_S - 0.05} if when == "before its launch" else {"grace_from_s": NOW_S - 0.05}
    finding = found(check, Severity.CRITICAL, remedy=Remedy.RELAUNCH)
    assert verdict_of(state_of(run=run), looks(findings=(finding,))).kind is Kind.HEALTHY


def test_a_ghost_that_was_seen_beside_a_run_is_none_of_a_run_that_is_over() -> None:
    seen = Seen(now_s=NOW_S, judged_s=NOW_S, findings=(ghost(),))
    assert verdict_of(no_run(Phase.GATING), seen, launches=1).kind is Kind.DEAD


def test_a_run_that_was_asked_to_end_is_late_at_one_look_first() -> None:
    state = state_of(Phase.STOPPING, stop=stop(Cause.DRAINED))
    assert judge(state, looks(61.0), POLICY).rule == "late at one look"


def test_a_ghost_beside_a_run_that_takes_steps_elsewhere_is_not_its_own() -> None:
    seen = looks(findings=(found("utilization-power"),))
    assert verdict_of(state_of(), seen, facts=host()).kind is Kind.HEALTHY, "its newest step is a second old"
    other = gpu(uuid="GPU-other", index=1)
    facts = host(progress=STILL, devices=(gpu(processes=()), other))
    assert verdict_of(state_of(), seen, facts=facts).kind is Kind.HEALTHY, "no device of this run"


def test_since_when_it_stands_and_of_which_run() -> None:
    first = judge(state_of(), looks(), POLICY)
    later = judge(state_of(), looks(now_s=NOW_S + 5, beat=make_beat(NOW_S + 5, run_id="7-abc")), POLICY, before=first)
    assert (later.kind, later.since_s) == (Kind.HEALTHY, NOW_S)
    next_run = judge(state_of(run={"number": 8}), looks(), POLICY, before=dataclasses.replace(first, since_s=1.0))
    assert (next_run.kind, next_run.since_s, next_run.run) == (Kind.HEALTHY, NOW_S, 8)


@pytest.mark.parametrize("cause", [Cause.NUMERIC, Cause.CODE_ERROR, Cause.STALLED, Cause.DRAINED])
def test_what_ended_stays_what_it_was_until_the_next_run_starts(cause: Cause) -> None:
    ended = judge(no_run(Phase.WEIGHING, cause), Seen(now_s=NOW_S), POLICY, launches=1)
    assert ended.kind is (Kind.DIVERGED if cause is Cause.NUMERIC else Kind.DEAD)
    verdict = ended
    for phase in (Phase.BACKOFF, Phase.GATING, Phase.HOLD, Phase.LEFT):
        verdict = judge(no_run(phase, hold="mend it"), Seen(now_s=NOW_S + 1), POLICY, launches=1, before=verdict)
        assert (verdict.kind, verdict.reason, verdict.since_s) == (ended.kind, ended.reason, NOW_S)
    begun = judge(state_of(run={"number": 8}), Seen(now_s=NOW_S + 2), POLICY, launches=2, before=verdict)
    assert (begun.kind, begun.run) == (Kind.STARTING, 8)


def test_a_finished_job_stays_finished_when_its_supervisor_leaves() -> None:
    done = judge(no_run(Phase.FINISHED), Seen(now_s=NOW_S), POLICY, launches=1)
    assert judge(no_run(Phase.LEFT), Seen(now_s=NOW_S), POLICY, launches=1, before=done).kind is Kind.FINISHED
    assert judge(no_run(Phase.LEFT), Seen(now_s=NOW_S), POLICY, launches=1).kind is Kind.DEAD


# --- jobs that say little -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("age_s", [1.0, 61.0])
def test_old_output_is_no_sign_of_life(age_s: float) -> None:
    facts = host(progress=printed_ago(age_s), devices=Absent("no driver"))
    verdict = verdict_of(state_of(run=LEVEL_0), without_beats(), facts=facts)
    assert verdict.kind is (Kind.HEALTHY if age_s < 60 else Kind.BLIND), "60 s are the deadline of a step here"


def printed_ago(age_s: float) -> Any:
    return progress(source="log (any)", points=(), step_changed_s=None, heard_s=None, printed_s=NOW_S - age_s)


@pytest.mark.parametrize("busy", [0, 50, Unknown("NVML hangs"), Absent("not told")])
def test_a_device_that_does_nothing_or_cannot_be_seen_is_no_sign_of_life(busy: Any) -> None:
    facts = host(progress=Absent("none"), devices=(gpu(utilization_percent=busy),))
    verdict = verdict_of(state_of(run=LEVEL_0), without_beats(), facts=facts)
    assert verdict.kind is (Kind.HEALTHY if busy == 50 else Kind.BLIND)


@pytest.mark.parametrize("facts", [host(devices=Unknown("the driver hangs")), host(processes=Unknown("hidden"))])
def test_an_unreadable_driver_or_table_is_never_healthy_where_the_verdict_would_rest_on_it(facts: Facts) -> None:
    facts = _without_progress(facts)
    assert verdict_of(state_of(run=LEVEL_0), without_beats(), facts=facts).kind is Kind.BLIND
    assert verdict_of(state_of(), looks(), facts=facts).kind is Kind.HEALTHY, "its beats say so"


def _without_progress(facts: Facts) -> Facts:
    from msgspec.structs import replace

    return replace(facts, progress=Absent("none"))


def test_who_only_said_that_it_is_ready_is_known_by_what_it_prints() -> None:
    ready = Known(dataclasses.replace(make_beat(NOW_S - 500, run_id="7-abc").value, promised=False), NOW_S)
    state = state_of(run={"level": 1, "beat_seen": False})
    assert verdict_of(state, looks(beat=ready), facts=host(progress=PRINTING)).rule == "output grows"
    assert verdict_of(state, looks(beat=ready), facts=NOTHING).kind is Kind.BLIND


@pytest.mark.parametrize("printed", [PRINTING, LOGGED])
def test_a_run_that_owes_beats_has_begun_with_its_first(printed: Any) -> None:
    state = state_of(run={"level": 1, "beat_seen": False, "first_step": None, "launched_s": NOW_S - 9})
    state = dataclasses.replace(state, run=dataclasses.replace(state.run, grace_from_s=NOW_S - 9))  # type: ignore[type-var]
    assert verdict_of(state, without_beats(), facts=host(progress=printed)).kind is Kind.STARTING


@pytest.mark.parametrize("facts", [host(progress=PRINTING), host(progress=LOGGED), host(), NOTHING])
@pytest.mark.parametrize("left", [None, Left(works=None, words="not known"), Left(works=False, words="no output")])
def test_what_a_launcher_left_is_no_health_by_what_its_leader_printed(left: Left | None, facts: Facts) -> None:
    seen = without_beats(leader_alive=False, end=CLEAN, left=left)
    verdict = verdict_of(state_of(run=LEVEL_0), seen, facts=facts)
    assert (verdict.kind, verdict.rule) == (Kind.BLIND, "leader is gone")
    assert "its leader has ended with 0; 2 processes are left: 500 python, 501 python" in verdict.reason


def test_what_is_left_of_a_young_launcher_is_not_starting() -> None:
    young = state_of(run=LEVEL_0 | {"launched_s": NOW_S - 9, "grace_from_s": 0.0})
    seen = without_beats(leader_alive=False, end=CLEAN, left=Left(works=True, words="9.0 s of CPU in 60 s"))
    assert verdict_of(young, seen, facts=NOTHING).rule == "what is left works"


@pytest.mark.parametrize("end", [None, CLEAN, EXITED])
@pytest.mark.parametrize("left", [None, Left(works=True, words="its output grew 3 s ago")])
def test_a_stopped_shim_is_named_with_the_command(end: EndSeen | None, left: Left | None) -> None:
    seen = without_beats(leader_alive=False, end=end, left=left, shim_stopped=member(77, state="T"))
    verdict = verdict_of(state_of(run=LEVEL_0), seen, facts=host(progress=PRINTING))
    assert verdict.kind in (Kind.BLIND, Kind.DEAD)
    assert "its shim, pid 77, is stopped (state T): kill -CONT 77" in verdict.reason


# --- whatever comes -------------------------------------------------------------------------------------------------
CHECKS = sorted({need for rule in RULES for need in rule.needs if "-" in need or need == "throughput"})
FINDINGS = st.builds(
    found, st.sampled_from(CHECKS), st.sampled_from(Severity), remedy=st.sampled_from([Remedy.RELAUNCH, Remedy.LOOK])
)
BEATS = st.one_of(
    st.just(Absent("no beat yet")),
    st.just(Unknown("it is torn")),
    st.builds(
        lambda age_s, alive, stopped, promised, phase, step: Known(
            dataclasses.replace(
                make_beat(NOW_S - age_s, run_id="7-abc", alive=alive, phase=phase, step=step).value,
                stopped=stopped, promised=promised,
            ), NOW_S,
        ),
        st.sampled_from([0.1, 59.0, 61.0, 500.0]), st.booleans(), st.booleans(), st.booleans(),
        st.sampled_from(PHASES), st.sampled_from([None, 0, 5]),
    ),
)  # fmt: skip
TURNS = st.builds(
    looks, shim=st.sampled_from(Shim), leader_alive=st.booleans(), beat=BEATS, findings=st.tuples(FINDINGS, FINDINGS),
    judged_s=st.sampled_from([NOW_S - 2000.0, NOW_S]), end=st.sampled_from([None, EXITED, CLEAN]),
    end_awaited=st.booleans(), traced=st.sampled_from([(), (501,)]), gap=st.booleans(),
    members=st.sampled_from([(), (member(501),)]),
    acknowledgement=st.sampled_from([Absent("none"), Unknown("torn"), said(acknowledgement(10, run_id="7-abc"))]),
)  # fmt: skip
RUNS = st.fixed_dictionaries(
    {"level": st.sampled_from([0, 1, 2]), "beat_seen": st.booleans(), "acknowledged": st.booleans(),
     "stale_looks": st.sampled_from([0, 1]), "stale_look_s": st.sampled_from([0.0, NOW_S - 0.2]),
     "faking_look_s": st.sampled_from([None, NOW_S - 3.0]), "first_step": st.sampled_from([None, 5])},
)  # fmt: skip
HOSTS = st.sampled_from([None, host(), NOTHING, host(progress=PRINTING), host(progress=STILL)])


@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(TURNS, min_size=1, max_size=6), run=RUNS, facts=HOSTS)
def test_no_turn_makes_plan_and_verdict_disagree(turns: list[Seen], run: dict[str, Any], facts: Facts | None) -> None:
    """A stop for a stall is called a stall; what is blind is stopped for nothing; healthy is known to be so."""
    state, verdict = state_of(run=run), None
    for number, turn in enumerate(turns):
        seen = dataclasses.replace(turn, now_s=NOW_S + number, judged_s=turn.judged_s + number)
        before = state
        state, _ = decide(state, seen, POLICY)
        last, verdict = verdict, judge(state, seen, POLICY, facts=facts, launches=1, before=verdict)
        assert judge(state, seen, POLICY, facts=facts, launches=1, before=last) == verdict
        living, ending = state.run, None if state.run is None else state.run.stop
        if before.phase is Phase.RUNNING and ending is not None:
            if ending.cause is Cause.STALLED:
                assert verdict.kind in (Kind.STALLED, Kind.GHOST)
            assert verdict.kind is not Kind.BLIND or ending.cause is Cause.FINISHED
            assert verdict.kind is not Kind.HEALTHY
        if verdict.kind is Kind.HEALTHY:
            assert living is not None
            assert ending is None
            assert seen.shim is Shim.ALIVE
            beat = seen.beat.value if isinstance(seen.beat, Known) else None
            assert beat is not None or facts is not None
            if beat is not None and beat.promised:
                assert beat.alive
                assert not beat.stopped
            assert not isinstance(seen.beat, Unknown)
        if verdict.rule in TWICE:
            assert last is not None
            assert verdict.rule in dict(last.pending)
        if state.phase is not Phase.RUNNING:
            break
