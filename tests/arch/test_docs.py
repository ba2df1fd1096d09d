"""Documents are data too: their links lead somewhere and their words stay inside the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.tree import ROOT, relative

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
FOREIGN = re.compile(r"/work/|/tmp/(?!lightmq|\$)|\.library|subagent|\bhelper-\d|issue #?\d+ of|CLAUDE", re.IGNORECASE)


def tracked(*patterns: str) -> list[Path]:
    """Files under version control that match a pattern; all files where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


DOCUMENTS = tracked("*.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links point at files that exist."""
    broken = []
    for target in LINK.findall(document.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        if not (document.parent / target).exists():
            broken.append(target)
    assert not broken, f"{relative(document)} links to {broken}"


def test_the_project_speaks_of_itself_alone() -> None:
    """No machine paths and no words of the place where it was written."""
    found = []
    for path in tracked("*.py", "*.md", "*.toml", "Makefile", ".ci/*", "*.yaml", "*.yml"):
        if path == Path(__file__).resolve():
            continue
        found += [f"{path.relative_to(ROOT)}: {match}" for match in FOREIGN.findall(path.read_text(errors="replace"))]
    assert not found, found


def test_first_documents_exist() -> None:
    """What a newcomer and an operator look for first."""
    for name in (
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/architecture.md",
        "docs/life_of_a_message.md",
        "SECURITY.md",
        "benchmarks/README.md",
        "docs/configuration.md",
        "docs/delivery-contract.md",
        "docs/errors.md",
        "docs/howto/backup-and-disk.md",
        "docs/howto/bridge.md",
        "docs/howto/metrics.md",
        "docs/howto/passwords.md",
        "docs/howto/run-as-processes.md",
        "docs/spark-options.md",
        "docs/decisions/README.md",
    ):
        assert (ROOT / name).stat().st_size > 200, f"{name} is missing or empty"
