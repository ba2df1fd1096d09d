"""Which port is the VIP port, and that one which cannot be had is only logged."""

from __future__ import annotations

import socket

import pytest

from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.serving import open_vip_port, vip_port_of
from remoting.server.server import RemotingServer

MEMBER = ReplicationConfig(enabled=True, port=10_909)


class Log:
    """Remembers what was logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []

    def info(self, event: str, **fields: int) -> None:
        self.lines.append(("info", event, fields["main_port"]))

    def warning(self, event: str, **fields: int) -> None:
        self.lines.append(("warning", event, fields["port"]))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BrokerConfig(port=10_911), 10_909),
        (BrokerConfig(port=3), 1),
        (BrokerConfig(port=2), 0),
        (BrokerConfig(port=0), 0),
        (BrokerConfig(port=10_911, vip_port=0), 0),
        (BrokerConfig(port=10_911, vip_port=5_000), 5_000),
        (BrokerConfig(port=0, vip_port=5_000), 5_000),
        (BrokerConfig(port=10_911, admin_port=10_909), 0),
        (BrokerConfig(port=10_911, range_reader_port=10_909), 0),
        (BrokerConfig(port=10_911, replication=MEMBER), 0),
        (BrokerConfig(port=10_914), 10_912),
    ],
)
def test_the_port_two_below_unless_the_configuration_says_otherwise(config: BrokerConfig, expected: int) -> None:
    assert vip_port_of(config) == expected


async def test_a_port_that_is_taken_or_off_is_logged_and_the_server_goes_on() -> None:
    server, log = RemotingServer(lambda _peer, command: command.reply()), Log()
    await server.start("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert await open_vip_port(server, BrokerConfig(vip_port=taken), log) == 0
    assert await open_vip_port(server, BrokerConfig(port=0), log) == 0
    assert log.lines == [("warning", "vip_port_unavailable", taken), ("info", "vip_port_off", 0)]
    assert await open_vip_port(server, BrokerConfig(vip_port=taken), log) == taken
    await server.stop()
    with socket.create_server(("127.0.0.1", taken)):
        """The stop has freed it."""
