"""The core runs without numpy: none of its modules names it, and what `lightmq` serves starts where it is missing."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.support.tree import ROOT

CORE = ("broker", "console", "controller", "grpc_proxy", "lightmq", "mqtt_bridge", "mqtt_proxy", "remoting", "runtime")
HEAVY = {"numpy", "pandas"}
PROBE = """
import sys
sys.modules["numpy"] = None  # an import of it fails
import broker.app, controller.app, lightmq.servers.all_in_one, mqtt_bridge.app, mqtt_proxy.app
"""


def imported(text: str) -> set[str]:
    """The packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_no_module_of_the_core_names_numpy() -> None:
    """Nor what brings it, not even inside a function."""
    sources = [path for package in CORE for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 300
    wrong = [str(path.relative_to(ROOT)) for path in sources if imported(path.read_text()) & HEAVY]
    assert wrong == []


def test_servers_start_where_numpy_is_missing() -> None:
    """Everything that the servers import at their start, in a process that cannot import numpy."""
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
