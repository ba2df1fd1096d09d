"""Configuration of the gRPC proxy: one declared table.

Invariant: every limit of the proxy stands here with its unit, its rule and what happens when it is reached; the
reference page is generated from these declarations. What contradicts itself is refused when it is read. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime.config import setting
from runtime.tls_config import DialTlsConfig

DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class GrpcLimitsConfig:
    """What one client and all clients together may use."""

    calls_max: int = setting(10_000, minimum=1)
    """Most calls at a time, waiting receives and telemetry streams included; further ones end with
    RESOURCE_EXHAUSTED."""
    streams_per_connection_max: int = setting(1_000, minimum=1)
    """Most calls of one connection at a time; its client holds back further ones."""
    connections_max: int = setting(20_000, minimum=1)
    """Most sockets at a time, TLS handshakes included; a further one is closed at once."""
    resets_max: int = setting(1_000, minimum=1)
    """Most calls that one connection may reset, or have refused, within ten seconds; with more it is ended
    (ENHANCE_YOUR_CALM)."""
    control_frames_max: int = setting(2_000, minimum=100)
    """Most frames without a call or data (PING, SETTINGS, empty DATA and the like) within ten seconds while nothing is
    answered; with more the connection is ended (ENHANCE_YOUR_CALM)."""
    budgets_per_address: int = setting(4, minimum=1)
    """All connections of one address together have so many times `resets_max` and `control_frames_max`; beyond it those
    that use more than a few of them are ended. Raise it where many clients come by one address."""
    continuations_max: int = setting(32, minimum=1)
    """Most CONTINUATION frames of one header block; with more the connection is ended (ENHANCE_YOUR_CALM)."""
    held_bytes_max: int = setting(256 * 1024 * 1024, minimum=65_536)
    """Most bytes of requests that are not whole, of all connections; a call beyond it ends with RESOURCE_EXHAUSTED."""
    output_bytes_max: int = setting(8 * 1024 * 1024, minimum=65_536)
    """Most bytes that wait in one socket. Messages wait in their calls before it is reached; a connection that reaches
    it by asking on without reading is cut off."""
    clients_max: int = setting(20_000, minimum=1)
    """Most clients with a telemetry stream; a further one gets 42900 (TOO_MANY_REQUESTS)."""
    request_bytes_max: int = setting(8 * 1024 * 1024, minimum=65_536, maximum=64 * 1024 * 1024)
    """Largest request; gRPC ends the call of a larger one with RESOURCE_EXHAUSTED before it is read."""
    metadata_bytes_max: int = setting(16 * 1024, minimum=1_024, maximum=1024 * 1024)
    """Most bytes of a call's metadata; gRPC ends the call when there are more."""
    body_bytes_max: int = setting(4 * 1024 * 1024, minimum=1_024, maximum=16 * 1024 * 1024 - 65_536)
    """Largest body of a message, as announced to producers; a larger one gets 41301 (MESSAGE_BODY_TOO_LARGE)."""
    properties_max: int = setting(128, minimum=1)
    """Most user properties of a message; more get 43101 (MESSAGE_PROPERTIES_TOO_LARGE)."""
    properties_bytes_max: int = setting(16 * 1024, minimum=256, maximum=32_000)
    """Most bytes of names and values of all user properties of a message; more get 43101."""
    message_group_chars_max: int = setting(64, minimum=1, maximum=1_024)
    """Longest message group; a longer one gets 40006 (ILLEGAL_MESSAGE_GROUP)."""
    lite_topic_chars_max: int = setting(64, minimum=1, maximum=255)
    """Longest lite topic, as announced to its consumers; a longer one gets 40020 (ILLEGAL_LITE_TOPIC)."""
    commands_max: int = setting(1_000, minimum=1)
    """Commands that wait for one telemetry stream to be read; at more the stream is ended, and its client opens
    another."""
    batch_max: int = setting(32, minimum=1, maximum=32)
    """Most messages of one receive, which clients are told."""
    renewed_max: int = setting(100_000, minimum=0)
    """Messages whose invisible time the proxy extends at a time; for further ones it ends as it was granted."""


