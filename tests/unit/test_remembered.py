"""What a supervisor hands to a diagnosis: there and back as JSON, and put in only where a single look knows less."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.host import AT_S, UUID, beat, disk, gpu, host, points, progress
from watchdog.contract import ContractError
from watchdog.core.devicefacts import XidFault
from watchdog.core.facts import Absent, Clocks, Jump, Known, OomKills, ProgressPoint, Unknown
from watchdog.core.limits import Limits
from watchdog.core.memoryneed import Learned
from watchdog.remembered import Remembered, from_record, remember, to_record, with_memory

LOOKS = ((AT_S - 600.0, 90), (AT_S - 300.0, 80), (AT_S - 5.0, 70))
CLOCKS = Clocks(boot_id="b" * 32, asleep_s=0.0, watched_s=9e4, jumps=(Jump(kind="step", at_s=AT_S - 9, seconds=-7.0),))
XIDS = (XidFault(number=31, at_s=AT_S - 40.0, events=3),)
OOM = OomKills(host=3, cgroup=None, cgroup_path="/a", since_host=1, watched_s=9e4)


def watched(**changes: Any) -> Remembered:
    disks = (disk("state", earlier=LOOKS), disk("checkpoints"))
    facts = host(clocks=CLOCKS, oom=OOM, disks=disks, devices=(gpu(xid_faults=XIDS),), blind_s=4.0)
    return dataclasses.replace(remember(facts), **changes)


def through_json(remembered: Remembered) -> Remembered:
    return from_record(json.loads(json.dumps(to_record(remembered), allow_nan=False)))


def test_what_is_remembered_survives_the_socket() -> None:
    before = watched()
    assert before.progress is not None
    assert before.disks == {"state": LOOKS, "checkpoints": ()}
    assert before.xid_faults == {UUID: XIDS}
    assert before.beat == beat()
    assert through_json(before) == before
    assert through_json(Remembered(at_s=1.0)) == Remembered(at_s=1.0)


def test_the_devices_that_the_job_means_go_along() -> None:
    for limits in (
        Limits(),
        Limits(devices=()),
        Limits(devices=("GPU-1", "0"), devices_named=True, devices_doubt="only 0"),
        Limits(devices_named=True),
        Limits(memory_learned=Learned(need_bytes=11 * 1024**3, words="its last run had 9.8 GiB when memory ran out")),
    ):
        again = through_json(remember(host(), limits))
        assert again.with_devices(Limits(looks=7, devices=("5",))) == replace(limits, looks=7)
    assert Remembered(at_s=1.0).with_devices(Limits(devices=("5",))) == Limits(devices=("5",))


def test_what_is_not_known_is_not_remembered() -> None:
    unseen = Unknown("hangs")
    disks = (Unknown("hangs"), disk("checkpoints"))
    facts = host(clocks=unseen, oom=unseen, progress=Absent(), beat=Absent(), devices=unseen, disks=disks)
    assert remember(facts) == Remembered(at_s=AT_S, disks={"checkpoints": ()})


def test_a_run_that_promised_no_more_beats_survives() -> None:
    again = through_json(watched(beat=beat(deadline_s=math.inf)))
    assert again.beat == beat(deadline_s=math.inf)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_survives(loss: float) -> None:
    point = ProgressPoint(at_s=1.0, step=3, loss=loss, gradient_norm=loss)
    again = through_json(watched(progress=progress(points=(*points(2), point)))).progress
    assert again is not None
    for found in (again.points[-1].loss, again.points[-1].gradient_norm):
        assert found is not None
        assert found == loss or (math.isnan(loss) and math.isnan(found))
    assert again.points[:-1] == points(2)


RECORD = to_record(watched())


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        "facts",
        {},
        RECORD | {"at_s": None},
        RECORD | {"at_s": "soon"},
        RECORD | {"at_s": 10**400},
        RECORD | {"blind_s": []},
        RECORD | {"disks": []},
        RECORD | {"disks": {"state": [1, 2]}},
        RECORD | {"disks": {"state": [[1.0, None]]}},
        RECORD | {"progress": "fast"},
        RECORD | {"progress": {"run_id": "7"}},
        RECORD | {"progress": RECORD["progress"] | {"points": [{"at_s": 1.0, "colour": "red"}]}},
        RECORD | {"progress": RECORD["progress"] | {"points": [{"at_s": 1.0, "loss": "low"}]}},
        RECORD | {"progress": RECORD["progress"] | {"mood": "good"}},
        RECORD | {"clocks": {"boot_id": "b", "asleep_s": 0.0, "jumps": [7]}},
        RECORD | {"clocks": {"boot_id": "b", "asleep_s": 0.0}},
        RECORD | {"oom": {"hosts": 1}},
        RECORD | {"oom": 3},
        RECORD | {"meant": {"devices": "GPU-1", "named": True, "doubt": ""}},
        RECORD | {"meant": {"devices": [1], "named": True, "doubt": ""}},
        RECORD | {"meant": {"devices": None, "named": "yes", "doubt": ""}},
        RECORD | {"meant": 3},
        RECORD | {"beat": {"phase": "train"}},
        RECORD | {"beat": RECORD["beat"] | {"pid": "1"}},
        RECORD | {"oom": RECORD["oom"] | {"since_host": None}},
        RECORD | {"clocks": RECORD["clocks"] | {"jumps": [{"kind": "step", "at_s": "x", "seconds": 1.0}]}},
        RECORD | {"progress": RECORD["progress"] | {"heard_s": "now"}},
        RECORD | {"xid_faults": {UUID: [{"number": 31}]}},
        {name: value for name, value in RECORD.items() if name != "oom"},
    ],
    ids=lambda record: str(record)[-60:],
)
def test_an_answer_of_another_shape_is_not_believed(record: Any) -> None:
    with pytest.raises(ContractError):
        from_record(record)


def test_a_single_look_gets_what_only_watching_can_tell() -> None:
    merged = with_memory(host(), watched(at_s=AT_S - 1.0))
    assert merged.clocks == Known(CLOCKS, AT_S - 1.0)
    assert merged.oom == Known(OOM, AT_S - 1.0)
    state, checkpoints = merged.disks
    assert isinstance(state, Known)
    assert state.value == disk("state", earlier=LOOKS)
    assert checkpoints == host().disks[1]
    (device,) = merged.devices.value if isinstance(merged.devices, Known) else ()
    assert device.xid_faults == XIDS
    changed = {"clocks": merged.clocks, "oom": merged.oom, "disks": merged.disks, "devices": merged.devices}
    assert replace(host(), **changed) == merged, "nothing else was touched"


def test_looks_of_ones_own_come_after_the_supervisors() -> None:
    """A diagnosis looks again where one look proves nothing: that must not cost what the supervisor saw."""
    own = ((AT_S - 6.0, 71), (AT_S - 0.5, 69))
    merged = with_memory(host(disks=(disk("state", earlier=own),)), watched())
    (state,) = merged.disks
    assert isinstance(state, Known)
    assert state.value.earlier == (*LOOKS, (AT_S - 0.5, 69))


@pytest.mark.parametrize("fact", [Unknown("hangs"), Absent("not looked at")], ids=str)
def test_what_cannot_be_seen_now_is_not_made_up_from_memory(fact: Any) -> None:
    facts = host(clocks=fact, oom=fact, disks=(fact,), devices=fact)
    assert with_memory(facts, watched()) == facts


def test_a_supervisor_that_knows_nothing_takes_nothing_away() -> None:
    facts = host(clocks=CLOCKS, oom=OOM, disks=(disk("state", earlier=LOOKS), disk("cache")))
    assert with_memory(facts, Remembered(at_s=AT_S)) == facts
