"""Settings: the order of the sources, the search for the file, the choice of the job, and one clear line a problem."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from watchdog import contract, settings
from watchdog.errors import EXIT_USAGE, SettingsError
from watchdog.settings_job import name_from
from watchdog.settings_keys import keys_of
from watchdog.settings_shape import SECTIONS

Load = Callable[..., settings.Settings]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "cwd").mkdir()
    return tmp_path


@pytest.fixture
def load(desk: Path) -> Load:
    def call(
        toml: str | bytes | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        job: str | None = None,
        command: Sequence[str] = (),
        config: Path | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> settings.Settings:
        if toml is not None:
            content = toml if isinstance(toml, bytes) else textwrap.dedent(toml).encode()
            (desk / "cwd/watchdog.toml").write_bytes(content)
        return settings.load(
            config=config,
            job=job,
            command=command,
            overrides=overrides or {},
            environ=environ or {},
            home=desk / "home",
            cwd=desk / "cwd",
        )

    return call


def problems(call: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        call()
    assert caught.value.exit_code == EXIT_USAGE
    return one_line_each(caught.value.problems)


def one_line_each(lines: tuple[str, ...]) -> tuple[str, ...]:
    assert lines
    for line in lines:
        assert line.isprintable(), line
    return lines


# --- defaults and order -------------------------------------------------------------------------------------
def test_without_any_file_the_built_in_job_has_defaults(load: Load, desk: Path) -> None:
    loaded = load()
    assert loaded.job.built_in
    assert loaded.job.name == "default"
    assert loaded.job.level == 2
    assert loaded.job.directory == desk / "cwd"
    assert loaded.state.folder == desk / "home/.local/state/gpuhost-watchdog"
    assert loaded.job.checkpoints == loaded.state.folder / "default/checkpoints"
    assert loaded.job_folder == loaded.state.folder / "default"
    assert loaded.memory.need_bytes == 1024**3
    assert loaded.metrics.port == settings.DEFAULT_METRICS_PORT
    assert loaded.source == ("defaults",)


def test_every_phase_of_the_contract_has_a_deadline() -> None:
    deadlines = settings.Deadlines(import_s=7)
    for phase in contract.PHASES:
        assert deadlines.for_phase(phase) > 0
    assert deadlines.for_phase("import") == 7
    assert deadlines.for_phase("compile") == 1800
    assert deadlines.for_phase(None) == deadlines.for_phase("start") == 120
    with pytest.raises(KeyError):
        deadlines.for_phase("lunch")


def test_settings_are_frozen(load: Load) -> None:
    with pytest.raises(AttributeError):
        load().stop.grace_s = 1  # type: ignore[misc]


def test_later_sources_win(load: Load) -> None:
    toml = """
        [stop]
        grace = "10s"
        kill_wait = "11s"
        [relaunch]
        failures = 4
        backoff = "1s"
        [jobs.a.stop]
        kill_wait = "12s"
        [jobs.a.relaunch]
        failures = 5
        backoff = "2s"
        [jobs.b.relaunch]
        failures = 9
    """
    environ = {"GPUHOST_WATCHDOG_RELAUNCH__FAILURES": "6", "GPUHOST_WATCHDOG_RELAUNCH__BACKOFF": "3s"}
    loaded = load(toml, job="a", environ=environ, overrides={"relaunch.backoff": "4s", "metrics.port": None})
    assert loaded.stop.grace_s == 10
    assert loaded.stop.kill_wait_s == 12
    assert loaded.relaunch.failures == 6
    assert loaded.relaunch.backoff_s == 4
    assert loaded.source == (
        "watchdog.toml",
        "GPUHOST_WATCHDOG_RELAUNCH__BACKOFF",
        "GPUHOST_WATCHDOG_RELAUNCH__FAILURES",
        "command line",
    )


def test_the_file_is_searched_in_the_documented_order(load: Load, desk: Path) -> None:
    xdg = desk / "xdg"
    places = [desk / "named.toml", desk / "cwd/watchdog.toml", xdg / "gpuhost-watchdog/watchdog.toml"]
    for number, place in enumerate(places, 1):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"[relaunch]\nfailures = {number}\n")
    environ = {"XDG_CONFIG_HOME": str(xdg)}
    assert load(config=Path("../named.toml"), environ=environ).relaunch.failures == 1
    assert load(environ=environ).relaunch.failures == 2
    places[1].unlink()
    loaded = load(environ=environ)
    assert loaded.relaunch.failures == 3
    assert loaded.config_file == places[2]
    assert loaded.source == (str(places[2]),)
    # A relative value counts as none, and then ~/.config is meant.
    user = desk / "home/.config/gpuhost-watchdog/watchdog.toml"
    user.parent.mkdir(parents=True)
    user.write_text("[relaunch]\nfailures = 4\n")
    assert load(environ={"XDG_CONFIG_HOME": "xdg"}).relaunch.failures == 4


def test_state_follows_xdg(load: Load, desk: Path) -> None:
    assert load(environ={"XDG_STATE_HOME": "/var/x"}).state.folder == Path("/var/x/gpuhost-watchdog")
    assert load(environ={"XDG_STATE_HOME": "x"}).state.folder == desk / "home/.local/state/gpuhost-watchdog"


def test_paths_belong_to_the_folder_of_their_file(load: Load, desk: Path) -> None:
    (desk / "etc").mkdir()
    (desk / "etc/w.toml").write_text('[job]\ncheckpoints = "runs/../c"\ndirectory = "~/code"\n[state]\nfolder = "/s"\n')
    loaded = load(config=desk / "etc/w.toml", environ={"GPUHOST_WATCHDOG_STATE__FOLDER": "here"})
    assert loaded.job.checkpoints == desk / "etc/c"
    assert loaded.job.directory == desk / "home/code"
    assert loaded.state.folder == desk / "cwd/here"


def test_a_byte_order_mark_and_windows_line_ends_are_read(load: Load) -> None:
    assert load(b"\xef\xbb\xbf[relaunch]\r\nfailures = 7\r\n").relaunch.failures == 7


def test_only_a_near_name_of_the_environment_is_suggested(tmp_path: Path) -> None:
    """What all of them begin with makes none of them near."""

    def said(name: str) -> str:
        with pytest.raises(SettingsError) as caught:
            settings.load(environ={f"GPUHOST_WATCHDOG_{name}": "1"}, home=tmp_path, cwd=tmp_path)
        return str(caught.value)

    assert "did you mean" not in said("FOO__BAR")
    assert "did you mean GPUHOST_WATCHDOG_RELAUNCH__FAILURES?" in said("RELAUNCH__FAILURE")


@pytest.mark.parametrize(
    ("toml", "level"),
    [
        ('[job]\nlevel = 1\ncommand = ["x"]', 1),
        ('[job]\ncommand = ["x"]', 0),
        ('[job]\ncommand = ["x"]\ncheckpoints = "c"', 2),
        ('[job]\nlevel = 0\ncommand = ["x"]\ncheckpoints = "c"', 0),
        ("[job]\nlevel = 1", 1),
        ('[job]\nlevel = "auto"', 2),
    ],
)
def test_the_level_follows_from_what_is_configured(load: Load, toml: str, level: int) -> None:
    assert load(toml).job.level == level


def test_auto_from_the_environment_undoes_a_level_of_the_file(load: Load) -> None:
    environ = {"GPUHOST_WATCHDOG_JOB__LEVEL": "auto"}
    assert load('[job]\nlevel = 2\ncommand = ["x"]', environ=environ).job.level == 0


# --- the job ------------------------------------------------------------------------------------------------
def test_a_command_without_a_file_is_called_after_its_program(load: Load, desk: Path) -> None:
    loaded = load(command=["python", "train.py", "--lr", "1"])
    assert loaded.job.name == "train"
    assert loaded.job.command == ("python", "train.py", "--lr", "1")
    assert loaded.job.level == 0
    assert not loaded.job.built_in
    assert loaded.job.checkpoints == desk / "home/.local/state/gpuhost-watchdog/train/checkpoints"


@pytest.mark.parametrize("toml", ["", '[job]\nname = "default"\ncommand = []\n'])
def test_a_command_never_shares_the_state_of_the_default_job(load: Load, toml: str) -> None:
    assert load(toml, command=["./default"]).job.name == "default-command"
    assert load(toml, command=["python", "train.py"]).job.name == "train"
    assert load(toml, command=["python", "train.py"], job="mine").job.name == "mine"
    (line,) = problems(lambda: load(toml, command=["python", "train.py"], job="default"))
    assert "built-in job's" in line
    assert "train" in line


def test_the_template_with_a_command_gets_a_name_of_its_own(load: Load) -> None:
    template = settings.commented_template().replace("command = []", 'command = ["python", "-m", "my.trainer"]')
    assert load(template).job.name == "my.trainer"


def test_a_command_of_the_line_keeps_the_configured_job(load: Load) -> None:
    loaded = load('[job]\nname = "phase-4b"\ncommand = ["a"]\ncheckpoints = "c"', command=["b", "c"])
    assert (loaded.job.name, loaded.job.command, loaded.job.level) == ("phase-4b", ("b", "c"), 2)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["/usr/bin/python3.11", "-u", "/x/my train.py"], "my-train"),
        (["python", "-P", "-m", "trainer", "train"], "trainer"),
        (["bash", "run.sh"], "run"),
        (["./run.sh"], "run"),
        (["torchrun", "--nproc-per-node", "2", "fit.py"], "fit"),
        (["env", "A=1", "python", "a.py", "b.py"], "a"),
        (["python", "-c", "import x.py"], "python"),
        (["/opt/trainer"], "trainer"),
        ([".hidden"], "hidden"),
        (["…"], "job"),
        (["x" * 200], "x" * 64),
        (["default"], "default-command"),
    ],
)
def test_names_from_commands(command: list[str], name: str) -> None:
    assert name_from(command) == name


SEVERAL = '[jobs.small]\ncommand = ["a"]\n[jobs.large]\ncommand = ["b"]\nmemory.need = "3GiB"\n'


def test_one_of_several_jobs_is_chosen(load: Load) -> None:
    large = load(SEVERAL, job="large")
    assert (large.job.name, large.job.command, large.memory.need_bytes) == ("large", ("b",), 3 * 1024**3)
    assert load(job="small").memory.need_bytes is None  # 1 GiB, or 3 where it may use a GPU


def test_several_jobs_and_no_choice_lists_them(load: Load) -> None:
    (line,) = problems(lambda: load(SEVERAL))
    assert "--job small or --job large" in line
    (line,) = problems(lambda: load(SEVERAL, job="larg"))
    assert "did you mean large?" in line
    assert "small, large" in line


def test_a_single_named_job_is_chosen_by_itself(load: Load) -> None:
    assert load('[jobs.only]\ncommand = ["a"]').job.name == "only"


def test_job_names_an_unconfigured_job_for_status(load: Load) -> None:
    assert load(job="train").job.name == "train"
    (line,) = problems(lambda: load('[job]\nname = "a"', job="b"))
    assert line == '--job "b": the job is called "a"; leave --job out (watchdog.toml)'


@pytest.mark.parametrize("name", ["../x", ".x", "", "a/b", "a b", "x" * 65, "a\n", "ü", "\x1b[31m"])
def test_a_job_name_cannot_leave_the_state_folder(load: Load, name: str) -> None:
    quoted = msgspec.json.encode(name).decode().replace("\x7f", "")
    assert "must be up to 64 letters" in problems(lambda: load(f"[job]\nname = {quoted}"))[0]
    assert "must be up to 64 letters" in problems(lambda: load(f"[jobs.{quoted}]\ncommand = ['x']"))[0]
    (line,) = problems(lambda: load("[job]", job=name))
    assert "must be up to 64 letters" in line
    assert load('[job]\nname="fine"').job.name == "fine"


def test_a_job_table_is_not_renamed(load: Load) -> None:
    (line,) = problems(lambda: load('[jobs.a]\nname = "b"\ncommand = ["x"]'))
    assert '[jobs.a] name = "b": must be "a"' in line
    assert "both" in problems(lambda: load("[job]\n[jobs.a]"))[0]
    assert "built-in" in problems(lambda: load('[jobs.default]\ncommand = ["x"]'))[0]


@pytest.mark.parametrize("progress", ["auto", "off", "nanogpt", r"at (?P<step>\d+) of"])
def test_where_progress_is_read_from(load: Load, progress: str) -> None:
    assert load(f"[job]\nprogress = '{progress}'").job.progress == progress


def test_memory_need_auto_depends_on_whose_command_it_is(load: Load) -> None:
    """None: 1 GiB, or 3 where it may use a GPU. The environment can undo a number of the file."""
    auto = '[memory]\nneed = "auto"\n'
    assert load(auto).memory.need_bytes == 1024**3
    assert load(auto + '[job]\ncommand = ["x"]').memory.need_bytes is None
    assert load(auto, command=["x"]).memory.need_bytes is None
    environ = {"GPUHOST_WATCHDOG_MEMORY__NEED": "auto"}
    assert load('[memory]\nneed = "7GiB"\n[job]\ncommand = ["x"]', environ=environ).memory.need_bytes is None


def test_checks_and_limits(load: Load) -> None:
    toml = '[checks]\noff = ["pcie"]\nxid = { 43 = "ignore" }\n[limits]\nlooks = 7\ndriver_hung = "2m"\n'
    loaded = load(toml)
    assert (loaded.checks.off, loaded.checks.xid) == (("pcie",), {"43": "ignore"})
    assert (loaded.limits.looks, loaded.limits.driver_hung_s) == (7, 120.0)


def test_devices_are_written_by_index_or_uuid(load: Load) -> None:
    assert load('[job]\ndevices = [0, "1", "GPU-3f1c"]').job.devices == ("0", "1", "GPU-3f1c")
    assert load('[job]\ndevices = "all"').job.devices == "all"


# --- problems -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[relaunch]\nfailures = 0", ["[relaunch] failures = 0: must be a whole number from 1 to 100 (watchdog.toml)"]),
        ("[relaunch]\nfailures = 101", ["failures = 101", "1 to 100"]),
        ("[relaunch]\nfailures = true", ["failures = true", "whole number"]),
        ("[relaunch]\nfailures = 1.5", ["failures = 1.5", "whole number"]),
        ('[relaunch]\nfailures = "3"', ['failures = "3"', "whole number"]),
        ("[relaunch]\nfailure = 3", ["[relaunch] failure = 3: unknown key; did you mean failures? (watchdog.toml)"]),
        ("[relunch]\nfailures = 3", ["[relunch]: unknown section; did you mean relaunch?"]),
        ("[zzz]", ["[zzz]: unknown section", "relaunch"]),
        ("failures = 3", ["failures = 3: stands outside a section; did you mean [relaunch] failures?"]),
        ("zzz = 3", ["zzz = 3: unknown key"]),
        ("memory = 3", ["memory = 3: must be a table: [memory]"]),
        ("job = 3", ["job = 3: must be a table: [job]"]),
        ("jobs = 3", ["jobs = 3: must be tables"]),
        ("jobs.a = 3", ["jobs.a = 3: must be a table: [jobs.a]"]),
        ("[[job]]", ["job = [{", "must be a table"]),
        ('[memory]\nneed = "lots"', ['[memory] need = "lots": must be a size from 0B to 64TiB', "3GiB"]),
        ("[memory]\nneed = -1", ["need = -1", "size"]),
        ("[memory]\nneed = 99999999999999999999999", ["need = 9999", "size"]),
        ('[stop]\ngrace = "0s"', ['grace = "0s"', "from 1s to 1d"]),
        ("[stop]\ngrace = nan", ["grace = nan", "duration"]),
        ('[loop]\nperiod = "20s"', ["0.05s to 10s"]),
        ("[metrics]\nport = 65536", ["port = 65536", '0 to 65535, or "off"']),
        ('[metrics]\nport = "on"', ['port = "on"', "off"]),
        ('[job]\ncommand = "python train.py"', ["command", '["python", "train.py"]']),
        ('[job]\ncommand = [""]', ["the program, is empty"]),
        ("[job]\ncommand = [1]", ["command = [1]", "list of texts"]),
        ("[job]\nlevel = 3", ["level = 3", '0, 1, 2 or "auto"']),
        ("[job]\nlevel = true", ["level = true"]),
        ("[job]\ntarget_step = 0", ["target_step = 0", "at least 1"]),
        ("[job]\nshrink_batch = 17", ["shrink_batch = 17", "a whole number from 0 to 16"]),
        ("[job]\nshrink_batch = true", ["shrink_batch = true", "a whole number from 0 to 16"]),
        ('[job]\ndevices = ["cuda:0"]', ["devices", "UUID"]),
        ("[job]\ndevices = [-1]", ["devices = [-1]"]),
        ("[job]\nenvironment = { A = 1 }", ["environment = { A = 1 }", "table of texts"]),
        ('[job]\nenvironment = { NOTIFY_SOCKET = "x" }', ["NOTIFY_SOCKET is set by the supervisor itself"]),
        ('[job]\nenvironment = { "A=B" = "x" }', ["cannot be an environment variable"]),
        ('[job]\nenvironment = { GPUHOST_WATCHDOG_JOB = "x" }', ["set by the supervisor"]),
        ('[job]\ncheckpoints = ""', ["checkpoints", "must be a path"]),
        ('[job]\ncheckpoints = "~other/x"', ["checkpoints", "must be a path"]),
        ('[checks]\noff = ["pci"]', ["[checks] off", "there is no check 'pci'", "watchdog diagnose --list"]),
        ('[checks]\noff = ["pcei"]', ["there is no check 'pcei'; did you mean pcie?"]),
        ('[checks]\noff = "pcie"', ['off = "pcie"', "list of names"]),
        ("[checks]\nof = []", ["[checks] of = []: unknown key; did you mean off?"]),
        ('[checks]\nxid = { x79 = "ignore" }', ["'x79' is no Xid number", "restart, log, reset"]),
        ('[checks]\nxid = { 12345 = "ignore" }', ["'12345' is no Xid number"]),
        ('[checks]\nxid = { "" = "ignore" }', ["'' is no Xid number"]),
        ('[checks]\nxid = { "²" = "ignore" }', ["'²' is no Xid number"]),
        ('[checks]\nxid = { 79 = "dance" }', ["'dance' is no action", "ignore"]),
        ("[checks]\nxid = { 79 = 3 }", ["xid = { 79 = 3 }", "a table such as"]),
        ("[checks]\nxid = [79]", ["xid = [79]", "a table such as"]),
        ("[limits]\nlooks = 0", ["[limits] looks = 0: must be a whole number from 1 to 30"]),
        ("[limits]\nlooks = 2.5", ["looks = 2.5", "whole number"]),
        ("[limits]\nbusy_percent = 101", ["busy_percent = 101", "1 to 100"]),
        ("[limits]\ncompute_baseline_fraction = 0", ["compute_baseline_fraction = 0", "0.01 to 1"]),
        ("[limits]\ncompute_baseline_fraction = 1.1", ["1.1", "0.01 to 1"]),
        ("[limits]\ncompute_floor_tflops = nan", ["compute_floor_tflops = nan", "0 to 10000"]),
        ('[limits]\ndriver_hung = "0s"', ['driver_hung = "0s"', "from 1s to 30d"]),
        ('[limits]\nunowned_memory = "-1GiB"', ["unowned_memory", "size"]),
        ("[limits]\nlok = 3", ["[limits] lok = 3: unknown key; did you mean looks?"]),
        ('[job]\nprogress = "step ("', ["[job] progress", "is no regular expression"]),
        ('[job]\nprogress = "step [0-9]+"', ["has no group named step, loss or tokens"]),
        ('[job]\nprogress = "(?P<stp>[0-9]+)"', ["names the group 'stp'"]),
        ('[job]\nprogress = "hugginface"', ["no ready pattern is called 'hugginface'", "huggingface"]),
        ("[job]\nprogress = 3", ["progress = 3", "must be one of these words"]),
        ('[memory]\nneed = "Auto"', ['need = "Auto"', '"auto"']),
        ('[relaunch]\nbackoff = "1h"', ["backoff_limit", "at least backoff", '"1h"']),
        ("[jobs.a]\ncommandd = 1", ["[jobs.a] commandd = 1: unknown key; did you mean command?"]),
        ("[jobs.a.memory]\nneed = -1", ["[jobs.a.memory] need = -1"]),
        ('[job]\n"a\\nb\\u001b" = 1', [r"\n", r"\x1b", "unknown key"]),
    ],
)
def test_a_problem_names_key_value_and_what_is_allowed(load: Load, toml: str, parts: list[str]) -> None:
    (line,) = problems(lambda: load(toml))
    for part in [*parts, "watchdog.toml"] if "backoff =" not in toml else parts:
        assert part in line, line


def test_all_problems_are_told_at_once(load: Load) -> None:
    toml = "[relaunch]\nfailures = 0\nruns = 1\n[memory]\nneed = 'x'\n[jobs.a]\nlevel = 9\n[jobs.b]\nlevel = 8\n"
    environ = {"GPUHOST_WATCHDOG_LOG__RUNS": "0", "GPUHOST_WATCHDOG_LOG__RUN": "1"}
    lines = problems(lambda: load(toml, environ=environ, overrides={"loop.period": "1y"}))
    for part in ("failures = 0", "runs = 1", "need =", "level = 9", "level = 8", "[log] runs = 0", "LOG__RUN:", "1y"):
        assert any(part in line for line in lines), part
    assert any("several jobs" in line for line in lines)
    assert len(lines) == 9


def test_secrets_are_hidden_in_a_problem_and_long_values_are_cut(load: Load) -> None:
    (line,) = problems(lambda: load('[job]\nenvironment = { HF_TOKEN = "v3ryPrivate", N = 1 }'))
    assert "v3ryPrivate" not in line
    (line,) = problems(lambda: load('[job]\nhf_token = "v3ryPrivate"'))
    assert "v3ryPrivate" not in line
    (line,) = problems(lambda: load('[job]\ncommand = ["", "--api-key", "v3ryPrivate"]'))
    assert "v3ryPrivate" not in line
    (line,) = problems(lambda: load(f'[memory]\nneed = "{"x" * 5000}"'))
    assert len(line) < 250
    assert "[memory] need" in line
    (line,) = problems(lambda: load(f"[memory]\n{'k' * 500_000} = 1"))
    assert len(line) < 250


@pytest.mark.parametrize(
    ("toml", "where"),
    [
        (b"[relaunch]\nfailures 3\n", "line 2, column 10"),
        (b"[relaunch]\nfailures = \n", "line 2, column 12"),
        (b'[job]\nname = "hal', "line 2, column 12"),
        (b"[job]\n[job]\n", "line 2, column 5"),
        (b"[job]\nname = '\xff'\n", "line 2, column 9"),
        (b"[job]\ncommand = [", "line 2, column 12"),
        (b"[job]\ntarget_step = " + b"9" * 5000, "line 1, column 1"),
        (b"a = " + b"[" * 20000, "line 1, column 1"),
        (b"\x00", "line 1, column 1"),
        (b"\x7fELF\x02\x01", "line 1, column 1"),
    ],
)
def test_broken_toml_is_one_line_with_file_line_and_column(load: Load, toml: bytes, where: str) -> None:
    (line,) = problems(lambda: load(toml))
    assert line.startswith(f"watchdog.toml, {where}:"), line


def test_a_broken_file_does_not_hide_a_wrong_environment(load: Load) -> None:
    lines = problems(lambda: load(b"[", environ={"GPUHOST_WATCHDOG_LOG__RUNS": "x"}, job="no-such-job"))
    assert len(lines) == 2
    assert "line 1" in lines[0]
    assert "[log] runs" in lines[1]


def test_a_file_that_cannot_be_read_is_one_line(load: Load, desk: Path) -> None:
    (line,) = problems(lambda: load(config=desk / "none.toml"))
    assert "none.toml: cannot be read: No such file" in line
    (line,) = problems(lambda: load(config=desk))
    assert "cannot be read: Is a directory" in line
    (line,) = problems(lambda: load(config=Path("a\0b")))
    assert "cannot be read" in line


def test_what_is_no_file_is_not_waited_for(load: Load, desk: Path) -> None:
    os.mkfifo(desk / "pipe")
    for path in (desk / "pipe", Path("/dev/zero")):
        (line,) = problems(lambda path=path: load(config=path))  # type: ignore[misc]
        assert "cannot be read: it is no file, but a named pipe, a socket or a device; name another" in line
    os.mkfifo(desk / "cwd/watchdog.toml")
    (line,) = problems(load)
    assert "watchdog.toml: cannot be read: it is no file" in line
    with open(desk / "large", "wb") as file:
        os.truncate(file.fileno(), 2**30)
    (line,) = problems(lambda: load(config=desk / "large"))
    assert "is longer than 1 MiB" in line


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("python3", "python3"),
        ("python3.12", "python3.12"),
        ("./python3", "cwd/python3"),
        ("bin/python3", "cwd/bin/python3"),
        ("~/venv/bin/python", "home/venv/bin/python"),
        ("/usr/bin/python3", "/usr/bin/python3"),
    ],
)
def test_a_python_without_a_slash_is_a_name_on_path(load: Load, desk: Path, written: str, python: str) -> None:
    expected = Path(python) if "/" not in python else desk / python
    assert load(f'[probe]\npython = "{written}"').probe.python == expected
    (desk / "cwd/watchdog.toml").unlink()
    assert load(environ={"GPUHOST_WATCHDOG_PROBE__PYTHON": written}).probe.python == expected


@pytest.mark.parametrize("written", ["", " ", "~other", "a\0b"])
def test_what_is_no_program_is_told(load: Load, written: str) -> None:
    (line,) = problems(lambda: load(environ={"GPUHOST_WATCHDOG_PROBE__PYTHON": written}))
    assert "must be a program: a path with a /, or a name that is looked up on PATH" in line


@pytest.mark.parametrize("target", ["watchdog.toml", "nowhere.toml"])
def test_a_file_that_is_there_and_cannot_be_read_is_not_passed_over(load: Load, desk: Path, target: str) -> None:
    (desk / "cwd/watchdog.toml").symlink_to(target)
    (line,) = problems(lambda: load())
    assert "watchdog.toml: cannot be read: " in line


# --- environment --------------------------------------------------------------------------------------------
def test_environment_values_are_toml_or_plain_text(load: Load) -> None:
    environ = {
        "GPUHOST_WATCHDOG_JOB__NAME": "123",
        "GPUHOST_WATCHDOG_JOB__COMMAND": '["python", "x.py"]',
        "GPUHOST_WATCHDOG_JOB__CHECKPOINTS": "~/c",
        "GPUHOST_WATCHDOG_JOB__ENVIRONMENT": '{ A = "1" }',
        "GPUHOST_WATCHDOG_MEMORY__NEED": "2GiB",
        "GPUHOST_WATCHDOG_STOP__GRACE": "45",
        "GPUHOST_WATCHDOG_METRICS__PORT": "off",
        "GPUHOST_WATCHDOG_JOB__DEVICES": '"all"',
    }
    loaded = load(environ=environ)
    assert loaded.job.name == "123"
    assert loaded.job.command == ("python", "x.py")
    assert loaded.job.environment == {"A": "1"}
    assert loaded.memory.need_bytes == 2 * 1024**3
    assert loaded.stop.grace_s == 45
    assert loaded.metrics.port == "off"
    assert loaded.job.level == 2
    assert set(loaded.source) == set(environ)


def test_the_contract_of_a_surrounding_run_is_no_configuration(load: Load) -> None:
    environ = dict.fromkeys(contract.CONTRACT_ENVIRONMENT, "whatever")
    assert load(environ=environ).source == ("defaults",)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("GPUHOST_WATCHDOG_MEMORY_NEED", "did you mean GPUHOST_WATCHDOG_MEMORY__NEED?"),
        ("GPUHOST_WATCHDOG_MEMORY__NEEDED", "did you mean GPUHOST_WATCHDOG_MEMORY__NEED?"),
        ("GPUHOST_WATCHDOG_MEMRY__NEED", "did you mean GPUHOST_WATCHDOG_MEMORY__NEED?"),
        ("GPUHOST_WATCHDOG_memory__need", "did you mean GPUHOST_WATCHDOG_MEMORY__NEED?"),
        ("GPUHOST_WATCHDOG_", "SECTION__KEY"),
        ("GPUHOST_WATCHDOG_XYZ\x1b", "SECTION__KEY"),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion(load: Load, name: str, hint: str) -> None:
    (line,) = problems(lambda: load(environ={name: "1"}))
    assert hint in line


def test_a_line_break_smuggles_in_no_key(load: Load) -> None:
    (line,) = problems(lambda: load(environ={"GPUHOST_WATCHDOG_LOG__RUNS": "3\nother = 4"}))
    assert r"3\nother" in line


def test_an_unknown_override_is_told(load: Load) -> None:
    (line,) = problems(lambda: load(overrides={"metrics.prt": 1}))
    assert "metrics.prt" in line


# --- garbage ------------------------------------------------------------------------------------------------
QUIET = hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TOML_PIECES = [
    *("[job]", "[jobs.a]", "[memory]", "[[job]]", "jobs=", "need", "command", "name", "level", "devices", "a.b.c"),
    *("=", '"', "'", '"""', "[", "]", "{", "}", ",", "#", "\n", "\r", " ", "é", "\x1b", "\\u0000"),
    *("1", "-1", "1e999", "nan", "inf", "0x1", "9" * 400, "true", "1979-05-27", "1979-05-27T07:32:00Z"),
    *('"3GiB"', '["a"]', "{A=1}"),
]


