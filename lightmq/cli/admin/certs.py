"""``lightmq certs``: a private authority and a certificate for TLS among the parts of an installation.

Run again with the same folder it keeps the authority and makes a new certificate: that is how one is renewed.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.outcome import CommandFailed
from runtime.clock import SystemClock

DAYS_DEFAULT = 825
DAYS_MAX = 3_650


def certs(
    folder: Annotated[Path, Parameter(help="Where ca.crt, ca.key, tls.crt and tls.key are; made if it is not there.")],
    *,
    name: Annotated[
        list[str],
        Parameter(
            name=["--name"],
            negative=(),
            help="Host name or address the certificate is for; repeatable. {0..2} in it makes three names.",
        ),
    ],
    days: Annotated[int, Parameter(help="How long the certificate is valid.")] = DAYS_DEFAULT,
) -> None:
    """Make a private authority, if the folder has none, and a certificate for these names.

    Keep ca.key away from the servers: whoever has it can pass for any of them.
    """
    from lightmq.credentials.certificates import make

    if not 1 <= days <= DAYS_MAX:
        raise CommandFailed(f"--days must be 1 to {DAYS_MAX}, not {days}")
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    made = make(folder, name, days=days, now=now)
    authority = "a new authority" if made.new_authority else "the authority that was there"
    sys.stderr.write(
        f"certificate for {', '.join(made.names)} by {authority} in {folder}, valid until {made.expires:%Y-%m-%d}\n"
    )
