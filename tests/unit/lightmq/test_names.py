"""The names of `from lightmq import …`: complete, lazy, documented, and all that documents and examples use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lightmq
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "python-api.md"
IMPORT = re.compile(r"^\s*(?:from|import)\s+(remoting)\b", re.MULTILINE)


@pytest.mark.parametrize("name", lightmq.__all__)
def test_every_name_is_there_and_on_the_page(name: str) -> None:
    assert getattr(lightmq, name) is getattr(lightmq, name)
    assert name in dir(lightmq)
    assert f"`{name}`" in PAGE.read_text()


def test_every_name_has_one_home() -> None:
    assert sorted(name for names in lightmq._HOMES.values() for name in names) == sorted(lightmq.__all__)


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Kafka'"):
        _ = lightmq.Kafka


def test_importing_it_imports_nothing_else() -> None:
    """The command line and Spark's workers import it at every start."""
    code = "import sys; before = set(sys.modules); import lightmq; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("['lightmq']", "['__future__', 'lightmq']")


def test_it_is_typed() -> None:
    """The marker that makes type checkers read the annotations of an installed package."""
    assert all((ROOT / package / "py.typed").is_file() for package in ("lightmq", "remoting"))


def test_documents_and_examples_import_from_here() -> None:
    """`remoting` is where the modules are today; users of a document must not depend on that."""
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.*"))]
    found = [str(path.relative_to(ROOT)) for path in texts if IMPORT.search(_text(path))]
    assert found == []


def _text(path: Path) -> str:
    return path.read_text() if path.suffix in (".md", ".py") else ""