@QUIET
@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from(TOML_PIECES), max_size=12).map(lambda pieces: "".join(pieces).encode())
)
def test_any_file_gives_settings_or_a_settings_error(load: Load, toml: bytes) -> None:
    try:
        assert load(toml).job.name
    except SettingsError as error:
        one_line_each(error.problems)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.dates() | st.datetimes()
ANYTHING = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
ALL_KEYS = [f"{section}.{key}" for section in SECTIONS for key in keys_of(section)]


@QUIET
@given(st.dictionaries(st.sampled_from(ALL_KEYS), ANYTHING, max_size=5))
def test_any_value_gives_settings_or_a_settings_error(load: Load, overrides: dict[str, object]) -> None:
    try:
        assert load(overrides=overrides).job.name
    except SettingsError as error:
        one_line_each(error.problems)


# Neither a NUL nor a lone surrogate other than an undecodable byte can stand in an environment.
ENVIRONMENT_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@QUIET
@given(st.sampled_from(ALL_KEYS), ENVIRONMENT_TEXT | st.binary(max_size=8).map(os.fsdecode))
def test_any_environment_gives_settings_or_a_settings_error(load: Load, key: str, value: str) -> None:
    name = "GPUHOST_WATCHDOG_" + key.upper().replace(".", "__")
    try:
        assert load(environ={name: value}).source == (name,)
    except SettingsError as error:
        one_line_each(error.problems)


