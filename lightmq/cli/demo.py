"""``lightmq demo``: hands its arguments to the demo's own command line, where they are declared once.

Invariant: nothing of the demo is imported before the command is run.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated

from cyclopts import App, Parameter

from lightmq.cli.outcome import CommandFailed
from lightmq.extras import pip_install, requirements_of

EXAMPLE_MODULES = ("psutil", "matplotlib", "plotly")
"""What the extra `examples` brings; Spark is installed by the demo itself while the broker already runs."""

demo = App(
    name="demo",
    help_flags=[],
    version_flags=[],
    help="This machine's sensors by MQTT to Spark, and commands back.",
)


@demo.default
def run(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="See: lightmq demo --help")]) -> None:
    """Run the demo; its exit status is 0 only if the accounting holds."""
    check_modules(EXAMPLE_MODULES)
    from lightmq.demo.run import Demo, parse

    sys.exit(Demo(parse(arguments)).run())


def check_modules(names: tuple[str, ...]) -> None:
    """Raises CommandFailed with the command that installs what is missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(
            f"the demo needs {', '.join(missing)}; install them with: "
            f"{pip_install(*requirements_of('spark'), *requirements_of('examples'))}"
        )
