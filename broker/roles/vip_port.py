"""The VIP port: a second port of the broker, two below the first, where RocketMQ clients before 4.5 send by default.

Newer clients use it when `com.rocketmq.sendMessageWithVIPChannel` is set. RocketMQ keeps pulls off it; here it is the
same server as the main port: same handlers, access checks, TLS and limits, one count of connections.
Invariant: a VIP port that cannot be opened is logged and never keeps the broker from starting. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from remoting.server.server import RemotingServer

BELOW = 2
"""How far below the port of a broker's address RocketMQ's clients look for its VIP port."""
AUTOMATIC = -1
"""Setting: two below the main port, if that port was chosen and is free."""
OFF = 0


def vip_port_of(config: BrokerConfig) -> int:
    """The port to open, `OFF` for none: not one that another part of this process is to have.

    Two below a main port that the system picked (0) may be any other program's, and firewalls know neither.
    """
    if config.vip_port != AUTOMATIC:
        return config.vip_port
    port = config.port - BELOW
    own = {config.admin_port, config.range_reader_port}
    if config.replication.enabled:
        own.add(config.replication.port)
    return port if port > 0 and port not in own else OFF


async def open_vip_port(server: RemotingServer, config: BrokerConfig, log: Any) -> int:
    """Let the running server listen at its VIP port too; that port, or `OFF` when there is none."""
    port = vip_port_of(config)
    if port == OFF:
        log.info("vip_port_off", main_port=config.port, setting=config.vip_port)
        return OFF
    try:
        return await server.listen_also(config.host, port)
    except OSError as error:
        log.warning(
            "vip_port_unavailable", port=port, problem=str(error),
            consequence="RocketMQ clients before 4.5 cannot send, unless their VIP channel is off",
        )  # fmt: skip
        return OFF
