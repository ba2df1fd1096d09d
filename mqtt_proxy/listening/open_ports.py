"""From the configuration to open ports: which doors the proxy has, opened together or not at all.

Invariant: after a failed `start` no port is open and the error names the one that could not be had.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import ipaddress

from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.listening.counters import FrontCounters
from mqtt_proxy.listening.handshakes import ListenerSpec, Networks
from mqtt_proxy.listening.listener import Listener
from mqtt_proxy.listening.tls import TlsFiles
from mqtt_proxy.websocket import Rules
from runtime.logs import get_logger
from runtime.process import keep_large_buffers_apart, room_for


class PortUnavailable(OSError):
    """A port of the proxy cannot be listened on: which, and which option sets it."""

    def __init__(self, port: int, option: str, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause))
        self.port = port
        self.option = option


class Listening:
    """The open ports of one proxy."""

    def __init__(self, config: ProxyConfig, listener: Listener, counters: FrontCounters) -> None:
        """CertificateProblem when the certificate cannot be used."""
        self._host = config.listen_host
        self._listener = listener
        self._doors = _doors(config, counters)
        self._log = get_logger("proxy")
        self.ports: dict[str, int] = {}
        """Open ports by the name of their listener."""

    async def start(self) -> None:
        """Open every port. PortUnavailable when one cannot be had, with none left open."""
        if any(door.tls is not None for door, _, _ in self._doors):
            keep_large_buffers_apart()
        self._fit_descriptors()
        for door, port, option in self._doors:
            try:
                self.ports[door.name] = await self._listener.start(self._host, port, door)
            except OSError as error:
                self.ports.clear()
                await self._listener.stop()
                raise PortUnavailable(port, option, error) from error
            self._log.info("mqtt_listening", listener=door.name, host=self._host, port=self.ports[door.name])

    def _fit_descriptors(self) -> None:
        """Take no more sockets than this process may have; who is over the limit is then told so, and counted."""
        sockets = self._listener.sockets
        room = room_for(sockets.connections_max)
        if room < sockets.connections_max:
            self._log.warning(
                "mqtt_connections_max_lowered", wanted=sockets.connections_max, room=room,
                remedy="raise the limit of open files (ulimit -n, LimitNOFILE)",
            )  # fmt: skip
            sockets.connections_max = room


def _doors(config: ProxyConfig, counters: FrontCounters) -> list[tuple[ListenerSpec, int, str]]:
    """(door, wanted port, the option that sets it) of every listener that is wanted."""
    listen = config.listen
    tls = None
    if (listen.tls_port, listen.wss_port) != (None, None):
        assert listen.tls_certificate is not None
        assert listen.tls_key is not None
        tls = TlsFiles(
            listen.tls_certificate,
            listen.tls_key,
            counters=counters,
            client_ca=listen.tls_client_ca,
            client_required=listen.tls_client_required,
            client_name=listen.tls_client_name,
        )
    networks = tuple(ipaddress.ip_network(each) for each in listen.proxy_protocol_from)

    def balancers(name: str) -> Networks | None:
        return networks if name in listen.proxy_protocol else None

    rules = Rules(listen.ws_path, listen.ws_origins)
    wanted = (
        (ListenerSpec(name="tcp", balancers=balancers("tcp")), config.port, "--mqtt-port"),
        (ListenerSpec(name="tls", tls=tls, balancers=balancers("tls")), listen.tls_port, "--tls-port"),
        (ListenerSpec(name="ws", websocket=rules, balancers=balancers("ws")), listen.ws_port, "--ws-port"),
        (ListenerSpec(name="wss", tls=tls, websocket=rules, balancers=balancers("wss")), listen.wss_port, "--wss-port"),
    )
    return [(door, port, option) for door, port, option in wanted if port is not None]
