"""Whatever a person or a program is shown of a job has its secrets hidden: status, its socket, the screen, relaunch."""

from __future__ import annotations

import dataclasses
import io
import json

from watchdog.core.following import Told
from watchdog.core.relaunchplan import PlanStep, RelaunchPlan, Wish
from watchdog.core.view import FindingView, GateView, RunView, StatusView, VerdictView
from watchdog.jobseen import of_view
from watchdog.listening import Listener
from watchdog.remembered import Remembered
from watchdog.render import status_lines, status_record
from watchdog.render_relaunch import line_of, plan_lines, plan_record
from watchdog.screen import Screen

SECRET = "hf_" + "abcdEFGH1234"
SAID = f"OSError: token={SECRET} was refused"
VIEW = StatusView(
    job="x",
    state="hold",
    since_wall_s=0.0,
    now_wall_s=1.0,
    sentence=SAID,
    hold_reason=SAID,
    last_error=SAID,
    silence=SAID,
    waiting_for=SAID,
    run=RunView(number=1, run_id="1-a", alive=None, status=SAID),
    verdict=VerdictView(kind="dead", rule="r", reason=SAID, since_wall_s=0.0, subject="run 1", evidence=(SAID,)),
    gates=(GateView(name="disk", open=False, words=SAID),),
    findings=(FindingView(check="c", severity="critical", subject="s", reason=SAID, next="n"),),
    checkpoints="/runs/api_key=of-a-folder",
)


def test_status_in_words_and_as_json() -> None:
    for text in ("\n".join(status_lines(VIEW)), json.dumps(status_record(VIEW))):
        assert SECRET not in text
        assert "***" in text
        assert "/runs/api_key=of-a-folder" in text


def test_what_the_socket_answers() -> None:
    alive = dataclasses.replace(VIEW, run=RunView(number=1, run_id="1-a", alive=True))
    listener = Listener(lambda: None, lambda: alive, lambda: Remembered(at_s=0.0))
    for command in ("status", "relaunch"):
        answer = json.dumps(listener.answer({"command": command}))
        assert SECRET not in answer
        assert "was refused" in answer


def test_a_relaunch_and_a_diagnosis() -> None:
    plan = RelaunchPlan(steps=(PlanStep(name="lift", words=SAID),), why_not=(SAID,), checkpoint=None)
    record = plan_record(VIEW, Wish(), plan, 3)
    texts = [
        *plan_lines(VIEW, plan),
        line_of(Told(label="HOLD", words=SAID)),
        json.dumps(record),
        repr(of_view(VIEW, "")),
    ]
    assert SECRET not in "".join(texts)


def test_the_screen() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.line("error", f"{SAID}\nand {SAID}")
    screen.live(SAID, 100.0)
    assert SECRET not in out.getvalue()
    assert out.getvalue().count("***") == 3
