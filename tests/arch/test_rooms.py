"""Every room introduces itself, every module has its own test file, and nothing is left half done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tree import PACKAGES, ROOT, relative

ROOMS = sorted({path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")})
MODULES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if not path.name.startswith("__")
)
LEFT_OVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@pytest.mark.parametrize("room", ROOMS, ids=relative)
def test_room_has_a_readme(room: Path) -> None:
    """A room's README names its purpose, its door and its invariants."""
    readme = room / "README.md"
    assert readme.exists(), f"{relative(room)} has no README.md"
    assert len(readme.read_text().splitlines()) >= 5, f"{relative(readme)} says too little"


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_module_has_its_test_file(module: Path) -> None:
    """Each module is covered by its own test file, at the same place in the tree of tests."""
    expected = ROOT / "tests" / "unit" / module.parent.relative_to(ROOT) / f"test_{module.name}"
    assert expected.exists(), f"{relative(module)} has no {relative(expected)}"


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_nothing_is_left_half_done(module: Path) -> None:
    """Reminders belong to the tracker, not to the code that ships."""
    found = LEFT_OVER.findall(module.read_text())
    assert not found, f"{relative(module)}: {found}"
