"""The states of a session. Which packet each allows is the table in `session`; nothing else decides it."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a connection is between its opening and its end."""

    EXPECT_CONNECT = "nothing has come yet, only CONNECT may"
    DECIDING = "CONNECT is with the owner, who accepts or refuses"
    AUTHENTICATING = "the owner has asked for more before it decides, only AUTH may come"
    CONNECTED = "accepted"
    CLOSED = "ended; input is discarded"
