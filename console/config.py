"""Every option of the console, declared once: name, default, rule, and when to change it.

`runtime.config.load` fills the table; the reference page is made from the strings below. Values only, no behaviour.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from runtime.config import setting
from runtime.tls_config import DialTlsConfig


@dataclass(frozen=True, kw_only=True)
class ConsoleTlsConfig:
    """TLS of the administration port of every part, with a console or without: its pages, the console, the API."""

    certificate: Path | None = None
    """The certificate and those up to its authority, PEM. With it the port speaks HTTPS only. Read again
    when it or the key has changed; an unusable pair is logged, and the one from before stays in use."""
    key: Path | None = None
    """The key of the certificate, PEM without a passphrase."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("console.tls.certificate and console.tls.key go together")


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """The web console and the HTTP API at the administration port."""

    enabled: bool = True
    """Serve the console: in `lightmq up`, and in controllers and brokers of a cluster that have `access_key_file`."""
    access_key_file: Path | None = None
    """One line `key:secret`, readable by its owner alone: signs the console's requests to controllers and brokers. The
    key needs `role admin` and `role proxy`. `lightmq up` needs none."""
    controllers: tuple[str, ...] = setting((), form="host:port")
    """Controllers (name servers) as host:port that the console asks; empty: a controller asks itself, a broker its
    own controllers. `lightmq up` needs none."""
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    """TLS of the connections to controllers and brokers."""
    tls: ConsoleTlsConfig = field(default_factory=ConsoleTlsConfig)
    """TLS of the administration port."""
    allow_insecure: bool = False
    """Serve the console without TLS at an address that other machines can reach, such as behind a reverse proxy that
    adds TLS. Otherwise it is served on loopback only, and other machines get the other pages."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies whose X-Forwarded-For header names the client, for the count of failed
    sign-ins and for the log. Empty: the header is not read."""
    sessions_max: int = setting(1_000, minimum=1)
    """People signed in at a time; the one that was idle longest is signed out for another."""
    session_idle_ms_max: int = setting(1_800_000, minimum=60_000)
    """A session that is not used for this long ends."""
    session_ms_max: int = setting(43_200_000, minimum=60_000)
    """A session ends after this time, used or not."""
    viewers_max: int = setting(64, minimum=1)
    """Open event streams and live tails; further ones are refused with 503."""
    live_messages_max: int = setting(500, minimum=1)
    """Messages that wait for one live tail; further ones are dropped, counted, and the viewer is told."""
    sign_in_failures_max: int = setting(10, minimum=1)
    """Failed sign-ins of one address within `sign_in_window_ms`; further ones are answered with 429, two per second,
    and logged as one number when the time is over. What is right is let in all the same, and at once."""
    sign_in_window_ms: int = setting(60_000, minimum=1_000)
    """See `sign_in_failures_max`."""
    history_s: int = setting(600, minimum=60, maximum=86_400)
    """How far back the charts of the overview reach when a page is opened."""

    def __post_init__(self) -> None:
        for network in self.trusted_proxies:
            ipaddress.ip_network(network)  # its ValueError names what is wrong
