"""The limits on open sockets, shared by all listeners of a proxy.

    enter(peer)      a socket was accepted: counted, or over `connections_max`
    admit(peer)      its address is known (behind a PROXY header only now): counted, or over a limit of the address
    leave(address)   it is closed; with the address only if it had been admitted

Invariants: every socket that entered leaves once; every refusal has a counter with its reason and a log event. A socket
counts from the moment it is accepted, so that handshakes left half open are bounded like sessions.
Loop rule: one per proxy, on its loop.
"""

from __future__ import annotations

from dataclasses import replace

from mqtt_proxy.listening.peer import RemoteAddress
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.quotas import Quotas, SocketOpening
from runtime.logs import get_logger


class OpenSockets:
    """Counts open sockets, all together and by address."""

    def __init__(
        self,
        counters: FrontCounters,
        quotas: Quotas,
        *,
        connections_max: int = 20_000,
        connections_per_address_max: int = 0,
    ) -> None:
        """`connections_per_address_max` 0: no limit of its own."""
        self.connections_max = connections_max
        self.closed = False
        """Set while stopping: no further socket is admitted."""
        self._counters = counters
        self._quotas = quotas
        self._per_address_max = connections_per_address_max or connections_max
        self._open = 0
        self._per_address: dict[str, int] = {}
        self._log = get_logger("mqtt_proxy.front")

    def __len__(self) -> int:
        """Sockets that entered and have not left."""
        return self._open

    def enter(self, peer: RemoteAddress) -> bool:
        """Count a socket; False when it has to be closed at once."""
        if self.closed:
            return self._refuse("server_stopping", peer)
        if self._open >= self.connections_max:
            return self._refuse("connections_max", peer)
        self._open += 1
        return True

    def admit(self, peer: RemoteAddress, now_ms: int) -> RemoteAddress | None:
        """Count the socket for its address; None when it has to be closed. It has entered in both cases.

        An address that connects too fast is refused at CONNECT, one that is far too fast is disconnected at once.
        """
        of_address = self._per_address.get(peer.address, 0)
        if of_address >= self._per_address_max:
            self._refuse("connections_per_address_max", peer)
            return None
        opening = self._quotas.opening(peer.address, now_ms)
        if opening is SocketOpening.CUT:
            self._refuse("connect_rate", peer)
            return None
        self._per_address[peer.address] = of_address + 1
        return peer if opening is SocketOpening.OPEN else replace(peer, over_connect_rate=True)

    def leave(self, address: str | None) -> None:
        """Remove a socket from the counts; `address` when it had been admitted."""
        self._open -= 1
        if address is None:
            return
        left = self._per_address[address] - 1
        if left:
            self._per_address[address] = left
        else:
            del self._per_address[address]

    def _refuse(self, reason: str, peer: RemoteAddress) -> bool:
        self._counters.refused.child(reason).value += 1
        self._log.warning("mqtt_connection_refused", reason=reason, peer=peer.address, listener=peer.listener)
        return False
