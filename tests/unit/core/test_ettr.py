"""Where the time of a job went: every second belongs to one part, whatever the ledger looks like."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.ledgers import HandLedger
from watchdog.core.causes import Cause
from watchdog.core.ettr import LOST, Account, Ettr, Part, ettr, ettr_fields, ettr_of_ledger
from watchdog.core.history import Event
from watchdog.core.incidents import incidents


def account_of(ledger: HandLedger) -> Account:
    account = Account()
    for event in ledger.events:
        account.add(event)
    return account


def lost(account: Account, now_s: float | None = None) -> dict[str, float]:
    parts = account.lost_by(account.now_s if now_s is None else now_s)
    return {part.value: round(seconds, 3) for part, seconds in parts.items() if seconds > 0}


def killed_once() -> HandLedger:
    """Launched at 0, first step at 10, killed at 100 at step 214, resumed from 200, caught up at 117."""
    ledger = HandLedger()
    ledger.at(0).launch(1).at(11).steps(1, 1, 10.0)
    ledger.at(60).write("step_time", run_id="1-a", step_s=0.4, saving_s=2.5)
    ledger.at(95).verified(1, 200)
    ledger.at(100.5).ended(1, step=214, died=100.0)
    ledger.at(101).weighed(1, repeated=14, wait=3.0)
    ledger.at(105).launch(2, 200)
    ledger.at(112).steps(2, 201, 111.0, "run_recovered")
    ledger.at(118).write("run_caught_up", run_id="2-a", step=215, made_s=ledger.monotonic(117.0))
    return ledger


def test_nothing_is_known_before_the_first_launch() -> None:
    assert ettr(Account(), now_s=0.0, newest_step=None) is None
    assert ettr_fields(None) == {}


def test_a_death_and_its_recovery_second_by_second() -> None:
    account = account_of(killed_once())
    assert lost(account) == {
        "start": 10.0,
        "detection": 0.5,
        "proof": 1.5,  # the end is recorded at 100.5 and weighed at 101; backoff is over at 104, the gates at 105
        "wait": 3.0,
        "load": 6.0,
        "replay": 6.0,
    }
    account.add(HandLedger().at(200).verified(2, 460).events[0])
    found = ettr(account, now_s=200.0, newest_step=460)
    assert found is not None
    assert (found.ratio, found.committed_steps, found.step_s) == (pytest.approx(460 * 0.4 / 200), 460, 0.4)
    assert (found.wall_s, found.down_s, found.saving_s) == (200.0, pytest.approx(11.0), 2.5)
    assert set(found.lost_s) == {part.value for part in LOST}
    assert sum(found.lost_s.values()) <= found.wall_s


def test_what_goes_on_now_is_counted_as_it_grows() -> None:
    ledger = HandLedger()
    ledger.at(0).launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, step=5, died=20.0)
    account = account_of(ledger)
    assert lost(account, 50.0) == {"start": 10.0, "proof": 30.0}
    found = ettr(account, now_s=50.0, newest_step=None)
    assert found is not None
    assert (found.ratio, found.incident, found.down_s) == (None, 1, 30.0)
    assert "checkpoint" in found.why


@pytest.mark.parametrize(
    ("step", "step_s", "why"), [(0, 1.0, "checkpoint"), (None, 1.0, "checkpoint"), (9, None, "how")]
)
def test_without_a_commit_or_a_step_time_there_is_no_ratio(step: int | None, step_s: float | None, why: str) -> None:
    account = account_of(HandLedger().at(0).launch(1).at(9).write("nothing"))
    found = ettr(account, now_s=20.0, newest_step=step, step_s=step_s)
    assert found is not None
    assert found.ratio is None
    assert why in found.why


def test_steps_that_were_there_before_the_first_launch_are_nobodys_merit() -> None:
    found = ettr(account_of(HandLedger().launch(1, 1000)), now_s=100.0, newest_step=1050, step_s=1.0)
    assert found is not None
    assert (found.committed_steps, found.ratio) == (50, 0.5)


def test_the_ratio_never_claims_more_than_the_wall() -> None:
    found = ettr(account_of(HandLedger().launch(1)), now_s=10.0, newest_step=100, step_s=1.0)
    assert found is not None
    assert found.ratio == 1.0


def test_a_stall_is_counted_from_the_last_beat() -> None:
    ledger = HandLedger()
    ledger.at(0).launch(1).at(10).steps(1, 1, 10.0)
    ledger.at(160).stopping(1, beat=100.0).at(205).write("run_killed")
    ledger.at(206).ended(1, "stalled", step=50, died=205.0)
    assert lost(account_of(ledger)) == {"start": 10.0, "detection": 60.0, "stop": 45.0, "proof": 1.0}


def test_a_stall_without_any_beat_is_counted_from_the_launch_and_an_older_ledger_does_not_tell() -> None:
    ledger = HandLedger()
    ledger.at(0).launch(1).at(30).stopping(1)
    assert lost(account_of(ledger)) == {"detection": 30.0}
    older = HandLedger()
    older.at(0).launch(1).at(10).steps(1, 1, 10.0)
    older.at(30).write("run_stopping", run_id="1-a", cause="stalled", reason="r", hold_after=False)
    account = account_of(older)
    assert lost(account) == {"start": 10.0}
    assert account.span is not None
    assert account.span.unknown


def test_what_a_person_asked_for_costs_time_and_is_no_incident() -> None:
    ledger = HandLedger()
    ledger.at(0).launch(1).at(10).steps(1, 1, 10.0).at(100).stopping(1, "drained", beat=99.0)
    ledger.at(105).ended(1, "drained", step=90, died=104.0).weighed(1, "drained")
    ledger.write("supervisor_leaving").at(400).write("supervisor_started").launch(2, 90)
    account = account_of(ledger.at(410).steps(2, 91, 408.0))
    assert account.incidents == 0
    assert lost(account) == {"start": 10.0, "stop": 4.0, "proof": 1.0, "away": 295.0, "load": 8.0}


def test_a_hold_lasts_until_a_person_lifts_it_whoever_leaves_meanwhile() -> None:
    ledger = HandLedger()
    ledger.at(0).launch(1).at(10).ended(1, died=10.0).write("hold", reason="why").weighed(1)
    ledger.write("supervisor_leaving").at(500).write("lifted").at(501).write("supervisor_started").at(502).launch(2)
    account = account_of(ledger.at(504).steps(2, 1, 504.0))
    assert lost(account) == {"start": 10.0, "hold": 490.0, "away": 1.0, "proof": 1.0, "load": 2.0}


def test_a_supervisor_that_died_in_the_middle_was_away_since_its_last_record() -> None:
    ledger = HandLedger()
    ledger.at(0).launch(1).at(10).ended(1, died=10.0).at(11).weighed(1)
    account = account_of(ledger.at(100).write("supervisor_started").at(101).launch(2))
    assert lost(account) == {"start": 10.0, "proof": 2.0, "away": 89.0}


def test_while_the_run_lives_a_supervisor_that_died_costs_nothing() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0)
    assert lost(account_of(ledger.at(500).write("supervisor_started"))) == {"start": 10.0}


def test_room_that_is_made_is_its_own_part() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).ended(1, died=10.0).weighed(1)
    ledger.at(12).write("reclaiming").at(19).write("reclaimed").at(20).launch(2)
    assert lost(account_of(ledger)) == {"start": 10.0, "proof": 3.0, "reclaim": 7.0}


def test_the_time_of_a_finished_job_is_not_counted_and_a_new_beginning_counts_anew() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0)
    ledger.at(50).ended(1, "finished", step=40, died=50.0).write("finished").weighed(1, "finished")
    account = account_of(ledger)
    assert (account.incidents, account.wall_s(1000.0)) == (0, 50.0)
    account = account_of(ledger.at(1000).write("archived"))
    assert (account.wall_s(1001.0), lost(account)) == (None, {})


def test_time_is_measured_past_a_clock_that_was_set_and_across_a_boot() -> None:
    ledger = HandLedger().at(0).launch(1)
    late = ledger.at(10).write("nothing").events[-1]
    jumped = Event(seq=3, wall_s=late.wall_s - 5000, kind="x", sentence="", monotonic_s=515.0, boot_id="boot")
    rebooted = Event(seq=4, wall_s=jumped.wall_s + 60, kind="x", sentence="", monotonic_s=3.0, boot_id="other")
    account = account_of(ledger)
    account.add(jumped)
    assert account.now_s == 15.0
    account.add(rebooted)
    assert account.now_s == 75.0
    assert account.later_s(rebooted.wall_s, 2.0, "other") == 75.0


def test_without_a_supervisor_only_what_waits_for_somebody_grows() -> None:
    held = HandLedger().at(0).launch(1).at(10).ended(1, died=10.0).write("hold", reason="r").weighed(1)
    found = ettr_of_ledger(held.events, None, held.wall(100))
    assert found is not None
    assert found.lost_s["hold"] == 90.0
    alive = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0)
    found = ettr_of_ledger(alive.events, None, alive.wall(100))
    assert isinstance(found, Ettr)
    assert found.wall_s == 10.0


def test_what_a_person_had_stopped_is_down_and_no_incident_any_more() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).ended(1, died=10.0).weighed(1, wait=5.0)
    ledger.at(12).write("supervisor_leaving")
    [incident] = incidents(ledger.events, ledger.wall(1000))
    assert (incident.outcome, incident.lost_total_s) == ("stopped", 2.0)
    found = ettr_of_ledger(ledger.events, None, ledger.wall(1000))
    assert found is not None
    assert (found.lost_s["away"], found.incident) == (988.0, None)


def test_a_wish_in_the_middle_of_a_replay_ends_it() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0).at(20).ended(1, step=300, died=20.0).weighed(1)
    ledger.launch(2, 200).at(25).steps(2, 201, 25.0).at(30).stopping(2, "drained", beat=30.0)
    [incident] = incidents(ledger.at(31).ended(2, "drained", step=220, died=31.0).weighed(2, "drained").events)
    assert (incident.outcome, incident.lost_s["replay"]) == ("recovered", 5.0)
    assert incident.lost_total_s == 10.0


@pytest.mark.parametrize("part", ["proof", "wait", "reclaim", "hold", "stop"])
def test_an_open_incident_grows_as_its_job_does(part: str) -> None:
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0)
    if part == "stop":
        ledger.at(10).stopping(1, beat=10.0)
    else:
        ledger.ended(1, died=10.0)
        match part:
            case "wait":
                ledger.weighed(1, wait=600.0)
            case "reclaim":
                ledger.write("reclaiming")
            case "hold":
                ledger.write("hold", reason="r")
    [incident] = incidents(ledger.events, ledger.wall(370))
    found = ettr_of_ledger(ledger.events, None, ledger.wall(370))
    assert found is not None
    assert (incident.lost_s, incident.wall_s) == ({part: 360.0}, 370.0)
    assert (found.down_s, found.lost_s[part], found.wall_s) == (360.0, 360.0, 370.0)
    [still] = incidents(ledger.events)
    assert still.lost_total_s == 0.0


def test_what_only_a_supervisor_can_end_grows_where_one_lives() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).ended(1, died=10.0).weighed(1).launch(2)
    [alone] = incidents(ledger.events, ledger.wall(70))
    [watched] = incidents(ledger.events, ledger.wall(70), supervised=True)
    assert (alone.lost_total_s, watched.lost_s) == (0.0, {"load": 60.0})
    found = ettr_of_ledger(ledger.events, None, ledger.wall(70), supervised=True)
    assert found is not None
    assert found.lost_s["load"] == 60.0


def gone_back() -> HandLedger:
    """Trained up to 609, gone back to 300 by a person while run 1 lived, and stalled at 350 on the new branch."""
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0).at(50).verified(1, 300).at(90).verified(1, 600)
    ledger.at(100).write("branched", step=300, digest="d300", run_id="1-a", by="me", why="loss")
    ledger.stopping(1, "stopped").at(104).ended(1, "stopped", step=609, died=104.0).weighed(1, "stopped")
    ledger.at(104.5).write("checkpoint_verified", step=609, digest="d609", run_id="1-a")
    ledger.at(105).launch(2, 300).at(110).steps(2, 301, 110.0).at(130).verified(2, 350)
    return (
        ledger.at(190).stopping(2, beat=140.0).at(195).ended(2, "stalled", step=350, died=195.0).weighed(2, "stalled")
    )


def test_steps_of_a_branch_that_was_left_are_not_repeated() -> None:
    ledger = gone_back()
    assert account_of(ledger).high_step == 350
    assert "replay" not in lost(account_of(ledger))
    ledger.at(196).launch(3, 350).at(200).steps(3, 351, 200.0)
    account = account_of(ledger.at(260).write("nothing"))
    [incident] = incidents(ledger.events)
    assert (incident.outcome, incident.steps_repeated) == ("recovered", 0)
    assert "replay" not in incident.lost_s
    assert (account.span, account.part) == (None, Part.RUN)


def test_the_replay_of_an_incident_ends_at_the_last_step_of_its_own_runs() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0).at(100).ended(1, step=300, died=100.0).weighed(1)
    ledger.at(101).launch(2, 200).at(105).steps(2, 201, 105.0).at(110).ended(2, step=220, died=110.0).weighed(2)
    account = account_of(ledger.at(111).launch(3, 200).at(115).steps(3, 201, 115.0))
    assert account.replay_to == 220
    ledger.at(126).write("run_caught_up", run_id="3-a", step=221, made_s=ledger.monotonic(125.0))
    account = account_of(ledger)
    assert (account.part, account.span, account.replay_to) == (Part.REPLAY, None, 300)
    ledger.at(166).write("run_caught_up", run_id="3-a", step=301, made_s=ledger.monotonic(165.0))
    assert lost(account_of(ledger))["replay"] == 5.0 + 50.0
    first, second = incidents(ledger.events)
    assert (first.lost_s["replay"], second.lost_s["replay"]) == (5.0, 10.0)


def test_a_checkpoint_tells_the_same_where_no_record_of_the_step_is() -> None:
    ledger = HandLedger().at(0).launch(1).at(10).steps(1, 1, 10.0).at(100).ended(1, step=300, died=100.0).weighed(1)
    ledger.at(101).launch(2, 200).at(105).steps(2, 201, 105.0).at(110).ended(2, step=220, died=110.0).weighed(2)
    ledger.at(111).launch(3, 200).at(115).steps(3, 201, 115.0).at(125).verified(3, 250)
    assert account_of(ledger).span is None
    assert account_of(ledger).part is Part.REPLAY
    assert account_of(ledger.at(165).verified(3, 350)).part is Part.RUN


def test_a_job_that_was_over_before_a_step_was_timed_says_so() -> None:
    ledger = HandLedger().at(0).launch(1).at(1).ended(1, "finished", step=9, died=1.0).verified(1, 9)
    found = ettr_of_ledger(ledger.write("finished").weighed(1, "finished").events, 9, ledger.wall(50))
    assert found is not None
    assert (found.ratio, found.wall_s) == (None, 1.0)
    assert found.why.startswith("the job was over before two of its steps were seen")


# --- whatever the ledger looks like -------------------------------------------------------------------------
_KINDS = (
    *("run_launching", "run_stopping", "run_goes_on", "run_ended", "run_weighed", "run_steps", "run_recovered"),
    *(
        "run_caught_up",
        "checkpoint_verified",
        "step_time",
        "branched",
        "hold",
        "lifted",
        "supervisor_leaving",
        "finding",
    ),
    *("supervisor_started", "reclaiming", "reclaimed", "finished", "archived", "run_killed", "of another version"),
)
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 500),
    st.just(10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["1-a", "2-a", *(cause.value for cause in Cause)]),
)
_NAMES = st.sampled_from(
    (
        *("run_id", "number", "step", "last_step", "made_s", "beat_s", "died_wall_s", "wait_s", "cause", "resume_step"),
        *("baseline_step", "repeated", "step_s", "saving_s", "reason", "error", "check", "command", "evidence"),
        *("tail", "facts", "kernel", "failure", "gates", "stood_before", "words", "confidence", "bogus"),
    )
)
_MOMENT = st.one_of(st.none(), st.floats(-1e6, 1e6), st.floats(0, 100))


@st.composite
def foreign(draw: Any) -> list[Event]:
    return [
        Event(
            seq=seq,
            wall_s=draw(st.floats(-1e6, 4e9)),  # up to 2096: beyond, a double does not keep the milliseconds
            kind=draw(st.sampled_from(_KINDS)),
            sentence=draw(st.text(max_size=5)),
            data=draw(st.dictionaries(_NAMES, _VALUES, max_size=5)),
            monotonic_s=draw(_MOMENT),
            boot_id=draw(st.sampled_from([None, "a", "b"])),
        )
        for seq in range(draw(st.integers(0, 25)))
    ]


def in_any_order() -> st.SearchStrategy[list[Event]]:
    held = killed_once().at(130).stopping(2, beat=120.0).at(135).ended(2, step=220, died=134.0)
    events = held.write("hold", reason="r").weighed(2).at(150).write("lifted").launch(3, 200).events
    return st.lists(st.sampled_from(events), max_size=40)


@settings(max_examples=300, deadline=None)
@given(events=st.one_of(foreign(), in_any_order()), later_s=st.floats(0, 1e6))
def test_no_ledger_breaks_it_and_the_parts_never_sum_to_more_than_the_wall(events: list[Event], later_s: float) -> None:
    account = Account()
    before_s = 0.0
    for event in events:
        account.add(event)
        assert account.now_s >= before_s
        before_s = account.now_s
        wall_s = account.wall_s(account.now_s + later_s)
        parts = account.lost_by(account.now_s + later_s)
        assert all(seconds >= 0 and math.isfinite(seconds) for seconds in parts.values())
        assert Part.RUN not in parts
        if wall_s is not None:
            assert sum(parts.values()) <= wall_s * (1 + 1e-9) + 1e-4  # 25 differences of times near 4e9
        found = ettr(account, now_s=account.now_s + later_s, newest_step=100, step_s=0.1)
        assert found is None or found.ratio is None or 0 <= found.ratio <= 1
    found_all = incidents(events)
    assert [each.id for each in found_all] == list(range(1, len(found_all) + 1))
    for each in found_all:
        assert each.lost_total_s <= (account.now_s) * (1 + 1e-9) + 1e-2
        assert sum(each.lost_s.values()) == pytest.approx(each.lost_total_s, abs=0.01, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(events=st.one_of(foreign(), in_any_order()), cut=st.integers(0, 30))
def test_what_was_told_of_an_incident_that_is_over_is_never_told_otherwise_later(events: list[Event], cut: int) -> None:
    before = [each for each in incidents(events[:cut]) if each.outcome != "open"]
    after = {each.id: each for each in incidents(events)}
    for each in before[:-1]:
        assert after[each.id] == each
