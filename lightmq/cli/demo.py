"""``lightmq demo``: hands its arguments to the demo's own command line, where they are declared once.

Invariant: nothing of the demo is imported before the command is run.
"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

demo = App(name="demo", help_flags=[], version_flags=[], help="Run the main job on this machine's sensors.")


@demo.default
def run(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="See: lightmq demo --help")]) -> None:
    """Run the demo; its exit status says whether the accounting holds."""
    from lightmq.demo.options import parse
    from lightmq.demo.run import Demo

    sys.exit(Demo(parse(arguments)).run())
