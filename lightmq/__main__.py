"""The command line: ``lightmq`` and ``python -m lightmq``.

``--version`` is answered before anything is imported; everything else goes to :mod:`lightmq.cli.application`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit status: 0 done, 1 could not, 2 not understood, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        from lightmq.version import VERSION

        sys.stdout.write(f"lightmq {VERSION}\n")
        return 0
    from lightmq.cli.application import run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