# --- cost ---------------------------------------------------------------------------------------------------
def test_defaults_cost_no_import_that_status_does_not_need(desk: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from watchdog import settings;"
        "settings.load(environ={}, home=Path(sys.argv[1]), cwd=Path(sys.argv[1]));"
        "print(*sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, str(desk)], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(answer.stdout.split())
    assert "msgspec" in loaded
    assert not loaded & {"tomllib", "difflib", "watchdog.masking", "watchdog.settings_template", "torch", "pydantic"}


def test_learning_of_deadlines_is_switched_and_bounded(load: Load) -> None:
    usual = load().deadlines
    assert (usual.learn, usual.factor, usual.floor_s, usual.stated) == (True, 3.0, 30.0, frozenset())
    chosen = load('[deadlines]\nlearn = false\nfactor = 2\nfloor = "5s"\ntrain = "2m"\ncompile = "1h"').deadlines
    assert (chosen.learn, chosen.factor, chosen.floor_s) == (False, 2.0, 5.0)
    assert chosen.stated == {"compile"}  # two minutes are the default, which says nothing
    assert load(environ={"GPUHOST_WATCHDOG_DEADLINES__LEARN": "false"}).deadlines.learn is False


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        ('learn = "perhaps"', "true or false"),
        ("learn = 1", "true or false"),
        ("factor = 1.4", "a number from 1.5 to 100"),
        ("factor = nan", "a number from 1.5 to 100"),
        ('floor = "0.5s"', "a duration from 1s to 7d"),
    ],
)
def test_what_learning_cannot_be(load: Load, written: str, allowed: str) -> None:
    with pytest.raises(SettingsError, match=rf"\[deadlines\] {written.split()[0]} = .*must be {allowed}"):
        load(f"[deadlines]\n{written}")
