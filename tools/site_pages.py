"""Assembles the pages of the documentation site from the tree: documents keep their text, links are made to fit.

Invariant: a page reads the same here and in the repository; diagrams are pictures here. `docs/x.md` becomes `x.md`, any
other document that a page links to becomes `project/<its path>`, and any other file a text below `source/`, so that no
link leaves the site. Pages that exist only here (command line, API by name) are made from what the code declares. Pure
but for reading the tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools import diagrams

LINK = re.compile(r"\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
"""A link or a picture; the text of a link may be a picture."""
DOCUMENT = re.compile(r"\bdocs/([\w/-]+\.md)")
"""How the texts of commands and of configuration keys name a document."""
FENCE = re.compile(r"^(?:```.*?^```|<!--.*?-->)$", re.MULTILINE | re.DOTALL)
HOME = "index.md"
ROOTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "benchmarks/README.md")
"""Documents outside `docs` that the navigation names."""
GENERATED = ("command-line.md", "api.md")
PICTURES_BYTES_MAX = 200_000
"""The largest picture that is kept in the repository, and so in the site."""

API_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Threads": ("Producer", "Consumer", "Admin"),
    "asyncio": ("connect", "AsyncProducer", "AsyncConsumer", "AsyncAdmin"),
    "Messages and settings": ("Message", "Sent", "ProducerSettings", "PullResult", "StoredMessage"),
    "Keys and TLS": ("Signer", "read_signer", "ClientTls"),
    "Errors": (
        *("LightMQError", "Refused", "ConnectionLost", "Unreachable", "TlsFailed", "NotMaster", "RequestTimeout"),
        *("LocalMisuse", "RemoteViolation", "CorruptRecord", "ArrowMissing"),
    ),
}
"""The names of `from lightmq import …` as the page shows them; a test compares them with `lightmq.__all__`."""
SPARK_NAMES = (
    "lightmq.spark.session",
    "lightmq.spark.run_forever",
    "lightmq.spark.register_topics",
    "spark_connector.batch_writer.BatchWriter",
    "spark_connector.listener.RocketMQProgressListener",
    "spark_connector.listener.progress_lags",
)


@dataclass
class Site:
    """What the site consists of: path in the site -> text, or the file to copy."""

    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


def place(path: Path) -> str:
    """Where a file or folder of the tree, relative to its root, is in the site."""
    name = path.as_posix()
    if name == "docs/README.md":
        return HOME
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    # MkDocs leaves out files that begin with a dot.
    return f"project/{name}" if path.suffix == ".md" else f"source/{name.lstrip('.')}.txt"


def assemble(root: Path) -> Site:
    """All documents below `docs`, and from there everything that they link to."""
    site = Site()
    waiting = [path.relative_to(root) for path in sorted((root / "docs").rglob("*.md"))] + [
        Path(name) for name in ROOTS
    ]
    for asset in sorted(path for path in (root / "docs" / "assets").rglob("*") if path.is_file()):
        site.files[place(asset.relative_to(root))] = asset
    while waiting:
        document = waiting.pop()
        if place(document) in site.texts:
            continue
        text, linked = fitted(root, document)
        site.texts[place(document)] = text
        for target in linked:
            if target.suffix == ".md":
                waiting.append(target)
            elif (root / target).is_dir():
                site.texts[place(target)] = listing(root, target)
            else:
                site.files[place(target)] = root / target
    return site


def listing(root: Path, folder: Path) -> str:
    """The files of a folder that is linked as a whole, one after the other."""
    parts = (f"# {path.relative_to(root)}\n\n{path.read_text()}" for path in sorted((root / folder).rglob("*.py")))
    return "\n\n".join(parts)


def fitted(root: Path, document: Path) -> tuple[str, list[Path]]:
    """The text with links that fit the site, and the files and folders that it links to."""
    linked: list[Path] = []
    own = Path(place(document)).parent

    def fit(found: re.Match[str]) -> str:
        text, target, anchor = LINK.sub(fit, found["text"]), found["target"], found["anchor"] or ""
        if not target or "://" in target or target.startswith(("mailto:", "/")):
            return f"[{text}]({target}{anchor})"
        path = Path(os.path.relpath((root / document.parent / target).resolve(), root.resolve()))
        if (root / path / "README.md").is_file():
            path /= "README.md"
        if place(path) in GENERATED:
            return f"[{text}]({target}{anchor})"
        linked.append(path)
        return f"[{text}]({os.path.relpath(place(path), own)}{anchor})"

    text = outside_code((root / document).read_text(), fit)
    return diagrams.pictured(text, os.path.relpath("assets/diagrams", own)), linked


def outside_code(text: str, fit: object) -> str:
    """The text with every link outside code blocks replaced."""
    done, end = [], 0
    for block in FENCE.finditer(text):
        done += [LINK.sub(fit, text[end : block.start()]), block[0]]  # type: ignore[call-overload]
        end = block.end()
    return "".join([*done, LINK.sub(fit, text[end:])])  # type: ignore[call-overload]


def api_page() -> str:
    """The API by name, for mkdocstrings to fill from the docstrings."""
    lines = [
        "# Python API, by name",
        "",
        "Everything that `from lightmq import …` offers, from its docstrings. [By task](python-api.md), with examples.",
    ]
    for title, names in API_GROUPS.items():
        lines += ["", f"## {title}", *(f"\n::: lightmq.{name}" for name in names)]
    lines += ["", "## Spark", *(f"\n::: {name}" for name in SPARK_NAMES)]
    return "\n".join(lines) + "\n"


def linked(text: str) -> str:
    """A text for a page in `docs`, with links where documents are named."""
    return DOCUMENT.sub(r"[\1](\1)", text)


def command_page(commands: str) -> str:
    """The command line from what the commands declare, as cyclopts prints it in Markdown."""
    return (
        "# Command line\n\nEvery command with its options, as `--help` shows them. `lightmq config explain KEY` "
        "explains a [configuration key](configuration.md); exit statuses, times and profiles are in the "
        f"[guide](howto/command-line.md).\n\n{linked(commands)}"
    )


def write(site: Site, folder: Path, extra: Iterable[tuple[str, str]] = ()) -> None:
    """Write the pages into an empty folder."""
    for name, text in [*site.texts.items(), *extra]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, source in site.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(source.read_bytes())
