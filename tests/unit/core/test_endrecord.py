"""What a record keeps of an end: bounded whatever was said, and without a secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checks.host import AT_S, gpu, host
from watchdog.contract import Beat
from watchdog.core.endrecord import bounded, facts_of, failure_lines, failure_of, kernel_of, left_by, tail_of
from watchdog.core.facts import Known, Unknown
from watchdog.core.kernel import KernelKind, KernelLine

SECRETS = ("s3cr3t!xyz",)
MOST_BYTES = 24 * 1024


def line(at_s: float, text: str = "Out of memory: Killed process 9 (python)") -> KernelLine:
    return KernelLine(at_s=at_s, kind=KernelKind.OOM_KILL, text=text, number=9)


def test_the_tail_is_the_last_lines_that_say_something_without_secrets() -> None:
    log = "\n".join(f"line {number}\n" for number in range(50)) + "\npw s3cr3t!xyz --wandb-key kkkkkkkk1234 \x1b[2J\n"
    lines = tail_of(log, SECRETS)
    assert (len(lines), lines[0], lines[-1]) == (20, "line 31", "pw *** --wandb-key *** \\x1b[2J")


def test_a_secret_on_the_edge_of_a_line_that_is_cut_is_hidden_whole() -> None:
    for before in range(285, 305):
        assert "s3cr" not in tail_of("x" * before + " s3cr3t!xyz and more", SECRETS)[0]


def test_a_private_key_longer_than_the_tail_is_hidden() -> None:
    body = "MIIEpAIBAAKCAQEA7bq0\n" * 60
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\n"
    for log in (key, key[:-40], key[40:] + "done"):
        assert "MIIE" not in "".join(tail_of(log))


def test_a_failure_is_told_line_by_line() -> None:
    chain = [{"class": "SystemError", "message": "s3cr3t!xyz", "errno": None}]
    chain.append({"class": "OSError", "message": "no", "errno": 12})
    record = {"format": 1, "chain": chain, "traceback": "Traceback:\n  File x\n", "step": 3}
    assert failure_lines(record, SECRETS) == [
        *(
            "SystemError: ***",
            "behind it: OSError: no (errno 12)",
            "traceback:",
            "  Traceback:",
            "    File x",
            "step: 3",
        )
    ]
    assert failure_of(None) == []
    assert failure_of({"chain": [3, None], "x": {"y": 1}}) == ["3", "None", "x: {'y': 1}"]


def test_only_what_the_kernel_said_of_this_run_and_lately_is_kept() -> None:
    lines = (line(50.0, "before the run"), line(150.0, "long ago"), line(899.5, "s3cr3t!xyz"), line(901.0, "after"))
    assert kernel_of(lines, since_s=100.0, now_s=900.0, secrets=SECRETS) == ["-0.5 s: ***", "+1.0 s: after"]


def test_the_last_facts_are_figures_in_words() -> None:
    beat = Beat(run_id="7-abc", pid=1, start_ticks=1, seq=9, monotonic_s=AT_S, phase="train", step=412, loss=3.41)
    facts = facts_of(host(), now_s=AT_S + 1.5, beat=beat)
    assert facts["seen"] == "1.5 s before the end was noticed"
    assert "GiB available" in facts["memory"]
    [device] = [words for name, words in facts.items() if name.startswith("device")]
    assert "10.0 of 12.0 GiB used" in device
    assert "97 % busy, 151 W" in device
    assert facts["beat"] == "step 412, loss 3.41, in phase train, 1.5 s before the end was noticed"
    assert any(name.startswith("disk ") for name in facts)


def test_what_is_not_known_is_left_out_and_what_does_not_answer_is_said() -> None:
    nothing = facts_of(host(memory=Unknown("x"), devices=Unknown("x"), beat=Unknown("x"), disks=()), now_s=AT_S)
    assert set(nothing) <= {"seen", "losses"}
    lost = facts_of(host(devices=Known((gpu(lost_code=15),), AT_S)), now_s=AT_S)
    assert "it does not answer (code 15)" in lost.values()


@given(st.text(max_size=3000), st.dictionaries(st.text(max_size=50), st.text(max_size=3000), max_size=60))
def test_whatever_was_said_the_record_stays_small(text: str, more: dict[str, str]) -> None:
    noise = (text + '\U0001f480"\\') * 20 + "\n"
    failure: dict[str, Any] = {"chain": [{"class": noise, "message": noise}] * 30, "traceback": noise * 50, **more}
    kernel = kernel_of([line(1.0, noise)] * 90, since_s=0.0, now_s=2.0)
    devices = tuple(gpu(name=Known(noise, AT_S)) for _ in range(40))
    facts = facts_of(host(devices=Known(devices, AT_S)), now_s=AT_S)
    fields = left_by(log=noise * 60, failure=failure, kernel=kernel, facts=facts)
    assert len(json.dumps(fields)) <= MOST_BYTES
    assert all(len(each) <= 310 for name in ("tail", "failure", "kernel") for each in fields.get(name, ()))


@pytest.mark.parametrize("char", ["a", '"', "é", "\U0001f480", "\x00"])
def test_the_bound_is_that_of_the_line_in_the_ledger(char: str) -> None:
    lines = bounded([char * 100] * 1000, 4096)
    assert lines
    assert len(json.dumps(lines)) <= 4096 + 2


def test_what_there_is_nothing_of_has_no_field() -> None:
    assert left_by() == {}
