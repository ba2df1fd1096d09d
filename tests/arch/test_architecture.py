"""The picture of the architecture shows the existing rooms, and the arrows between the packages are their imports."""

from __future__ import annotations

import re

import pytest

from tests.support import house
from tests.support.tree import PACKAGES, ROOT
from tools import rooms

PAGE = rooms.PAGE.read_text()
ARROW = re.compile(r"^    (\w+) --> (\w+)$", re.MULTILINE)


def shown() -> set[str]:
    """Rooms of the picture, as paths."""
    found, above = set(), list[str]()
    for line in PAGE.partition(rooms.BEGIN)[2].partition(rooms.END)[0].splitlines():
        name = line.split("/")[0]
        depth = (len(name) - len(name.lstrip())) // 4
        above = [*above[:depth], name.strip()]
        found.add("/".join(above))
    return found


def test_every_room_is_in_the_picture() -> None:
    """`python -m tools.rooms` draws it again."""
    folders = {str(folder.relative_to(ROOT)) for package in PACKAGES for folder in rooms.rooms(ROOT / package, {})}
    assert shown() == folders, "run python -m tools.rooms"


def test_arrows_between_packages_are_imports() -> None:
    """Each package imports what the diagram says and nothing else, whether for types, lazily or at once.

    The native core is looked at apart: the page says what it takes from above.
    """
    imports = {
        (module.name.split(".")[0], name.split(".")[0])
        for module in house.modules().values()
        for name in module.imports
        if module.name.split(".")[0] != name.split(".")[0] and not module.name.startswith("remoting.native.")
    }
    assert set(ARROW.findall(PAGE)) == imports


@pytest.mark.parametrize("container", sorted(rooms.floors()))
def test_imports_go_down_the_floors(container: str) -> None:
    """The order of the picture is that of the imports, but for those that `.importlinter` names as exceptions."""
    text = (ROOT / ".importlinter").read_text()
    excused = re.findall(r"^    ([\w.*]+) -> ([\w.]+)$", text, re.MULTILINE)
    patterns = [(re.compile(source.replace(".", r"\.").replace("*", r"\w+")), target) for source, target in excused]
    ranks = rooms.floors()[container]
    depth = container.count(".") + 1
    up = []
    for module in house.modules().values():
        for name in module.imports:
            if not (module.name.startswith(f"{container}.") and name.startswith(f"{container}.")):
                continue
            here, there = (ranks.get(one.split(".")[depth]) for one in (module.name, name))
            excuse = any(source.fullmatch(module.name) and name == target for source, target in patterns)
            if here is not None and there is not None and there < here and not excuse:
                up.append(f"{module.name} -> {name}")
    assert not up, up
