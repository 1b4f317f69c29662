"""The proof that a device is free for the next run: what opens its gate, what closes it and in which words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.facts import Absent, Known, Unknown
from watchdog.core.gpumemory import MIB, Doubt, GpuMemory, Measured, Stay, after
from watchdog.core.gpuproof import (
    GIVEN_BACK,
    MARGIN_BYTES,
    SETTLES_S,
    Attempt,
    DeviceNow,
    Holder,
    Proof,
    concerns,
    foretold,
    prove,
)

GIB = 1024 * MIB
UUID = "GPU-3f1c"
OVER_S = 1000.0
BASE = 400 * MIB
LEFT = Stay(before_bytes=BASE, others_bytes=0, peak_bytes=BASE + 9 * GIB)
GAME = Holder(pid=8123, command="game", memory_bytes=5 * GIB)


def now(used: int | Unknown | Absent = BASE, **changes: Any) -> DeviceNow:
    values: dict[str, Any] = {
        "uuid": UUID,
        "label": "card",
        "at_s": OVER_S + 1,
        "used": Known(used, OVER_S + 1) if isinstance(used, int) else used,
        "total_bytes": 12 * GIB,
    }
    return DeviceNow(**(values | changes))


def knows(stay: Stay | None = LEFT, need: int = 9 * GIB, **changes: Any) -> GpuMemory:
    values: dict[str, Any] = {
        "run_id": "1-a",
        "stays": {} if stay is None else {UUID: stay},
        "needs": {UUID: need} if need else {},
        "over_seq": 10,
    }
    return GpuMemory(**(values | changes))


def proof(device: DeviceNow, memory: GpuMemory | None = None, *, waited_s: float = 60.0, **how: Any) -> Proof:
    return prove(device, memory or knows(), run_id="1-a", over_s=OVER_S, now_s=OVER_S + waited_s, **how)


def test_what_nobody_saw_the_run_take_is_measured_all_the_same() -> None:
    """A supervisor that was away, or a ledger that took no record: nine GiB more than before are not nothing."""
    unseen = dataclasses.replace(LEFT, peak_bytes=BASE)
    found = proof(now(BASE + 9 * GIB), knows(unseen, need=0))
    assert not found.open
    assert found.wants_probe
    assert proof(now(BASE + 10 * MIB), knows(unseen, need=0)).open


def test_what_came_back_and_is_enough_is_open_with_its_figures() -> None:
    found = proof(now())
    assert found.open
    assert found.words == "card 11.6 GiB free (the job took up to 9.0), 100 % of the 9.0 GiB given back"


@pytest.mark.parametrize(("kept", "is_open"), [(0.19, True), (0.21, False), (1.0, False)])
def test_four_fifths_have_to_come_back(kept: float, is_open: bool) -> None:
    """On a card with room for the next run beside what stays, so that this alone decides."""
    found = proof(now(BASE + int(kept * 9 * GIB), total_bytes=48 * GIB))
    assert found.open is is_open
    if not is_open:
        assert f"{100 - round(100 * kept)} % of the 9.0 GiB given back" in found.words
        assert found.words.endswith("GiB are nobody's any more: reboot the host")


def test_on_wsl_the_way_out_is_another_one() -> None:
    found = proof(now(11 * GIB, wsl=True, told=False))
    assert not found.open
    assert "1.0 GiB free, the job took up to 9.0" in found.words
    assert "Task Manager" in found.words
    assert "wsl --shutdown" in found.words


def test_within_seconds_it_is_waited_for_without_an_alarm() -> None:
    found = proof(now(9 * GIB), waited_s=SETTLES_S / 2)
    assert not found.open
    assert found.words == "card: 4 % of the 9.0 GiB given back so far, 80 % are waited for"
    assert "reboot" in proof(now(9 * GIB), waited_s=SETTLES_S).words


def test_what_is_less_than_a_context_is_noise() -> None:
    small = dataclasses.replace(LEFT, peak_bytes=BASE + 100 * MIB)
    assert proof(now(BASE + 60 * MIB), knows(small, 100 * MIB)).open
    assert not proof(now(BASE + 70 * MIB), knows(small, 100 * MIB)).open


# --- others -------------------------------------------------------------------------------------------------------
def test_what_others_took_meanwhile_is_theirs() -> None:
    """Enough is left beside the game: the run gave everything back."""
    found = proof(now(BASE + 5 * GIB, others=(GAME,), total_bytes=24 * GIB))
    assert found.open
    assert "100 % of the 9.0 GiB given back" in found.words


def test_who_holds_too_much_is_named_and_waited_for() -> None:
    found = proof(now(BASE + 5 * GIB, others=(GAME,)))
    assert not found.open
    assert "6.6 GiB free, the job took up to 9.0; it is held by pid 8123 (game, 5.0 GiB)" in found.words
    assert found.words.endswith("not of the job and left alone: wait for it, or end it")
    assert "reboot" not in found.words


def test_who_inherited_the_device_is_named() -> None:
    loader = Holder(pid=77, command="python", memory_bytes=None)
    found = proof(now(BASE + 8 * GIB, openers=(loader,)))
    assert not found.open
    assert "pid 77 (python)" in found.words
    assert "reboot" not in found.words


def test_of_many_the_largest_are_named() -> None:
    many = tuple(Holder(pid=pid, command="x", memory_bytes=pid * MIB) for pid in range(1, 9))
    words = proof(now(11 * GIB, others=many, told=False)).words
    assert "pid 8 (x" in words
    assert "pid 1 (" not in words
    assert "and 5 more" in words


def test_a_lost_pid_closes_and_one_that_was_there_before_does_not() -> None:
    ghost = Holder(pid=4711, command="", memory_bytes=9 * GIB)
    found = proof(now(lost=(ghost,)))
    assert not found.open
    assert "pid 4711 with 9.0 GiB, which this system does not know" in found.words
    assert found.words.endswith("reboot the host")
    assert proof(now(lost=(ghost,)), knows(dataclasses.replace(LEFT, lost=frozenset({4711})))).open
    assert proof(now(lost=(ghost,), wsl=True)).words.count("wsl --shutdown") == 1


def test_where_it_is_not_told_who_owns_it_it_is_measured() -> None:
    """WSL: a game, or a context that was left. With too little free it is closed all the same."""
    device = now(BASE + 4 * GIB, told=False, wsl=True, total_bytes=24 * GIB)
    found = proof(device)
    assert not found.open
    assert found.wants_probe
    assert "4.0 GiB more are in use than before the run" in found.words
    passed = {UUID: Measured(seq=11, passed=True, words="probe 8.10 TFLOP/s")}
    assert proof(device, knows(measured=passed)).open
    older = {UUID: Measured(seq=9, passed=True, words="")}
    assert not proof(device, knows(measured=older)).open, "of before the run ended"
    assert not proof(dataclasses.replace(device, total_bytes=12 * GIB), knows(measured=passed)).open


# --- room ---------------------------------------------------------------------------------------------------------
def test_room_for_what_the_job_was_seen_to_take() -> None:
    need = 9 * GIB
    for free, is_open in ((need + MARGIN_BYTES, True), (need + MARGIN_BYTES - 1, False)):
        device = now(12 * GIB - free)
        assert proof(device, knows(None)).open is is_open, "another command's run, say: no stay to compare with"


def test_a_job_that_fills_the_card_is_let_back_in() -> None:
    """With the margin it would never fit again."""
    full = Stay(before_bytes=BASE, others_bytes=0, peak_bytes=12 * GIB)
    memory = knows(full, full.added_bytes or 0)
    assert proof(now(BASE + 300 * MIB), memory).open
    assert not proof(now(BASE + 2 * GIB), memory).open


def test_what_cannot_be_seen_never_opens() -> None:
    assert "cannot be read: it hangs" in proof(now(Unknown("it hangs"))).words
    assert not proof(now(Unknown("it hangs"))).open
    assert not proof(now(total_bytes=None)).open
    old = proof(now(at_s=OVER_S - 0.1))
    assert (old.open, "has not been read since the run ended" in old.words) == (False, True)


def test_where_there_is_no_such_figure_nothing_is_asked_of_it() -> None:
    found = proof(now(Absent("not supported")))
    assert found.open
    assert "is not told here" in found.words


def test_a_run_of_which_nothing_is_known_is_made_up_for_by_measuring() -> None:
    unknown = Stay(peak_bytes=9 * GIB)
    found = proof(now(), knows(unknown, 0))
    assert (found.open, found.wants_probe) == (False, True)
    assert "how much was in use before the last run is not known" in found.words


# --- measuring ------------------------------------------------------------------------------------------------
DOUBTED = {"": Doubt(seq=10, words="run 1 ended by a CUDA error")}


def test_a_doubt_asks_for_a_measurement_and_a_passed_one_settles_it() -> None:
    found = proof(now(), knows(doubts=DOUBTED))
    assert (found.open, found.wants_probe) == (False, True)
    assert "run 1 ended by a CUDA error" in found.words
    for seq, passed, is_open in ((11, True, True), (9, True, False), (11, False, False)):
        measured = {UUID: Measured(seq=seq, passed=passed, words="probe 8.10 TFLOP/s, product right")}
        found = proof(now(), knows(doubts=DOUBTED, measured=measured))
        assert found.open is is_open
        assert ("probe 8.10" in found.words) is is_open


def test_where_nothing_can_measure_it_is_said_and_not_waited_for() -> None:
    no_torch = Attempt(words="no torch; [probe] python names one", impossible=True)
    found = proof(now(), knows(doubts=DOUBTED), attempt=no_torch)
    assert found.open
    assert "not measured: no torch; [probe] python names one" in found.words


def test_a_measurement_that_failed_keeps_it_closed_and_is_tried_again() -> None:
    found = proof(now(), knows(doubts=DOUBTED), attempt=Attempt(words="0.02 TFLOP/s (floor 2.0)"))
    assert (found.open, found.wants_probe) == (False, True)
    assert "0.02 TFLOP/s" in found.words


def test_memory_comes_first_nothing_is_measured_while_it_is_held() -> None:
    for device in (now(11 * GIB), now(lost=(GAME,)), now(Unknown("?")), now(at_s=0.0)):
        assert not proof(device, knows(doubts=DOUBTED)).wants_probe


def test_a_job_about_which_nothing_is_known_has_nothing_to_prove() -> None:
    assert not concerns(UUID, GpuMemory(), None)
    assert not concerns(UUID, knows(need=0), "2-b"), "of another run"
    assert concerns(UUID, knows(need=0), "1-a")
    assert concerns(UUID, knows(None), "2-b")
    assert concerns(UUID, GpuMemory(doubts=DOUBTED), None)


def test_what_a_dry_run_can_tell_beside_the_run() -> None:
    told = foretold(knows(doubts=DOUBTED), "1-a")
    assert told == {
        UUID: "7.2 of the 9.0 GiB given back, 9.5 GiB free, or what the run that took it began with, "
        "measured (run 1 ended by a CUDA error)"
    }
    assert foretold(knows(), "2-b") == {UUID: "9.5 GiB free, or what the run that took it began with"}
    assert foretold(GpuMemory(), None) == {}


# --- whatever is seen -----------------------------------------------------------------------------------------
sizes = st.integers(0, 12 * GIB)
counts = st.none() | sizes
holders = st.lists(
    st.builds(Holder, pid=st.integers(1, 99), command=st.sampled_from(["", "x"]), memory_bytes=counts), max_size=3
).map(tuple)
devices = st.builds(
    DeviceNow,
    uuid=st.just(UUID),
    label=st.just("card"),
    at_s=st.sampled_from([OVER_S - 1, OVER_S, OVER_S + 1]),
    used=sizes.map(lambda value: Known(value, OVER_S + 1)) | st.sampled_from([Unknown("?"), Absent("none")]),
    total_bytes=st.sampled_from([None, 12 * GIB]),
    others=holders,
    openers=holders,
    lost=holders,
    told=st.booleans(),
    wsl=st.booleans(),
)
stays = st.builds(
    Stay,
    before_bytes=counts,
    others_bytes=counts,
    peak_bytes=sizes,
    own_bytes=counts,
    lost=st.frozensets(st.integers(1, 99), max_size=3),
)
memories = st.builds(
    GpuMemory,
    run_id=st.just("1-a"),
    stays=st.just({}) | stays.map(lambda stay: {UUID: stay}),
    needs=st.just({}) | sizes.map(lambda need: {UUID: need}),
    doubts=st.just({}) | st.integers(0, 20).map(lambda seq: {"": Doubt(seq=seq, words="doubt")}),
    measured=st.just({})
    | st.builds(Measured, seq=st.integers(0, 20), passed=st.booleans(), words=st.just("measured")).map(
        lambda each: {UUID: each}
    ),
    over_seq=st.integers(-1, 15),
)
attempts = st.none() | st.builds(Attempt, words=st.just("tried"), impossible=st.booleans())


@settings(max_examples=400, deadline=None)
@given(device=devices, memory=memories, attempt=attempts, waited_s=st.floats(0, 1000))
def test_open_only_with_proof(device: DeviceNow, memory: GpuMemory, attempt: Attempt | None, waited_s: float) -> None:
    """Unknown never opens; whatever closes says what was seen; time alone opens nothing."""
    found = proof(device, memory, waited_s=waited_s, attempt=attempt)
    assert found.words.startswith("card")
    assert proof(device, memory, waited_s=waited_s, attempt=attempt) == found
    if not found.open:
        assert len(found.words) > len("card: ")
        return
    assert not found.wants_probe
    assert proof(device, memory, waited_s=0.0, attempt=attempt).open, "waiting is no proof"
    stay = memory.stays.get(UUID)
    assert device.at_s >= OVER_S
    assert not isinstance(device.used, Unknown)
    assert all(stay is not None and each.pid in stay.lost for each in device.lost)
    if attempt is None or not attempt.impossible:
        assert memory.doubt(UUID) is None
    if not isinstance(device.used, Known):
        return
    need = memory.needs.get(UUID, 0)
    used = device.used.value
    if need:
        assert device.total_bytes is not None
        as_before = (
            stay is not None
            and stay.before_bytes is not None
            and used - stay.before_bytes <= max(64 * MIB, 0.05 * need)
        )
        assert as_before or device.total_bytes - used >= need + MARGIN_BYTES
    if stay is None or stay.added_bytes is None or stay.before_bytes is None or not device.told:
        return
    if stay.others_bytes is not None:
        kept = used - stay.before_bytes - ((device.others_bytes or 0) - stay.others_bytes)
        assert min(kept, stay.added_bytes) <= max(64 * MIB, (1 - GIVEN_BACK) * stay.added_bytes)


# --- many relaunches, each with a little less ---------------------------------------------------------------------
def relaunched(memory: GpuMemory, number: int, before: int, peak: int) -> GpuMemory:
    """One more run: what was in use before it, and the most while it lived; as the records tell it."""
    run_id, said = f"{number}-a", {UUID: {"before": before, "others": 0, "peak": before, "own": None}}
    memory = after(memory, "run_launching", {"run_id": run_id, "device_memory": said}, number, "")
    said = {UUID: {"before": before, "others": 0, "peak": peak, "own": None}}
    return after(memory, "gpu_memory", {"run_id": run_id, "devices": said}, number, "")


def test_a_little_less_each_time_is_bounded_by_what_was_ever_enough() -> None:
    """The job fills what it finds; each run leaves 4 % behind, within what one relaunch is allowed."""
    memory, total, used = GpuMemory(), 12 * GIB, BASE
    opened = 0
    for number in range(1, 20):
        memory = relaunched(memory, number, used, total - 64 * MIB)
        used += int(0.04 * (total - 64 * MIB - used))
        if not prove(now(used), memory, run_id=f"{number}-a", over_s=OVER_S, now_s=OVER_S + 60.0).open:
            break
        opened += 1
    assert opened == 1, "once, and not nineteen times"
    assert memory.bases == {UUID: BASE}


def test_a_run_that_took_more_where_more_was_in_use_has_shown_that_it_is_enough() -> None:
    memory = relaunched(GpuMemory(), 1, BASE, BASE + 6 * GIB)
    memory = relaunched(memory, 2, BASE + GIB, BASE + GIB + 9 * GIB)
    assert (memory.needs, memory.bases) == ({UUID: 9 * GIB}, {UUID: BASE + GIB})
    for gone in ("archived", "batch_shrunk"):
        assert after(memory, gone, {"run_id": "2-a"}, 9, "").bases == {}
    other = after(memory, "run_launching", {"run_id": "3-a", "command_sha256": "another"}, 9, "")
    assert other.bases == {}
