"""Ports for servers that must keep their address: reserved for the life of this process, also while they are down.

A free port that was only looked up can be taken by another process before the server binds it, or while the server
restarts; parallel tests do that to each other. So each port stays bound here, without listening: a server that sets
SO_REUSEADDR, as ours and those of our peers do, can still listen on it, and the system assigns it to no other process.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque

PORTS = range(15_000, 32_000, 4)
"""Below what the kernel gives to outgoing connections; a broker opens the one two below, too."""
HELD_MAX = 500
"""The oldest ones are given back: no test has that many servers."""
_candidates = random.Random(os.getpid()).sample(PORTS, len(PORTS))
_held: deque[socket.socket] = deque(maxlen=HELD_MAX)


def free_port() -> int:
    """A free port that is given to no other test, and that a server can listen on any number of times."""
    for _ in PORTS:
        _candidates.append(number := _candidates.pop(0))
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", number))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(held)
        return number
    raise OSError("no port is free")
