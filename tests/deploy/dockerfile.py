"""A Dockerfile as its stages: enough of the language for the one that is kept in `deploy/docker`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.tree import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
KEYWORDS = frozenset(
    (
        *("FROM", "ARG", "LABEL", "RUN", "COPY", "ENV", "WORKDIR", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK"),
        *("ENTRYPOINT", "CMD"),
    )
)


@dataclass
class Stage:
    """One `FROM … AS name` with its instructions, those of the stages it is made from first."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, keyword: str) -> str:
        """The last instruction of this kind; empty without one."""
        return next((text for kind, text in reversed(self.instructions) if kind == keyword), "")

    def all(self, keyword: str) -> list[str]:
        """Every instruction of this kind."""
        return [text for kind, text in self.instructions if kind == keyword]

    def arguments(self, keyword: str) -> list[str]:
        """An instruction in its JSON form."""
        found: Any = json.loads(self.last(keyword))
        assert isinstance(found, list)
        assert all(isinstance(word, str) for word in found)
        return found

    def ports(self) -> set[int]:
        """The ports of EXPOSE."""
        return {int(port) for text in self.all("EXPOSE") for port in text.split()}

    def health_command(self) -> list[str]:
        """The command of HEALTHCHECK."""
        found: list[str] = json.loads(self.last("HEALTHCHECK").partition("CMD ")[2])
        return found

    def health_url(self) -> tuple[int, str]:
        """Port and page that HEALTHCHECK requests."""
        found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", self.last("HEALTHCHECK"))
        assert found is not None, f"{self.name}: no address in {self.last('HEALTHCHECK')!r}"
        return int(found[1]), found[2]


def logical_lines(text: str) -> list[str]:
    """Lines with their continuations joined, without comments."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line.strip() for line in "\n".join(kept).replace("\\\n", " ").splitlines() if line.strip()]


def defaults(path: Path = DOCKERFILE) -> dict[str, str]:
    """The arguments with their defaults."""
    return dict(re.findall(r"^ARG (\w+)=(.*)$", path.read_text(), re.MULTILINE))


def stages(path: Path = DOCKERFILE) -> dict[str, Stage]:
    """The stages by name, each with what it inherits."""
    found: dict[str, Stage] = {}
    current: Stage | None = None
    for line in logical_lines(path.read_text()):
        keyword, _, rest = line.partition(" ")
        assert keyword in KEYWORDS, f"unknown instruction {keyword!r}"
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            assert name, f"a stage without a name: {line}"
            inherited = found[base].instructions if base in found else []
            current = found[name] = Stage(name, base, list(inherited))
        elif keyword != "ARG":
            assert current is not None, "something before the first FROM"
            current.instructions.append((keyword, " ".join(rest.split())))
    return found
