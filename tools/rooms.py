"""The picture of the rooms in docs/architecture.md, from the layers of `.importlinter` and the headings of READMEs.

`python -m tools.rooms` updates it after a room was added, moved or renamed. Rooms of a container are listed in the
order of its layers: upper ones import lower ones.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: written by python -m tools.rooms -->\n```text\n", "```\n\n<!-- end of rooms -->"
PACKAGES = (
    "lightmq",
    "pyspark_rocketmq",
    "spark_connector",
    "console",
    "mqtt_bridge",
    "grpc_proxy",
    "mqtt_proxy",
    "broker",
    "controller",
    "remoting",
    "runtime",
)
WIDTH = 118


def floors() -> dict[str, dict[str, int]]:
    """Container -> room -> number of its floor, counted from the top."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    found = {}
    for name in contracts.sections():
        contract = contracts[name]
        if "containers" in contract:
            rows = contract["layers"].strip().splitlines()
            ranks = {room.strip(): number for number, row in enumerate(rows) for room in re.split("[|:]", row)}
            found[contract["containers"].strip()] = ranks
    return found


def is_room(folder: Path) -> bool:
    """Whether there are modules in the folder or below it."""
    return any(path.name != "__init__.py" for path in folder.rglob("*.py"))


def rooms(folder: Path, ranks: dict[str, dict[str, int]]) -> Iterator[Path]:
    """The folder and all rooms inside, each container's from its top floor down."""
    yield folder
    rank = ranks.get(".".join(folder.relative_to(ROOT).parts), {})
    inside = [path for path in folder.iterdir() if path.is_dir() and is_room(path)]
    for path in sorted(inside, key=lambda path: (rank.get(path.name, len(rank)), path.name)):
        yield from rooms(path, ranks)


def purpose(folder: Path) -> str:
    """The text of its README's heading, or the first sentence below it."""
    heading, *lines = (folder / "README.md").read_text().splitlines()
    in_heading = heading.lstrip("# ").partition(": ")[2]
    text = in_heading or next((line for line in lines if line.strip()), "")
    text = re.sub(r"\*\*|^Purpose: |\[|\]\([^)]*\)", "", text)
    return text.partition(". ")[0].rstrip(".:")


def picture() -> str:
    """All rooms, a line each, indented by depth."""
    ranks = floors()
    lines = []
    for package in PACKAGES:
        for folder in rooms(ROOT / package, ranks):
            depth = len(folder.relative_to(ROOT).parts) - 1
            line = f"{'    ' * depth + folder.name + '/':<30}{purpose(folder)}"
            lines.append(line if len(line) <= WIDTH else line[:WIDTH].rpartition(" ")[0] + " …")
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Write the picture into the page."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + picture() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
