"""Steps and checks of the Spark scenarios; servers and sessions are fixtures of conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Frames = Callable[..., Any]
Publish = Callable[[str, range], None]


def numbers(frame: Any) -> list[int]:
    """The bodies as numbers, sorted."""
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def run(frame: Any, server: str, checkpoint: Path, **options: str) -> Any:
    """Run a stream into the sink until everything available now has been written."""
    writer = frame.writeStream.format("rocketmq").options(nameServer=server, **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def forget_last_commit(checkpoint: Path) -> None:
    """Restore what a driver leaves behind that was killed between the sink's commit and its own."""
    commits = checkpoint / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
