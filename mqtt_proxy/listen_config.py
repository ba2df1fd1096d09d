"""Configuration of the proxy's listeners besides the plain one: TLS, WebSocket, the PROXY protocol, how they end.

Invariant: what contradicts itself (a TLS port without a certificate, a client certificate asked for without an
authority) is refused when it is read, not when the first client comes.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from runtime.config.tables import setting

LISTENERS = ("tcp", "tls", "ws", "wss")
"""The names of the listeners: in settings, logs, metrics and the ports that a server says."""
CERTIFICATE_NAMES = ("san", "cn", "uri", "email", "dns")


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """What is listened on besides `proxy.port`, all on the address of `proxy.host`."""

    tls_port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT over TLS, usually 8883; 0 takes any free one, not set: none is open."""
    ws_port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT over WebSocket, usually 8080 or 9001; 0 takes any free one, not set: none is open."""
    wss_port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT over WebSocket over TLS, usually 8884; 0 takes any free one, not set: none is open."""
    tls_certificate: Path | None = None
    """The server's certificate and those up to its authority, PEM. Read again on SIGHUP and when it changes."""
    tls_key: Path | None = None
    """The key of the certificate, PEM without a passphrase. Read again together with it."""
    tls_client_ca: Path | None = None
    """Authorities of client certificates, PEM. A client may then show a certificate; a wrong one is refused."""
    tls_client_required: bool = False
    """Refuse TLS clients without a certificate."""
    tls_client_name: str = setting("san", choices=CERTIFICATE_NAMES)
    """Which name of a client certificate says who it is: the first URI, e-mail address or DNS name (`san`, else the
    common name), or only the one named."""
    ws_path: str = "/mqtt"
    """Path of the WebSocket listeners; another one is answered with 404."""
    ws_origins: tuple[str, ...] = ()
    """Web pages that may connect, as in the Origin header (`https://plant.example`), beside pages of the same address
    and port when that is `localhost` or an IP address; `*`: all. Programs that send no Origin are not checked."""
    proxy_protocol: tuple[str, ...] = ()
    """Listeners (tcp, tls, ws, wss) behind a balancer: each connection must begin with a PROXY header (1 or 2)."""
    proxy_protocol_from: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks of the balancers whose PROXY headers are believed; others are closed and counted."""
    processes: int = setting(1, minimum=1, maximum=64)
    """How many proxy processes share the ports; more than one are children of the process that was started."""
    reuse_port: bool = False
    """Let other proxies of this machine listen on the same ports (SO_REUSEPORT); `processes` sets it by itself."""
    drain_interval_ms: int = setting(1_000, minimum=0, maximum=600_000)
    """Over how long a stopping proxy sends its clients away, so that they do not all come to the next one at once."""
    server_reference: str = ""
    """Where clients of MQTT 5 are sent when the proxy stops (`host:port`, several with spaces)."""
    server_moved: bool = False
    """Tell them that it is for good (0x9D) rather than for a while (0x9C)."""

    def __post_init__(self) -> None:
        wanted = [name for name in ("tls_port", "wss_port") if getattr(self, name) is not None]
        if wanted and (self.tls_certificate is None or self.tls_key is None):
            raise ValueError(f"{wanted[0]} needs tls_certificate and tls_key")
        if self.tls_client_required and self.tls_client_ca is None:
            raise ValueError("tls_client_required needs tls_client_ca, the authorities of client certificates")
        if not self.ws_path.startswith("/"):
            raise ValueError(f"ws_path must begin with /, not {self.ws_path!r}")
        unknown = sorted(set(self.proxy_protocol) - set(LISTENERS))
        if unknown:
            raise ValueError(f"proxy_protocol knows {', '.join(LISTENERS)}, not {', '.join(unknown)}")
        for network in self.proxy_protocol_from:
            ipaddress.ip_network(network)  # its ValueError names what is wrong
