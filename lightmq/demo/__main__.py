"""`python -m lightmq.demo`: the same as `lightmq demo`, what `demo.py` hands over to once the core is installed."""

from __future__ import annotations

import sys

from lightmq.demo.run import Demo, parse

if __name__ == "__main__":
    sys.exit(Demo(parse(sys.argv[1:])).run())
