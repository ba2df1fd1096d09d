"""Says what is not installed, in one sentence, before anything else is imported.

Invariant: nothing is imported here but the standard library, so this works in any Python. Thread rule: the main thread.
"""

from __future__ import annotations

import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = {
    "lightmq": "lightmq",
    "pyspark": "pyspark",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "matplotlib": "matplotlib",
    "psutil": "psutil",
    "sklearn": "scikit-learn",
}
"""By module, the package that brings it."""


def require() -> None:
    """Return when a story can run in this Python; end the program with a sentence otherwise.

    From here on Ctrl-C ends a story without a traceback, until `Play` handles it: a busy machine imports for seconds.
    """
    if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parents[1]:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        python, name = shlex.quote(sys.executable), Path(sys.argv[0]).stem
        raise SystemExit(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed for {python}; in a checkout of "
            f"LightMQ, run `make example NAME={name}`, or install with `{python} -m pip install '.[examples]'`."
        )
