"""Bounds of one HTTP/2 connection, and the budgets of what a peer may ask for without doing any work.

    reset streams                 resets_max a period                      (rapid reset, CVE-2023-44487)
    PING, SETTINGS, empty DATA,   control_frames_max a period, counted     (ping, settings and empty-frame floods)
    PRIORITY, unknown, late       anew when an answer begins
    CONTINUATION                  continuations_max a header block, of     (CONTINUATION flood, CVE-2024-27316)
                                  block_bytes_max together

A period is what lies between two calls of `refill`; the connection's user makes them by its clock. All connections of
an address together have a few times as much as one (`AddressBudget`), so that many connections are no way around it;
once that is used up, each of them may still do what a peer does that gives up a call now and then (`SPARED`).
Invariant: a peer that is beyond a bound is refused with ENHANCE_YOUR_CALM, which names the bound. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpc_proxy.http2.errors import ErrorCode, Http2Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds of one connection."""

    streams_max: int = 1_000
    """Streams at a time; a further one is refused."""
    header_list_bytes_max: int = 16_384
    """Size of a request's fields, 32 bytes more for each; a larger list arrives as None."""
    window_bytes: int = 256 * 1024
    """What a peer may send on a stream before it is consumed."""
    connection_window_bytes: int = 4 * 1024 * 1024
    """What a peer may send on all streams before it is consumed."""
    resets_max: int = 1_000
    """Streams that the peer resets within a period, and that it has refused."""
    control_frames_max: int = 2_000
    """Frames within a period that carry nothing."""
    budgets_per_address: int = 4
    """The budget of all connections of an address together, in that of one."""
    continuations_max: int = 32
    """CONTINUATION frames of one header block."""

    @property
    def block_bytes_max(self) -> int:
        """Bytes of one header block as it comes."""
        return 2 * self.header_list_bytes_max + 16_384


SPARED = 16
"""What each connection may use of a budget although its address has used up its own."""


class AddressBudget:
    """What all connections of an address have left in this period."""

    __slots__ = ("_limits", "connections", "control_left", "resets_left")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self.connections = 0
        """Those that are open."""
        self.control_left = self.resets_left = 0
        self.refill()

    def refill(self) -> None:
        """Let the address have all of it again."""
        self.control_left = self._limits.budgets_per_address * self._limits.control_frames_max
        self.resets_left = self._limits.budgets_per_address * self._limits.resets_max


class Budget:
    """What a peer has left in this period."""

    __slots__ = ("_control_left", "_limits", "_resets_left", "address")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self.address = AddressBudget(limits)
        """What it shares with others; one of its own until it is set."""
        self._control_left = limits.control_frames_max
        self._resets_left = limits.resets_max

    def refill(self) -> None:
        """Let the peer have all of it again."""
        self._control_left = self._limits.control_frames_max
        self._resets_left = self._limits.resets_max

    def answered(self) -> None:
        """An answer began: a peer that works may test the connection as often as it likes."""
        self.address.control_left += self._limits.control_frames_max - self._control_left
        self._control_left = self._limits.control_frames_max

    def control(self) -> None:
        """Count a frame that carries nothing. Http2Violation when there are too many."""
        self._control_left -= 1
        self.address.control_left -= 1
        if self._control_left < 0:
            raise Http2Violation(ErrorCode.ENHANCE_YOUR_CALM, "control_frames_max is reached")
        if self.address.control_left < 0 and self._control_left < self._limits.control_frames_max - SPARED:
            raise Http2Violation(ErrorCode.ENHANCE_YOUR_CALM, "control_frames_max of the address is reached")

    def reset(self) -> None:
        """Count a stream that ended in vain. Http2Violation when there are too many."""
        self._resets_left -= 1
        self.address.resets_left -= 1
        if self._resets_left < 0:
            raise Http2Violation(ErrorCode.ENHANCE_YOUR_CALM, "resets_max is reached")
        if self.address.resets_left < 0 and self._resets_left < self._limits.resets_max - SPARED:
            raise Http2Violation(ErrorCode.ENHANCE_YOUR_CALM, "resets_max of the address is reached")
