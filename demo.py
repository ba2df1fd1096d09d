"""`python3 demo.py`: set up the environment, then run the main job on this machine's own sensors.

The standard library alone, because nothing is installed yet: the rest happens in `lightmq.demo` inside `.venv/`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

import bootstrap


def main() -> int:
    """Install the core and hand over to the demo; it installs Spark and compiles while the broker takes readings."""
    try:
        bootstrap.ensure("core")
        if not bootstrap.spark_is_here():
            os.environ.update(bootstrap.uv_environment())
        if not bootstrap.is_compiled():
            os.environ["LIGHTMQ_DEMO_COMPILES"] = str(bootstrap.ROOT / "tools" / "bootstrap.py")
    except bootstrap.SetupFailed as failure:
        print(f"set-up failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted; the next run continues it", file=sys.stderr)
        return 130
    os.execv(bootstrap.PYTHON, [str(bootstrap.PYTHON), "-m", "lightmq.demo", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
