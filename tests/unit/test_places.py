"""Where a job lies, and which job is meant when none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog import places
from watchdog.places import folders_of, the_only_job
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


def test_the_only_job(tmp_path: Path) -> None:
    """Meant by a plain `status` as long as it is the only one and the default one never was."""
    plain = settings(tmp_path)
    base = plain.state.folder
    assert the_only_job(plain) is None
    (base / "train").mkdir(parents=True)
    assert the_only_job(plain) is None, "a folder without a ledger is no job"
    (base / "train" / "ledger.jsonl").touch()
    assert the_only_job(plain) == "train"
    assert the_only_job(settings(tmp_path, job="other")) is None
    config = tmp_path / "w.toml"
    config.write_text("")
    assert the_only_job(settings(tmp_path, config=config)) is None
    (base / "second").mkdir()
    (base / "second" / "ledger.jsonl").touch()
    assert the_only_job(plain) is None
    (base / "second" / "ledger.jsonl").unlink()
    (base / "default").mkdir()
    assert the_only_job(plain) is None
