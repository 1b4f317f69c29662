"""The audit: one story in which every rule holds, and for each rule a change after which just that one fires."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import audit, audit_eye, audit_kernel, audit_rules

BOOT = "boot"
GATES = ["no run alive", "memory 20.0 ≥ 0.02 GiB", "state disk 70.0 ≥ 0.00 GiB"]
KILL, TERM = 9, 15
Line = dict[str, Any]


class Story:
    """A ledger and the kernel's view of it, to be changed by a test."""

    def __init__(self) -> None:
        self.ledger: list[Line | bytes] = []
        self.kernel: list[Line] = []
        self.at_s = 10.0

    # --- telling ------------------------------------------------------------------------------------------------
    def record(self, kind: str, after_s: float = 0.1, **data: Any) -> None:
        self.at_s = round(self.at_s + after_s, 3)
        self.ledger.append({"event": kind, "data": data, "monotonic_s": self.at_s})

    def lives(self, pid: int, role: str, from_s: float, to_s: float, run_id: str | None = None, **end: Any) -> None:
        words = {"supervisor": "run", "command": "relaunch"}.get(role, "")
        ticks = round(from_s * 100)
        self.kernel.append(
            {"kind": "born", "pid": pid, "ticks": ticks, "role": role, "run_id": run_id, "words": words, "at_s": from_s}
        )
        if end.get("struck"):
            self.kernel.append({"kind": "struck", "pid": pid, "signal": end["signal"], "at_s": to_s})
        dead = {"kind": "dead", "alive_s": to_s - 0.01, "dead_s": to_s, "signal": end.get("signal", 0), "code": 0}
        self.kernel.append({**dead, "pid": pid, "ticks": ticks})

    def launch(self, number: int, step: int | None, digest: str | None, after_s: float = 0.1) -> str:
        run_id = f"{number}-abc"
        base = -1 if step is None else step
        more = {"resume_step": step, "digest": digest, "baseline_step": base, "gates": list(GATES)}
        self.record("run_launching", after_s, number=number, run_id=run_id, **more)
        self.record("run_beats", 0.3, run_id=run_id)
        self.record("run_acknowledged", run_id=run_id, step=step or 0, digest=digest, fresh=step is None)
        return run_id

    def weigh(self, run_id: str, spends: str, counts: tuple[int, int], step: int, wait_s: float = 0.0) -> None:
        data = {"failures": counts[0], "host_failures": counts[1], "step": step, "wait_s": wait_s}
        self.record("run_weighed", run_id=run_id, cause="-", spends=spends, **data)

    # --- changing -----------------------------------------------------------------------------------------------
    def find(self, kind: str, **data: Any) -> Line:
        return next(
            line
            for line in self.ledger
            if isinstance(line, dict)
            and line["event"] == kind
            and all(line["data"].get(name) == value for name, value in data.items())
        )

    def drop(self, kind: str, **data: Any) -> None:
        self.ledger.remove(self.find(kind, **data))

    def put(self, line: Line | bytes, *, after: Line) -> None:
        self.ledger.insert(self.ledger.index(after) + 1, line)

    def process(self, pid: int, kind: str = "dead") -> Line:
        return next(line for line in self.kernel if line["pid"] == pid and line["kind"] == kind)

    # --- judging ------------------------------------------------------------------------------------------------
    def content(self) -> bytes:
        lines, seq = [], 0
        for line in self.ledger:
            if isinstance(line, bytes):
                lines.append(line)
                continue
            seq += 1
            whole = {"seq": seq, "wall_s": line["monotonic_s"], "boot_id": BOOT, "sentence": "-", **line}
            lines.append(json.dumps(whole).encode())
        return b"\n".join(lines) + b"\n"

    def view(self, looks: int = 500) -> str:
        eye = {"kind": "eye", "boot_id": BOOT, "ticks_per_s": 100, "boottime_ahead_s": 0.0}
        end = {"kind": "end", "looks": looks, "longest_gap_s": 0.02}
        return "\n".join(json.dumps(line) for line in (eye, *self.kernel, end))

    def fired(self, *, looks: int = 500, failure_limit: int = 3, over: bool = True) -> set[str]:
        book = audit_rules.read_book(self.content(), failure_limit=failure_limit, over=over)
        return {problem.rule for problem in audit.audit(book, audit_kernel.read_view(self.view(looks)))}


