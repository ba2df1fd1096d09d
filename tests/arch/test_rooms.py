"""Every room has a README, its tests reach each of its modules, and nothing is left half done."""

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
    """A room's README names its purpose, its interface and its invariants."""
    readme = room / "README.md"
    assert readme.exists(), f"{relative(room)} has no README.md"
    assert len(readme.read_text().splitlines()) >= 5, f"{relative(readme)} says too little"


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_module_is_reached_by_its_rooms_tests(module: Path) -> None:
    """A room's tests lie at its place in the tree of tests, and each module is named by at least one of them."""
    place = module.parent.relative_to(ROOT)
    parent, name = ".".join(place.parts), module.stem
    imported = re.compile(
        rf"\b{re.escape(parent)}\.{name}\b|from {re.escape(parent)} import [^\n]*(\n[^)]*)?\b{name}\b"
    )
    tests = sorted((ROOT / "tests" / "unit" / place).glob("test_*.py"))
    if any(test.name == f"test_{module.name}" for test in tests):
        return
    found = any(imported.search(test.read_text()) for test in tests)
    assert found, f"no test in tests/unit/{place} names {parent}.{name}"


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_nothing_is_left_half_done(module: Path) -> None:
    """Reminders belong in the tracker, not in the code that ships."""
    found = LEFT_OVER.findall(module.read_text())
    assert not found, f"{relative(module)}: {found}"
