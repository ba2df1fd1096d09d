"""`python -m lightmq.demo`: see `run`. Ctrl-C while it is still being loaded ends it with a word, too."""

from __future__ import annotations

import sys


def main() -> int:
    """Load and run the demo."""
    try:
        from lightmq.demo.run import Demo, parse

        return Demo(parse(sys.argv[1:])).run()
    except KeyboardInterrupt:
        sys.stderr.write("\nthe demo was stopped\n")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
