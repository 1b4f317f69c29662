"""Where a job lies, and which job is meant when none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog import places
from watchdog.errors import SettingsError
from watchdog.places import folders_of, job_options, known_jobs, require_known, which_job
from watchdog.settings import Settings, load


def settings(home: Path, **how: object) -> Settings:
    return load(environ={}, home=home, cwd=home, **how)  # type: ignore[arg-type]


def test_two_configurations_of_one_checkpoint_folder_meet_at_one_lock(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = [
        folders_of(
            settings(tmp_path, job=name, command=["true"], overrides={"job.checkpoints": str(tmp_path / folder)})
        )
        for name, folder in (("a", "real"), ("b", "link"))
    ]
    assert found[0].control == found[1].control == tmp_path / "real" / ".gpuhost-watchdog"
    assert found[0].ledger != found[1].ledger


@pytest.mark.parametrize("answer", ["9p", None])
def test_without_true_flock_the_locks_lie_in_the_state_folder(
    answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing can be said of the file system; and still the same for two jobs of one folder."""

    def kind(_path: Path) -> str:
        if answer is None:
            raise OSError("mountinfo")
        return answer

    monkeypatch.setattr(places, "filesystem_of", kind)
    same = {"command": ["true"], "overrides": {"job.checkpoints": "c"}}
    found = [folders_of(settings(tmp_path, job=name, **same)) for name in "ab"]
    assert found[0].control == found[1].control
    assert found[0].control.is_relative_to(tmp_path / ".local/state/gpuhost-watchdog")


def known(base: Path, *names: str) -> None:
    for name in names:
        (base / name).mkdir(parents=True)
        (base / name / "ledger.jsonl").touch()


def test_the_only_job_is_meant_by_a_command_without_a_name(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    assert which_job(plain, None) is None, "nothing ever ran: the default job"
    (plain.state.folder / "folder").mkdir(parents=True)
    assert which_job(plain, None) is None, "a folder without a ledger is no job"
    known(plain.state.folder, "train")
    assert which_job(plain, None) == "train"
    assert which_job(settings(tmp_path, job="other"), None) is None, "one was named"
    config = tmp_path / "w.toml"
    config.write_text("")
    assert which_job(settings(tmp_path, config=config), None) is None, "a configuration says which"


def test_a_name_that_is_no_jobs_is_an_error(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    wrong = settings(tmp_path, job="tarin")
    require_known(wrong)  # nothing ever ran here
    known(plain.state.folder, "train", "second")
    with pytest.raises(SettingsError, match=r"--job tarin: no such job; did you mean train.*here are second, train"):
        require_known(wrong)
    require_known(settings(tmp_path, job="train"))
    require_known(settings(tmp_path, job="default"))
    (plain.state.folder / "starting").mkdir()
    require_known(settings(tmp_path, job="starting"))
    config = tmp_path / "w.toml"
    config.write_text("[job]\n")
    require_known(settings(tmp_path, config=config, job="tarin"))


def test_a_folder_that_cannot_be_a_job_is_none(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    known(plain.state.folder, "train", "my job")
    assert known_jobs(plain) == ["train"]


def test_among_several_jobs_nothing_is_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A question means the only one that is busy, and says so; nothing is done to a job that was not named."""
    plain = settings(tmp_path)
    known(plain.state.folder, "train", "default")
    for busy in (None, lambda _: [], lambda names: names):
        with pytest.raises(SettingsError, match=r"which job.* default, train: add --job"):
            which_job(plain, busy)
    assert which_job(plain, lambda names: [name for name in names if name == "train"]) == "train"
    assert "job train (of 2: default, train; --job chooses)" in capsys.readouterr().err


def test_what_a_command_needs_to_mean_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert job_options(settings(tmp_path)) == ""
    assert job_options(settings(tmp_path, command=["python3", "fail.py"])) == " --job fail"
    config = tmp_path / "my w.toml"
    config.write_text('[job]\nname = "n"\n')
    assert job_options(settings(tmp_path, config=config)) == f" --config '{config}' --job n"
    (tmp_path / "watchdog.toml").write_text("")
    assert job_options(settings(tmp_path)) == ""