def told() -> Story:
    """A supervisor is killed, a run stalls, one is killed from outside, one fails and is held; then all ends well."""
    story = Story()
    story.record("supervisor_started", pid=100)
    run = story.launch(1, None, None)
    story.record("checkpoint_verified", step=0, digest="d0", run_id=run)
    story.record("checkpoint_verified", step=5, digest="d5", run_id=run)
    story.lives(100, "supervisor", 9.5, story.at_s + 0.5, signal=KILL, struck=True)
    story.ledger.append(b'{"seq": 7, "event": "run_st')
    story.record("supervisor_started", 1.0, pid=101)
    story.record("run_adopted", run_id=run)
    story.record("run_stopping", 1.0, run_id=run, cause="stalled")
    story.record("signal_sending", run_id=run, pid=202, why="late")
    story.record("signal_sent", pid=202)
    story.record("run_killing", 1.0, pids=[202])
    story.lives(201, "shim", 10.3, story.at_s + 0.2, run)
    story.lives(202, "trainer", 10.35, story.at_s + 0.1, run, signal=KILL)
    story.record("run_ended", 0.3, run_id=run, number=1)
    story.weigh(run, "trainer", (0, 0), 5)
    run = story.launch(2, 5, "d5", 0.3)
    story.lives(211, "shim", story.at_s - 0.3, story.at_s + 0.6, run)
    story.lives(212, "trainer", story.at_s - 0.25, story.at_s + 0.5, run, signal=KILL, struck=True)
    story.record("run_ended", 1.0, run_id=run, number=2)
    story.weigh(run, "host", (0, 1), 5, wait_s=0.5)
    run = story.launch(3, 5, "d5", 0.6)
    story.lives(221, "shim", story.at_s - 0.3, story.at_s + 0.6, run)
    story.lives(222, "trainer", story.at_s - 0.25, story.at_s + 0.5, run)
    story.record("run_ended", 1.0, run_id=run, number=3)
    story.record("hold", reason="its data is gone")
    story.weigh(run, "trainer", (1, 1), 5)
    story.lives(101, "supervisor", 11.7, story.at_s + 0.2)
    story.lives(400, "command", story.at_s + 1.0, story.at_s + 1.5)
    story.record("lifted", 1.3)
    story.record("supervisor_started", 1.0, pid=102)
    run = story.launch(4, 5, "d5")
    story.record("checkpoint_verified", step=10, digest="d10", run_id=run)
    story.lives(231, "shim", story.at_s - 0.4, story.at_s + 0.6, run)
    story.lives(232, "trainer", story.at_s - 0.35, story.at_s + 0.5, run)
    story.record("run_ended", 1.0, run_id=run, number=4)
    story.record("finished", step=10, target_step=10)
    story.weigh(run, "nothing", (0, 0), 10)
    story.lives(102, "supervisor", story.at_s - 2.5, story.at_s + 0.2)
    story.kernel.append(
        {"kind": "born", "pid": 300, "ticks": 900, "role": "other", "run_id": None, "words": "", "at_s": 9.0}
    )
    return story


def test_a_true_ledger_breaks_nothing() -> None:
    assert told().fired() == set()


# --- one change for each rule ----------------------------------------------------------------------------------------
def rubbish(story: Story) -> None:
    story.put(b"rubbish", after=story.find("run_beats"))


def torn_and_gone_on(story: Story) -> None:
    story.put(b'{"seq": 3, "ev', after=story.find("run_beats"))


