"""The pages of the site as they are assembled: nothing is left out, no link leaves, the names are those of the code."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import lightmq
from tests.support.tree import ROOT
from tools import bootstrap, site, site_pages

NAVIGATION = re.compile(r"^ +- (?:.*: )?([\w/.-]+\.md)$", re.MULTILINE)


@pytest.fixture(scope="module")
def assembled() -> site_pages.Site:
    return site_pages.assemble(ROOT)


def tree(root: Path, **files: str) -> Path:
    for name, text in {"README": "# Us", "CHANGELOG": "", "CONTRIBUTING": "", "SECURITY": ""}.items() | files.items():
        path = root / (name if "/" in name else f"{name}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("examples", "benchmarks"):
        (root / folder).mkdir()
        (root / folder / "README.md").write_text("")
    return root


def test_links_fit_the_site(tmp_path: Path) -> None:
    """To a page, an anchor, a document outside docs, a file, a folder with and without a README, a picture and away."""
    page = (
        "[a](../README.md#x) [b](#y) [c](../../README.md) [d](../../core/main.py) [e](../../core) [f](../../examples)"
        " ![g](../assets/g.png) [h](https://example.org) [![k](../assets/g.png)](../../README.md)"
        "\n```\n[i](../../README.md)\n```\n"
    )
    root = tree(
        tmp_path,
        **{
            "docs/README.md": "# Home",
            "docs/howto/x.md": page,
            "core/main.py": "1",
            "docs/assets/g.png": "",
            "core/z.py": "2",
        },
    )
    found = site_pages.assemble(root)
    assert found.texts["howto/x.md"] == (
        "[a](../index.md#x) [b](#y) [c](../project/README.md) [d](../source/core/main.py.txt) [e](../source/core.txt)"
        " [f](../project/examples/README.md) ![g](../assets/g.png) [h](https://example.org)"
        " [![k](../assets/g.png)](../project/README.md)\n```\n[i](../../README.md)\n```\n"
    )
    assert found.texts["source/core.txt"] == "# core/main.py\n\n1\n\n# core/z.py\n\n2"
    assert set(found.files) == {"assets/g.png", "source/core/main.py.txt"}


def test_every_link_of_the_site_leads_to_something(assembled: site_pages.Site) -> None:
    """The quick half of the check of the built site, which follows anchors too."""
    there = {*assembled.texts, *assembled.files, *site_pages.GENERATED}
    lost = []
    for name, text in assembled.texts.items():
        for found in site_pages.LINK.finditer(site_pages.FENCE.sub("", text)) if name.endswith(".md") else ():
            target = found["target"]
            if target and "://" not in target and not target.startswith("mailto:"):
                path = (ROOT / name).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()
                lost += [] if path in there else [f"{name}: {target}"]
    assert not lost


def test_the_navigation_has_every_page(assembled: site_pages.Site) -> None:
    """Decisions are behind their own table, documents of rooms behind the pages that link to them."""
    named = set(NAVIGATION.findall((ROOT / "mkdocs.yml").read_text()))
    pages = {name for name in assembled.texts if name.endswith(".md")} | set(site_pages.GENERATED)
    apart = {name for name in pages if re.match(r"decisions/\d|project/.*/", name)}
    assert named - pages == set()
    assert pages - apart - named == set()


def test_the_reference_has_every_public_name() -> None:
    """A new name of `lightmq` needs a place in it."""
    shown = [name for names in site_pages.API_GROUPS.values() for name in names]
    assert sorted([*shown, "__version__"]) == sorted(lightmq.__all__)
    assert "::: lightmq.Producer" in site_pages.api_page()


def test_the_reference_has_every_command() -> None:
    """Also those of groups, with their options."""
    page = site_pages.command_page(site.command_line())
    assert "see [howto/bridge.md](howto/bridge.md)" in page
    assert {"## lightmq up", "### lightmq cluster status"} <= set(page.splitlines())
    assert "--password-file" in page


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    """Those that have a page; the root leads to the one that was built."""
    for version in ("0.9.0", "0.10.0", "empty"):
        (tmp_path / version).mkdir()
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / version / "index.html").write_text("")
    site.list_versions(tmp_path, "0.9.0")
    listed = (tmp_path / "versions.js").read_text().partition(" = ")[2].rstrip(";\n")
    assert json.loads(listed) == ["0.10.0", "0.9.0"]
    assert 'url=0.9.0/index.html"' in (tmp_path / "index.html").read_text()


def test_small_pictures_are_taken(tmp_path: Path) -> None:
    """Of the views that documents show; the others are named with the reason."""
    source, target = tmp_path / "screenshots", tmp_path / "assets"
    source.mkdir()
    (source / "overview-light.png").write_bytes(b"1")
    (source / "clients-light.png").write_bytes(bytes(site_pages.PICTURES_BYTES_MAX + 1))
    (source / "other-light.png").write_bytes(b"1")
    left_out = site.take_pictures(source, target)
    assert [path.name for path in target.iterdir()] == ["overview.png"]
    assert any(each.startswith("clients: 200001 bytes") for each in left_out)
    assert any(each.startswith("topics: ") for each in left_out)


def test_the_pictures_of_the_console_are_those_that_documents_show() -> None:
    """Each is taken from the browser tests, and none lies about unseen."""
    shown = set()
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        shown |= set(re.findall(r"assets/console/([\w-]+)\.", document.read_text()))
    kept = {path.stem for path in site.PICTURES.iterdir()}
    assert shown == kept == set(site.PICTURE_NAMES)


def test_pictures_in_the_repository_are_small() -> None:
    """A clone pays for every version of each."""
    pictures = [path for path in (ROOT / "docs" / "assets").rglob("*") if path.suffix in {".png", ".webp", ".svg"}]
    assert [path.name for path in pictures if path.stat().st_size > site_pages.PICTURES_BYTES_MAX] == []


def test_the_generator_is_declared_once_more_for_the_tests() -> None:
    """`make site` installs it without the rest of the extra `dev`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(bootstrap.LAYERS["site"][1:]) <= set(extras["dev"])


def test_blocks_stand_alone(assembled: site_pages.Site) -> None:
    """A line right behind a block would be a paragraph for one parser and bare text for the other."""
    close = []
    for name, text in assembled.texts.items():
        ends = [block.end() for block in site_pages.FENCE.finditer(text) if block[0].startswith("```")]
        close += [name for end in ends if text[end : end + 2].strip()]
    assert not close
