"""From settings and environment to the limits of a job: above all, which devices it means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchdog.core.limits import GPU_MEMORY_NEED_BYTES, MEMORY_NEED_BYTES, Limits, names
from watchdog.joblimits import limits_of, visible_devices, visible_doubt
from watchdog.settings import Settings, load

NOWHERE = Path("/home/none")
TRAIN = ["python", "train.py"]


def settings(command: list[str] | None = None, **overrides: object) -> Settings:
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    return load(environ={}, home=NOWHERE, cwd=NOWHERE, command=command or (), overrides=keys)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, None),
        ("", ()),
        ("   ", ()),
        ("0", ("0",)),
        ("1,0", ("1", "0")),
        (" 2 , 3 ", ("2", "3")),
        ("GPU-3f1c,1", ("GPU-3f1c", "1")),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,-1,1", ("0",)),
        ("0,,1", ("0",)),
        ("0,gpu-3f1c,1", ("0",)),
        ("1.5", ()),
        ("²", ()),
        ("9" * 5000, ()),
        ("MIG-7a1b", None),
        ("0,MIG-GPU-7a1b/1/0", None),
        ("-1,MIG-7a1b", ()),
        ("0,0", ()),
        ("0,1,0", ()),
    ],
)
def test_what_cuda_visible_devices_means(text: str | None, devices: tuple[str, ...] | None) -> None:
    assert visible_devices(text) == devices
    assert names(devices, uuid="GPU-3f1c0a52", index=0) in (True, False)  # whatever is let through can be compared


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo", "CUDA_VISIBLE_DEVICES=foo: foo names no device that NVIDIA would know, so CUDA programs see no GPU"),
        ("²", "² names no device that NVIDIA would know, so CUDA programs see no GPU"),
        ("0,gpu-3f1c,1", "gpu-3f1c names no device that NVIDIA would know, so CUDA programs see only 0"),
        ("1,,0", "an empty entry names no device that NVIDIA would know, so CUDA programs see only 1"),
        ("0,1,0", "0 is named twice, so CUDA programs see no GPU"),
        ("9" * 5000, "9... names no device"),
        ("\x1b[2J", "?[2J names no device"),
    ],
)
def test_what_cuda_takes_for_less_than_it_says_is_told(text: str, words: str) -> None:
    assert words in visible_doubt(text)
    assert len(visible_doubt(text)) < 250
    assert visible_doubt(text).isprintable()
    assert limits_of(settings(), {"CUDA_VISIBLE_DEVICES": text}).devices_doubt == visible_doubt(text)
    assert limits_of(settings(job__devices=["0"]), {"CUDA_VISIBLE_DEVICES": text}).devices_doubt == ""


@pytest.mark.parametrize("text", [None, "", " ", "-1", "NoDevFiles", "0,-1,1", "0,", "0,1", "GPU-3f1c,1", "MIG-7a1b"])
def test_devices_that_are_hidden_on_purpose_are_no_doubt(text: str | None) -> None:
    assert visible_doubt(text) == ""


@pytest.mark.parametrize(
    ("name", "meant"),
    [("0", True), ("00", True), ("1", False), ("²", False), ("9" * 5000, False), ("", False), ("gpu-3F", True)],
)
def test_a_name_means_a_device_or_none(name: str, meant: bool) -> None:
    assert names((name,), uuid="GPU-3f1c0a52", index=0) is meant


@pytest.mark.parametrize(
    ("job", "environ", "devices"),
    [
        ({}, {}, None),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"job__environment": {"CUDA_VISIBLE_DEVICES": "2"}}, {"CUDA_VISIBLE_DEVICES": "1"}, ("2",)),
        ({"job__environment": {"CUDA_VISIBLE_DEVICES": ""}}, {"CUDA_VISIBLE_DEVICES": "1"}, ()),
        ({"job__devices": ["GPU-3f1c", 0]}, {"CUDA_VISIBLE_DEVICES": "1"}, ("GPU-3f1c", "0")),
        ({"job__devices": []}, {"CUDA_VISIBLE_DEVICES": "1"}, ()),
        ({"job__devices": ["0", "MIG-7a1b"]}, {}, None),
    ],
)
def test_the_devices_of_a_job(job: dict[str, Any], environ: dict[str, str], devices: tuple[str, ...] | None) -> None:
    assert limits_of(settings(**job), environ).devices == devices


@pytest.mark.parametrize(
    ("job", "visible", "named"),
    [
        ({}, None, False),
        ({}, "", False),
        ({}, "-1", False),
        ({}, "foo", False),
        ({}, "0,0", False),
        ({}, "1", True),
        ({}, "GPU-3f1c,foo", True),
        ({}, "MIG-7a1b", True),
        ({}, "1,MIG-7a1b", True),
        ({"job__environment": {"CUDA_VISIBLE_DEVICES": "MIG-7a1b"}}, "", True),
        ({"job__devices": ["MIG-7a1b"]}, None, True),
        ({"job__devices": ["0"]}, "", True),
        ({"job__devices": []}, "MIG-7a1b", False),
    ],
)
def test_whether_a_job_names_devices(job: dict[str, Any], visible: str | None, named: bool) -> None:
    """A MIG instance is a name, though it does not say of which device it is."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert limits_of(settings(**job), environ).devices_named is named


def test_without_settings_the_limits_are_the_defaults() -> None:
    assert limits_of(settings(TRAIN), {}) == Limits()


def test_what_is_configured_arrives() -> None:
    limits = limits_of(
        settings(
            checks__off=["pcie", "thermal-slowdown"],
            checks__xid={"43": "ignore", "79": "reboot"},
            limits__looks=7,
            limits__compute_floor_tflops=9.5,
            deadlines__train="90s",
            disk__need="2GiB",
        ),
        {},
    )
    assert limits.off == {"pcie", "thermal-slowdown"}
    assert limits.xid == {43: "ignore", 79: "reboot"}
    assert (limits.looks, limits.compute_floor_tflops) == (7, 9.5)
    assert (limits.train_deadline_s, limits.disk_need_bytes) == (90.0, 2 * 1024**3)


@pytest.mark.parametrize(
    ("command", "need", "with_gpu", "without"),
    [
        ([], None, MEMORY_NEED_BYTES, MEMORY_NEED_BYTES),
        (TRAIN, None, GPU_MEMORY_NEED_BYTES, MEMORY_NEED_BYTES),
        (TRAIN, "auto", GPU_MEMORY_NEED_BYTES, MEMORY_NEED_BYTES),
        (TRAIN, "0", 0, 0),
        (TRAIN, "2GiB", 2 * 1024**3, 2 * 1024**3),
    ],
)
def test_the_memory_that_a_launch_needs(command: list[str], need: str | None, with_gpu: int, without: int) -> None:
    limits = limits_of(settings(command, memory__need=need), {})
    assert (limits.memory_need(uses_gpu=True), limits.memory_need(uses_gpu=False)) == (with_gpu, without)