def number_lost(story: Story) -> None:
    story.find("run_beats", run_id="3-abc")["seq"] = 99


def clock_back(story: Story) -> None:
    line = story.find("run_beats", run_id="3-abc")
    line["monotonic_s"], line["wall_s"] = line["monotonic_s"] - 5, line["monotonic_s"]


def wall_clock_back(story: Story) -> None:
    line = story.find("run_beats", run_id="3-abc")
    line["wall_s"] = line["monotonic_s"] - 5


def number_of_run(story: Story) -> None:
    story.find("run_launching", number=3)["data"]["number"] = 7


def killed_without_stop(story: Story) -> None:
    story.drop("run_stopping")


def asked_unrecorded(story: Story) -> None:
    story.drop("signal_sending")


def told_of_another_run(story: Story) -> None:
    story.find("run_beats", run_id="3-abc")["data"]["run_id"] = "2-abc"


def never_weighed(story: Story) -> None:
    story.drop("run_weighed", run_id="1-abc")


def never_adopted(story: Story) -> None:
    story.drop("run_adopted")


def older_checkpoint(story: Story) -> None:
    story.find("run_launching", number=2)["data"] |= {"resume_step": 0, "digest": "d0"}
    story.find("run_acknowledged", run_id="2-abc")["data"] |= {"step": 0, "digest": "d0"}


def other_bytes(story: Story) -> None:
    story.find("run_launching", number=2)["data"]["digest"] = "other"
    story.find("run_acknowledged", run_id="2-abc")["data"]["digest"] = "other"


def refused_checkpoint(story: Story) -> None:
    """And launched from all the same."""
    ended = story.find("run_ended", number=2)
    data = {"step": 5, "manifest": "step-5.json"}
    story.put({"event": "checkpoint_refused", "data": data, "monotonic_s": ended["monotonic_s"]}, after=ended)


def begins_anew(story: Story) -> None:
    story.find("run_launching", number=2)["data"] |= {"resume_step": None, "digest": None}
    story.find("run_acknowledged", run_id="2-abc")["data"] |= {"fresh": True, "step": 0}


def loads_other_bytes(story: Story) -> None:
    story.find("run_acknowledged", run_id="2-abc")["data"]["digest"] = "other"


def loads_another_step(story: Story) -> None:
    story.find("run_acknowledged", run_id="2-abc")["data"]["step"] = 4


def no_gates(story: Story) -> None:
    story.find("run_launching", number=2)["data"]["gates"] = []


def closed_gate(story: Story) -> None:
    story.find("run_launching", number=2)["data"]["gates"][1] = "memory 0.01 < 0.02 GiB"


def miscounted(story: Story) -> None:
    story.find("run_weighed", run_id="2-abc")["data"]["host_failures"] = 0
    story.find("run_weighed", run_id="3-abc")["data"]["host_failures"] = 0


def too_early(story: Story) -> None:
    story.find("run_launching", number=3)["monotonic_s"] -= 0.3


def launched_on_hold(story: Story) -> None:
    story.drop("lifted")


def lifts_itself_for_nothing(story: Story) -> None:
    """A hold for a run that does not end may; this one is for lost data."""
    story.find("lifted")["data"]["by"] = "end"
    for run_id, counts in (("3-abc", (1, 1)), ("4-abc", (0, 0))):  # what was counted before stays counted
        story.find("run_weighed", run_id=run_id)["data"] |= {"failures": counts[0], "host_failures": counts[1]}


def target_not_verified(story: Story) -> None:
    story.drop("checkpoint_verified", step=10)


def short_of_the_target(story: Story) -> None:
    story.find("finished")["data"]["target_step"] = 20


def outlives_its_end(story: Story) -> None:
    ended_s = story.find("run_ended", number=1)["monotonic_s"]
    story.process(202).update(alive_s=ended_s + 0.1, dead_s=ended_s + 0.11)  # before the next run is born


