"""The template of `watchdog init`, the table and the structs are one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from watchdog import settings
from watchdog.settings_keys import keys_of
from watchdog.settings_shape import SECTIONS

HOME = Path("/home/someone")


def load(folder: Path) -> settings.Settings:
    return settings.load(environ={}, home=HOME, cwd=folder)


def without_source(loaded: settings.Settings) -> settings.Settings:
    return msgspec.structs.replace(loaded, source=(), config_file=None)


def test_the_template_loads_to_exactly_the_defaults(tmp_path: Path) -> None:
    defaults = load(tmp_path)
    assert defaults.source == ("defaults",)
    (tmp_path / "watchdog.toml").write_text(settings.commented_template())
    loaded = load(tmp_path)
    assert loaded.source == ("watchdog.toml",)
    assert without_source(loaded) == without_source(defaults)


def uncommented() -> str:
    return re.sub(r"^# (\w+ = )", r"\1", settings.commented_template(), flags=re.MULTILINE)


def test_the_template_has_every_key_and_no_other() -> None:
    table = tomllib.loads(uncommented())
    assert {section: list(keys) for section, keys in table.items()} == {
        section: list(keys_of(section)) for section in SECTIONS
    }


def test_the_examples_in_the_template_are_valid(tmp_path: Path) -> None:
    (tmp_path / "watchdog.toml").write_text(uncommented())
    loaded = load(tmp_path)
    assert loaded.job.checkpoints == HOME / "runs/my-job"
    assert loaded.job.directory == HOME / "code"
    assert loaded.job.target_step == 1000
    assert loaded.state.folder == HOME / ".local/state/gpuhost-watchdog"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_documented_and_says_what_it_allows(section: str) -> None:
    for key in keys_of(section).values():
        assert len(key.description.split()) >= 1, key.name
        assert "\n" not in key.description
        assert key.allowed, key.name
        assert key.extra["kind"] in ("path", "program", "plain") or key.limits or key.extra["computed"], key.name


def test_no_line_of_the_template_is_too_long_to_read() -> None:
    assert max(map(len, settings.commented_template().splitlines())) <= 120
