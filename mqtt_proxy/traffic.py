"""What one client sends and is sent: messages and bytes since it connected, and their rates over the last seconds.

    Windows    of an event loop: each is at least `WINDOW_MS` long, whoever looks
    Flow       one direction of one connection: totals, and what they were when its last two windows began

A rate covers the time since the window before the present one began, 5 to 10 seconds; so it does not depend on who
asks, or how often. A flow notes the beginning of a window with the first bytes or messages in it: an idle connection
costs nothing, a busy one a comparison for each read, write and batch of messages.
Invariants: totals never fall; a flow in which nothing passed during the last two windows has the rate 0. Loop rule:
everything on the loop's thread. Time is monotonic.
"""

from __future__ import annotations

from runtime.clock import Clock

WINDOW_MS = 5_000
SPAN_MS_MIN = 1_000
"""A connection that is younger has the rate of a whole second."""


class Windows:
    """The windows of one event loop."""

    __slots__ = ("_begun_ms", "_clock", "before_ms", "number")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.number = 0
        """Of the present one."""
        self._begun_ms = self.before_ms = self.now_ms()
        """`before_ms`: when the one before began."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""
        return self._clock.monotonic_ns() // 1_000_000

    def move_on(self) -> None:
        """Begin the next window if the present one is long enough; called several times within one."""
        now_ms = self.now_ms()
        if now_ms - self._begun_ms >= WINDOW_MS:
            self.before_ms, self._begun_ms = self._begun_ms, now_ms
            self.number += 1


class Flow:
    """One direction of one connection."""

    __slots__ = (
        "_before_bytes",
        "_before_messages",
        "_begun_bytes",
        "_begun_messages",
        "_window",
        "_windows",
        "messages",
        "size_bytes",
    )

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._window = windows.number
        self.messages = self.size_bytes = 0
        self._begun_messages = self._begun_bytes = 0  # when the window of this number began
        self._before_messages = self._before_bytes = 0  # when the one before it began

    def add_bytes(self, size_bytes: int) -> None:
        """One read or write."""
        if self._window != self._windows.number:
            self._begin()
        self.size_bytes += size_bytes

    def add_messages(self, count: int) -> None:
        """The messages of one read, or of one turn of deliveries."""
        if self._window != self._windows.number:
            self._begin()
        self.messages += count

    def _begin(self) -> None:
        """Note the beginning of the present window; before it nothing has passed since this flow's last one ended."""
        number = self._windows.number
        is_next = number == self._window + 1
        self._before_messages = self._begun_messages if is_next else self.messages
        self._before_bytes = self._begun_bytes if is_next else self.size_bytes
        self._begun_messages, self._begun_bytes = self.messages, self.size_bytes
        self._window = number

    def rates(self, age_ms: int) -> tuple[float, float]:
        """Messages and bytes per second of a connection of this age."""
        windows = self._windows
        if windows.number > self._window + 1:
            return 0.0, 0.0
        is_present = windows.number == self._window
        messages = self.messages - (self._before_messages if is_present else self._begun_messages)
        size_bytes = self.size_bytes - (self._before_bytes if is_present else self._begun_bytes)
        span_ms = max(SPAN_MS_MIN, min(windows.now_ms() - windows.before_ms, age_ms))
        return messages * 1_000 / span_ms, size_bytes * 1_000 / span_ms
