"""Client certificates: the name that the listener has verified is the user.

Invariant: a user name in the CONNECT must be the certificate's; a certificate for one is no way to be another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remoting.access.identity import Identity, Shown, Unproven
from runtime.files import WatchedFile


class CertificateMethod:
    """Names in verified client certificates."""

    name = "certificate"

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """As `at_hand`."""
        return self.at_hand(shown)

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The user of the certificate; without one it is not for this method to say."""
        if not shown.certificate:
            return None
        if shown.username and shown.username != shown.certificate:
            return Unproven.DENIED
        return Identity(shown.certificate, anonymous=False, client_id=shown.client_id)

    def files(self) -> Sequence[WatchedFile[Any]]:
        """None: the listener reads certificates."""
        return ()

    def look_again(self) -> None:
        """Nothing was read."""

    async def close(self) -> None:
        """Nothing runs."""
