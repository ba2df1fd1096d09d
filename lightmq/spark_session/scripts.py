"""Small shell scripts that stand for a program and start it with something changed, kept in the user's cache.

Invariant: a script is there whole or not at all, belongs to this user, and its folder is named by what is in it, so
that two versions never share one. Standard library alone.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def script(program: str, text: str) -> Path:
    """Write the script (once) and return its path, `.../bin/PROGRAM`."""
    name = f"{program}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "lightmq")
    for folder in (cache, Path(tempfile.gettempdir(), f"lightmq-{os.getuid()}")):
        try:
            return _written(folder / name / "bin" / program, text)
        except OSError:
            continue
    return _written(Path(tempfile.mkdtemp(prefix=f"lightmq-{program}-"), "bin", program), text)


def _written(target: Path, text: str) -> Path:
    """Write `target` in one step, so that a process starting beside us never runs half of it."""
    if target.exists() and target.stat().st_uid == os.getuid() and target.read_text() == text:
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, scratch = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    Path(scratch).chmod(0o755)
    Path(scratch).replace(target)
    return target
