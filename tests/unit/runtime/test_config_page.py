from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime.config import attribute_docs, setting, toml_text
from tools.configuration_reference import render


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Inner things."""

    size_bytes: int = setting(5, minimum=1)
    """How big | how
    small."""
    undocumented: bool = True


@dataclass(frozen=True, kw_only=True)
class Outer(Inner):
    """Outer things."""

    inner: Inner = field(default_factory=Inner)
    names: tuple[str, ...] = field(default_factory=lambda: ("a",))
    """Names."""


def test_docs_are_read_from_the_source_and_from_bases() -> None:
    assert attribute_docs(Outer) == {"size_bytes": "How big | how small.", "names": "Names."}


def test_the_page_has_a_section_per_table() -> None:
    page = render([("outer", Outer)])
    assert "## `[outer]`\n\nOuter things.\n" in page
    assert "## `[outer.inner]`\n\nInner things.\n" in page
    assert "| `size_bytes` | int | `5` | at least 1 | How big \\| how small. |" in page
    assert '| `names` | list of strings | `["a"]` |  | Names. |' in page


def test_values_as_toml() -> None:
    values = [toml_text(value) for value in (None, False, Path("a"), 'q"', ("a", "b"), 1.5)]
    assert values == ["unset", "false", '"a"', '"q\\""', '["a", "b"]', "1.5"]