def on_no_record(story: Story) -> None:
    at_s = story.find("lifted")["monotonic_s"]
    story.lives(501, "trainer", at_s - 0.5, at_s - 0.4, "9-abc")


def born_before_its_record(story: Story) -> None:
    at_s = story.find("run_launching", number=4)["monotonic_s"]
    story.process(231, "born")["ticks"] = story.process(231)["ticks"] = round((at_s - 0.3) * 100)


def killed_and_not_named(story: Story) -> None:
    story.find("run_killing")["data"]["pids"] = [1]


def named_too_late(story: Story) -> None:
    late_s = story.find("run_killing")["monotonic_s"] - 0.5
    story.process(202).update(alive_s=late_s - 0.01, dead_s=late_s)


def shim_killed(story: Story) -> None:
    story.process(221)["signal"] = KILL


def term_without_a_stop(story: Story) -> None:
    story.process(222)["signal"] = TERM


def names_a_bystander(story: Story) -> None:
    story.kernel.append({"kind": "alive", "pid": 300, "ticks": 900, "alive_s": 40.0})
    story.find("run_killing")["data"]["pids"].append(300)


def names_the_shim(story: Story) -> None:
    story.find("run_killing")["data"]["pids"].append(201)


def harms_a_bystander(story: Story) -> None:
    dead = {"kind": "dead", "pid": 300, "ticks": 900, "alive_s": 20.0, "dead_s": 20.1, "signal": KILL, "code": 0}
    story.kernel.append(dead)


def two_supervisors(story: Story) -> None:
    at_s = story.find("supervisor_started", pid=101)["monotonic_s"]
    story.process(100).update(alive_s=at_s + 0.5, dead_s=at_s + 0.6)


def unseen_supervisor(story: Story) -> None:
    story.kernel = [line for line in story.kernel if line["pid"] != 101]


def lifts_itself(story: Story) -> None:
    story.kernel = [line for line in story.kernel if line["pid"] != 400]


def something_is_left(story: Story) -> None:
    dead = story.process(231)
    story.kernel.remove(dead)
    story.kernel.append({"kind": "alive", "pid": 231, "ticks": dead["ticks"], "alive_s": dead["alive_s"]})


def unseen_run(story: Story) -> None:
    story.kernel = [line for line in story.kernel if line["pid"] not in (221, 222)]


BREAKS: list[tuple[str, Callable[[Story], None]]] = [
    ("whole", rubbish),
    ("whole", torn_and_gone_on),
    ("order", number_lost),
    ("order", clock_back),
    ("order", wall_clock_back),
    ("alternation", number_of_run),
    ("open run", killed_without_stop),
    ("open run", asked_unrecorded),
    ("open run", told_of_another_run),
    ("weighed", never_weighed),
    ("adoption", never_adopted),
    ("resume", older_checkpoint),
    ("resume", other_bytes),
    ("resume", refused_checkpoint),
    ("fresh", begins_anew),
    ("acknowledged", loads_other_bytes),
    ("acknowledged", loads_another_step),
    ("gates", no_gates),
    ("gates", closed_gate),
    ("budget", miscounted),
    ("backoff", too_early),
    ("hold", launched_on_hold),
    ("hold", lifts_itself_for_nothing),
    ("finished", target_not_verified),
    ("finished", short_of_the_target),
    ("watched", unseen_run),
    ("proof", outlives_its_end),
    ("on record", on_no_record),
    ("on record", born_before_its_record),
    ("killed", killed_and_not_named),
    ("killed", named_too_late),
    ("killed", shim_killed),
    ("killed", term_without_a_stop),
    ("named", names_a_bystander),
    ("named", names_the_shim),
    ("innocent", harms_a_bystander),
    ("supervisors", two_supervisors),
    ("supervisors", unseen_supervisor),
    ("by a person", lifts_itself),
    ("left", something_is_left),
]


