"""Documents are data too: their links lead somewhere and their words stay inside the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from remoting.protocol.frames.codes import RequestCode
from tests.support.tree import ROOT, relative
from tools import http_api

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FOREIGN = re.compile(r"/work/|/tmp/(?!lightmq|\$)|\.library|subagent|\bhelper-\d|issue #?\d+ of|CLAUDE", re.IGNORECASE)


def tracked(*patterns: str) -> list[Path]:
    """Files under version control that match a pattern; all files where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


DOCUMENTS = tracked("*.md")


def links(document: Path) -> list[tuple[str, str]]:
    """Relative links of a page: file (empty: the page itself) and anchor (empty: none)."""
    found = LINK.findall(CODE.sub("", document.read_text()))
    return [(target, anchor) for target, anchor in found if "://" not in target and not target.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may name, by the rule of GitHub."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(CODE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
    return {name if not number else f"{name}-{number}" for name, times in found.items() for number in range(times)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links point at files that exist, and at headings that those have."""
    broken = []
    for target, anchor in links(document):
        page = document.parent / target if target else document
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert not broken, f"{relative(document)} links to {broken}"


def test_every_page_is_linked() -> None:
    """A reader finds each page below `docs` from another one."""
    linked = {(document.parent / target).resolve() for document in DOCUMENTS for target, _ in links(document)}
    lost = [relative(page) for page in tracked("docs/*.md") if page.resolve() not in linked]
    assert not lost, lost


def test_the_page_of_the_http_api_is_what_the_console_declares() -> None:
    """Its examples fit the declared structures."""
    assert http_api.PAGE.read_text() == http_api.page(), "run python -m tools.http_api"
    for operation in http_api.table.OPERATIONS:
        http_api.check(operation)


def test_every_private_request_is_documented() -> None:
    """With its code and its name, in the table of the wire format."""
    page = (ROOT / "docs/formats/private-requests.md").read_text()
    codes = {name: code for name, code in vars(RequestCode).items() if isinstance(code, int) and 9_000 < code < 10_000}
    assert len(codes) > 50
    assert [name for name in codes if not re.search(rf"\b{name}\b", page)] == []
    spans = re.findall(r"\b(9\d{3})(?:\u2013(9\d{3}))?\b", page)  # 9010 to 9014 with a dash between
    shown = {code for first, last in spans for code in range(int(first), int(last or first) + 1)}
    assert set(codes.values()) - shown == set()


def test_anchors_are_those_of_headings(tmp_path: Path) -> None:
    """As GitHub makes them; comments in code are no headings."""
    page = tmp_path / "page.md"
    page.write_text(
        "# `$SYS`, all\n## MQTT 5: codes\n```sh\n# no heading\n```\n## [A link](x.md) twice\n## A link twice\n"
    )
    assert anchors(page) == {"sys-all", "mqtt-5-codes", "a-link-twice", "a-link-twice-1"}


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
