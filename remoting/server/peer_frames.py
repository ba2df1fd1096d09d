"""The frames of one peer, as the server's accounts look at them: how far an unfinished one is, and what is proved.

It is the `Reader` of `intake.py` and the `Stranger` of `strangers.py`. Invariant: `begun` is True exactly while bytes
of a frame are held whose end has not come, and `intake` knows of that frame. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio

from remoting.protocol.errors import RemoteViolation
from remoting.server.access import PROVED_ATTRIBUTE, Access
from remoting.server.intake import REFUSALS, Intake
from remoting.transport.link import LOG, FrameLink

REFUSALS_MAX = 100
"""Refusals sent to a peer that has to authenticate and has not; one more closes the connection. They cost memory while
they wait to be read."""


class PeerFrames:
    """What one peer has sent and what it may cost."""

    def __init__(self, attributes: dict[str, object], link: FrameLink, intake: Intake, access: Access) -> None:
        """`attributes` are the peer's: there it is noted when it proves a key."""
        self.needs_no_proof = False
        """Whether the peer is trusted as it is; found out when its address is known."""
        self.begun = False
        """Whether a frame has begun and not ended."""
        self.frames_in = 0
        """Whole frames so far."""
        self._attributes = attributes
        self._link = link
        self._intake = intake
        self._access = access
        self._is_held = False
        self._refusals_left = REFUSALS_MAX
        link.on_read = self._read

    @property
    def proved(self) -> bool:
        """Whether its requests carry a proof, or need none."""
        return PROVED_ATTRIBUTE in self._attributes or self.needs_no_proof

    @property
    def idle(self) -> bool:
        """Whether nothing is read from it now."""
        return self._is_held or not self._link.writable

    def host(self) -> str:
        """Its address without the port."""
        return self._link.address.rpartition(":")[0]

    def names_key(self) -> bool:
        """Whether the unfinished frame has a header that names a known key."""
        try:
            head = self._link.decoder.unfinished_head()
        except RemoteViolation:
            return False
        return head is not None and self._access.knows(head)

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        self._is_held = True
        self._link.pause_reading()

    def resume_reading(self) -> None:
        """Read from it again, after it was paused."""
        self._is_held = False
        self._link.resume_reading()

    def cut(self, reason: str) -> None:
        """Close at once a connection that costs too much."""
        LOG.warning("connection with %s cut: %s", self._link.address, reason)
        self._link.abort(reason)

    def refused(self) -> None:
        """A request was refused for lack of a right; who has proved no key is refused so often and no more."""
        if self.proved or self._link.closing is not None:
            return
        if not self._refusals_left:
            self._intake.refused[REFUSALS] += 1
            self.cut(f"{REFUSALS}: {REFUSALS_MAX} requests refused and no key proved")
        self._refusals_left -= 1

    def ended(self) -> None:
        """The connection is gone, and with it what it held."""
        self._intake.finished(self, asyncio.get_running_loop().time())

    def _read(self, frames: int) -> None:
        """Something was read, and so many frames are whole with it."""
        self.frames_in += frames
        held = self._link.decoder.buffered_bytes
        if held or self.begun:
            self._account(held, whole=frames > 0)

    def _account(self, held: int, *, whole: bool) -> None:
        """So many bytes of a frame are held, after others or this one became whole."""
        now_s = asyncio.get_running_loop().time()
        if self.begun and (whole or not held):
            self._intake.finished(self, now_s)
        self.begun = bool(held) and self._link.closing is None
        if self.begun:
            size = self._link.decoder.frame_bytes
            reason = self._intake.progress(self, held, size, now_s)
            if reason:
                self.cut(f"{reason}: {held} bytes of an unfinished frame of {size}")