@pytest.mark.parametrize(("rule", "change"), BREAKS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_what_breaks_a_rule_makes_just_that_one_fire(rule: str, change: Callable[[Story], None]) -> None:
    story = told()
    change(story)
    assert story.fired() == {rule}


def test_two_runs_at_once_break_two_rules() -> None:
    """Whoever lives beside the next run has also outlived the recorded end of its own."""
    story = told()
    born_s = story.process(212, "born")["at_s"]
    story.process(202).update(alive_s=born_s + 0.1, dead_s=born_s + 0.11)
    assert story.fired() == {"one run", "proof"}


def test_a_launch_beside_an_open_run() -> None:
    story = told()
    story.drop("run_ended", number=2)
    assert "alternation" in story.fired()


def test_an_eye_that_slept() -> None:
    assert told().fired(looks=3) == {"watched"}


def test_a_launch_beyond_the_limit() -> None:
    assert told().fired(failure_limit=1) == {"budget"}


def test_a_hold_for_a_run_that_would_not_end_lifts_itself_with_its_end() -> None:
    story = told()
    story.find("hold")["data"]["until_gone"] = "3-abc"
    story.find("lifted")["data"]["by"] = "end"
    story.kernel = [line for line in story.kernel if line["pid"] != 400]  # nobody ran a command
    assert story.fired() == set()


def test_a_checkpoint_that_is_gone_is_not_launched_from() -> None:
    story = told()
    story.put(
        {"event": "checkpoint_vanished", "data": {"step": 5, "digest": "d5", "still": [0, "d0", "1-abc"]}}
        | {"monotonic_s": story.find("run_ended", number=2)["monotonic_s"]},
        after=story.find("run_ended", number=2),
    )
    assert story.fired() == {"resume"}


def test_every_rule_is_broken_here() -> None:
    broken = {rule for rule, _ in BREAKS} | {"one run"}
    assert broken == set(audit_rules.RULES) | set(audit_kernel.RULES)


def test_an_end_that_nobody_records_under_a_supervisor_that_is_well() -> None:
    story = told()
    ended = story.find("run_ended", number=4)
    story.ledger = story.ledger[: story.ledger.index(ended)]
    story.kernel.remove(story.process(102))
    story.kernel.append({"kind": "alive", "pid": 102, "ticks": story.process(102, "born")["ticks"], "alive_s": 60.0})
    assert story.fired(over=False) == {"left"}


def test_a_torn_end_is_the_writers_death(tmp_path: Path) -> None:
    story = told()
    whole = story.content()
    book = audit_rules.read_book(whole + b'{"seq": 99, "ev', over=True)
    assert audit.audit(book, None) == []
    assert [problem.rule for problem in audit.audit(audit_rules.read_book(whole + b"\0\0\0\n"), None)] == ["whole"]


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = told()
    ledger, kernel = tmp_path / "ledger.jsonl", tmp_path / "job.kernel"
    ledger.write_bytes(story.content())
    kernel.write_text(story.view())
    assert audit.main([str(ledger), "--kernel", str(kernel), "--over"]) == 0
    assert "0 broken places" in capsys.readouterr().out
    broken = copy.deepcopy(story)
    no_gates(broken)
    ledger.write_bytes(broken.content())
    assert audit.main([str(ledger), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [problem["rule"] for problem in report["problems"]] == ["gates"]
    ledger.write_bytes(b"nothing of a ledger\n")
    assert audit.main([str(ledger)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_nothing_of_the_product_is_in_it() -> None:
    """By what its files import, and by what is loaded when it runs."""
    for module in (audit, audit_rules, audit_kernel, audit_eye):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                top = name.split(".")[0]
                ours = name.startswith("bench.audit")
                assert ours or top in sys.stdlib_module_names, f"{module.__name__} imports {name}"
    code = "import sys, bench.audit, bench.audit_eye; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name.split(".")[0] in ("watchdog", "trainer")}
