"""Open sockets: what counts, from when, and what is reported above a limit."""

from __future__ import annotations

from typing import Any

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.listening.open_sockets import OpenSockets
from mqtt_proxy.listening.peer import RemoteAddress
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.quotas import Quotas
from runtime.metrics import Registry

ONE, OTHER = RemoteAddress("10.0.0.1", False), RemoteAddress("10.0.0.2", False, "tls")


def sockets(quotas: QuotaConfig | None = None, **limits: Any) -> OpenSockets:
    return OpenSockets(FrontCounters(Registry()), Quotas(quotas or QuotaConfig()), **limits)


def refused(made: OpenSockets, reason: str) -> int:
    return made._counters.refused.child(reason).value


def test_sockets_count_from_their_first_moment() -> None:
    """An incomplete handshake counts like a session; leaving makes room."""
    made = sockets(connections_max=2)
    assert [made.enter(ONE), made.enter(ONE), made.enter(OTHER)] == [True, True, False]
    assert (len(made), refused(made, "connections_max")) == (2, 1)
    made.leave(None)
    assert made.enter(OTHER)


def test_addresses_are_counted_once_known() -> None:
    """Each address has its own limit; with its last socket the address is forgotten."""
    made = sockets(connections_per_address_max=2)
    for _ in range(4):
        made.enter(ONE)
    assert [made.admit(ONE, 0) for _ in range(3)] == [ONE, ONE, None]
    assert made.admit(OTHER, 0) == OTHER
    assert refused(made, "connections_per_address_max") == 1
    made.leave(ONE.address)
    assert made.admit(ONE, 0) is not None
    for each in (ONE, ONE, OTHER):
        made.leave(each.address)
    assert (len(made), made._per_address) == (0, {})


def test_an_address_that_connects_too_fast_is_marked_then_cut() -> None:
    """The quota decides; a socket that is cut does not count for the address."""
    made = sockets(QuotaConfig(connects_per_address_per_s=1, connects_per_address_burst=1))
    for _ in range(3):
        made.enter(ONE)
    first, second, third = (made.admit(ONE, 0) for _ in range(3))
    assert first == ONE
    assert second is not None
    assert second.over_connect_rate
    assert third is None
    assert (made._per_address, refused(made, "connect_rate")) == ({ONE.address: 2}, 1)


def test_no_socket_is_admitted_while_it_is_closed() -> None:
    """During a stop every socket is refused, and counted."""
    made = sockets()
    made.closed = True
    assert not made.enter(ONE)
    assert (len(made), refused(made, "server_stopping")) == (0, 1)
