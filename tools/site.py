"""`make site`: the documentation as a site in `site/<version>/`, searchable without a network or a server.

    python -m tools.site                build the site of this checkout
    python -m tools.site --pictures     first copy the pictures of the console that its browser tests made to docs/

Invariant: what is built is sound, or the exit status is 1: warnings of MkDocs are errors, every link and anchor is
followed, nothing is fetched from elsewhere. Other versions in `site/` stay; `site/index.html` leads to this one.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lightmq.version import VERSION
from tools import site_links, site_pages

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "site" / "pages"
SITE = ROOT / "site"
SCREENSHOTS = ROOT / "tests" / "browser" / "screenshots"
PICTURES = ROOT / "docs" / "assets" / "console"
PICTURE_NAMES = ("overview", "topics", "live", "clients", "trace", "cluster-failover")
"""Views of the console that the documents show; screenshots are named after the view and its colours."""


def command_line() -> str:
    """The commands in Markdown, from their declarations."""
    from lightmq.cli.application import application

    found: str = application().generate_docs(output_format="markdown")
    return found[found.index("**Servers**") :]  # behind a heading and a table of contents, which the site has already


def build(target: Path) -> list[str]:
    """Build the site into a folder; return what is wrong with it."""
    shutil.rmtree(PAGES, ignore_errors=True)
    generated = (("command-line.md", site_pages.command_page(command_line())), ("api.md", site_pages.api_page()))
    site_pages.write(site_pages.assemble(ROOT), PAGES, generated)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    # Without the advertisement of another generator that Material prints into every build.
    done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode != 0:
        return ["mkdocs found the warnings above"]
    (target / "404.html").unlink()  # its links begin at the root of a server, which a folder is not
    return site_links.problems(target)


def list_versions(site: Path, version: str) -> None:
    """Name the versions in `site/` for the selector of the pages, and lead from its root to the given one."""
    found = sorted((path.parent.name for path in site.glob("*/index.html")), key=version_key, reverse=True)
    (site / "versions.js").write_text(f"window.documentationVersions = {json.dumps(found)};\n")
    links = "".join(f'<li><a href="{html.escape(each)}/index.html">{html.escape(each)}</a></li>' for each in found)
    (site / "index.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>LightMQ</title>'
        f'<meta http-equiv="refresh" content="0; url={html.escape(version)}/index.html">'
        f"<p>Versions of the LightMQ documentation:</p><ul>{links}</ul></html>\n"
    )


def version_key(version: str) -> list[tuple[int, str]]:
    """Sorts 0.10.0 behind 0.9.0."""
    return [(int(part) if part.isdigit() else -1, part) for part in version.split(".")]


def take_pictures(source: Path = SCREENSHOTS, target: Path = PICTURES) -> list[str]:
    """Copy the pictures that documents show; return what was left out, with the reason."""
    left_out = []
    target.mkdir(parents=True, exist_ok=True)
    for name in PICTURE_NAMES:
        made = [source / f"{name}-light{suffix}" for suffix in (".webp", ".png")]
        picture = next(filter(Path.is_file, made), None)
        if picture is None:
            left_out.append(f"{name}: the browser tests have made none")
        elif picture.stat().st_size > site_pages.PICTURES_BYTES_MAX:
            left_out.append(f"{name}: {picture.stat().st_size} bytes, at most {site_pages.PICTURES_BYTES_MAX}")
        else:
            shutil.copyfile(picture, target / f"{name}{picture.suffix}")
    return left_out


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="build the documentation site")
    parser.add_argument("--pictures", action="store_true", help="copy the console's screenshots to docs/assets first")
    parser.add_argument("--version", default=VERSION, help="folder below site/")
    given = parser.parse_args(arguments)
    for missing in take_pictures() if given.pictures else ():
        print(f"no picture of {missing}", file=sys.stderr)
    target = SITE / given.version
    wrong = build(target)
    for each in wrong:
        print(each, file=sys.stderr)
    if wrong:
        return 1
    list_versions(SITE, given.version)
    print(f"the site is in {SITE.relative_to(ROOT)}/: open {(SITE / 'index.html').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