@dataclass(frozen=True, kw_only=True)
class GrpcConfig:
    """The front end for RocketMQ's gRPC clients: listener, limits, the connection to the broker."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = setting(8081, minimum=0, maximum=65_535)
    """Port of `lightmq grpc-proxy`; 0 takes any free one. For `lightmq up` see `up.grpc_port`."""
    reuse_port: bool = False
    """Let other proxies of this machine listen on the same port (SO_REUSEPORT); the kernel spreads the connections."""
    tls_certificate: Path | None = None
    """The server's certificate and those up to its authority, PEM. With it the port accepts TLS only."""
    tls_key: Path | None = None
    """The key of the certificate, PEM without a passphrase."""
    tls_client_ca: Path | None = None
    """Authorities of client certificates, PEM. Clients must then show a certificate of one of them."""
    controllers: tuple[str, ...] = setting(("127.0.0.1:9876",), form="host:port")
    """Controllers (name servers) as host:port that are asked where the broker is."""
    broker: str = setting("", form="host:port")
    """Broker as host:port; set it to go there directly without asking a controller."""
    broker_name: str = ""
    """Broker group that is served; empty: every group that the controllers name."""
    access_key_file: Path | None = None
    """One line `key:secret`, readable by its owner alone: signs requests to controllers and broker. Where the broker
    has an access list, the key needs `role proxy`."""
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    """TLS of the connections to brokers and controllers, and which servers are trusted."""
    admin_host: str = "127.0.0.1"
    """Address of the administration port of `lightmq grpc-proxy`."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration port answers, beside `localhost` and IP addresses."""
    admin_access_keys: tuple[str, ...] = ()
    """`key:secret` pairs that may see the administration pages from other machines (docs/howto/metrics.md)."""
    admin_access_list: Path | None = None
    """Access list for the administration pages, in the format of the brokers' `access_list`; it may be the same file.
    With it, requests from loopback need a key too. Reloaded when it changes."""
    admin_port: int = setting(8084, minimum=0, maximum=65_535)
    """Port of /metrics, /livez and /readyz of `lightmq grpc-proxy`; 0 takes any free one."""
    reconnect_delay_ms_max: int = setting(2_000, minimum=10)
    """Longest pause between two attempts to reach the broker; the first one is a twentieth of it."""
    request_timeout_ms: int = setting(10_000, minimum=100)
    """How long the broker may take to answer; then the client gets 50400 (PROXY_TIMEOUT)."""
    long_poll_ms_max: int = setting(20_000, minimum=0, maximum=300_000)
    """Longest wait of a receive for the first message, which push consumers are told."""
    invisible_ms_min: int = setting(10_000, minimum=1)
    """Shortest invisible time of a receive; a shorter one gets 40011 (ILLEGAL_INVISIBLE_TIME)."""
    invisible_ms_max: int = setting(12 * 3_600_000, minimum=1_000, maximum=DAY_S * 49 * 1_000)
    """Longest invisible time; a longer one gets 40011."""
    invisible_ms_default: int = setting(60_000, minimum=1_000)
    """Invisible time of a push consumer's messages; the proxy extends it while the client has the message."""
    renew_s_max: int = setting(3 * 3_600, minimum=1)
    """How long the proxy extends the time of one message; then another consumer gets it."""
    handshake_ms_max: int = setting(10_000, minimum=100)
    """How long a connection may take for TLS and the first frames of HTTP/2; then it is closed."""
    idle_ms_max: int = setting(600_000, minimum=1_000)
    """How long a connection may be without a call; then it is closed, and its client opens another when it has one."""
    stall_ms_max: int = setting(60_000, minimum=1_000)
    """How long a client may take nothing of what is being sent; then its connection is cut off."""
    stop_deadline_ms: int = setting(5_000, minimum=0)
    """How long a stopping proxy lets calls under way finish."""
    limits: GrpcLimitsConfig = field(default_factory=GrpcLimitsConfig)
    """What one client and all clients together may use."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if not self.invisible_ms_min <= self.invisible_ms_default <= self.invisible_ms_max:
            raise ValueError("invisible_ms_default lies between invisible_ms_min and invisible_ms_max")
