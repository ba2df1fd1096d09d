"""Configuration of the MQTT proxy: one declared table.

Invariant: every limit of the proxy stands here with its unit, its rule and what happens when it is reached; the
reference page is generated from these declarations. No code of the proxy carries a second default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mqtt_proxy.access_config import AccessConfig
from mqtt_proxy.listen_config import ListenConfig
from mqtt_proxy.quota_config import QuotaConfig
from runtime.config.tables import setting
from runtime.tls_config import DialTlsConfig

LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - listened on only with a password file or by explicit wish


@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """The MQTT front end: listener, sessions, the link to the broker."""

    host: str = ""
    """Address to listen on. Empty means: every interface once clients can prove who they are (a password file, token
    keys, a hook, authorities of client certificates), else loopback. Whatever is set here, clients of other machines
    must prove it."""
    port: int = setting(1883, minimum=0, maximum=65535)
    """MQTT port; 0 takes any free one."""
    admin_host: str = "127.0.0.1"
    """Address of the administration port."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration page answers, beside `localhost` and IP addresses."""
    admin_access_keys: tuple[str, ...] = ()
    """`key:secret` pairs that may see the administration pages from other machines (docs/howto/metrics.md)."""
    admin_access_list: Path | None = None
    """Access list for the administration pages, in the format of the brokers' `access_list`; it may be the same file.
    With it, requests from loopback need a key too. Reloaded when it changes."""
    admin_port: int = setting(8082, minimum=0, maximum=65535)
    """Port of /metrics, /livez and /readyz when the proxy is a process of its own; 0 takes any free one."""
    controllers: tuple[str, ...] = ("127.0.0.1:9876",)
    """Controllers (name servers) as host:port that are asked where the broker is."""
    broker: str = ""
    """Broker as host:port; set it to go there directly without asking a controller."""
    broker_name: str = ""
    """Broker group that MQTT lives in. Where there are several, set it at all proxies and bridges to
    the first by name, to which Spark writes MQTT rows; empty means the first by name that has a master at the start,
    which may be another one the next time."""
    access_key_file: Path | None = None
    """One line `key:secret`, readable by its owner alone: signs requests to controllers and broker, which those of
    other machines require (`access_keys` there)."""
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    """What is said to brokers and controllers over TLS, and who is trusted there."""
    password_file: Path | None = None
    """Users and the hashes of their passwords; see docs/howto/passwords.md. Without it, and without another way to
    prove a name (`proxy.access`), everybody on this machine and nobody else may connect."""
    acl_file: Path | None = None
    """Who may read and write which topics; see docs/howto/access.md. Without it everybody who was let in may do
    everything, with it what no rule allows is denied."""
    connections_max: int = setting(20_000, minimum=1)
    """Most open sockets; a further one is closed at once and counted."""
    connect_timeout_ms: int = setting(10_000, minimum=100)
    """Longest time between opening a socket and a complete CONNECT."""
    packet_size_bytes_max: int = setting(4 * 1024 * 1024, minimum=1024, maximum=16 * 1024 * 1024 - 65_536)
    """Largest MQTT packet taken, its fixed header included, as announced to clients of MQTT 5; a larger one closes the
    connection."""
    in_flight_max: int = setting(4_096, minimum=1, maximum=16_384)
    """QoS 1 messages sent to one client and not yet acknowledged by it; further ones stay in the log. More than 1,024
    only for clients that acknowledge quickly."""
    subscriptions_per_session_max: int = setting(1_000, minimum=1)
    """Most filters of one session; further ones are refused in the SUBACK."""
    response_topic_prefix: str = ""
    """Beginning of the response topics of a client of MQTT 5 that asks for Response Information: it is told this
    prefix, its client id and a slash. Empty: nothing is told. Who may read and write there, the access list says."""
    report_no_subscribers: bool = False
    """Whether clients of MQTT 5 are told in PUBACK and PUBREC that a message is stored and nobody has subscribed to its
    topic (0x10); see docs/errors.md. It costs the broker a look per message, and tells publishers that somebody has
    subscribed, also those who may not read the topic."""
    output_bytes_max: int = setting(256 * 1024, minimum=4096)
    """Bytes waiting for one slow socket above which its deliveries stop; they stay in the log."""
    publish_bytes_max: int = setting(16 * 1024 * 1024, minimum=65_536)
    """Published bytes not yet confirmed by the broker, all clients together. Above it publishers are not read;
    below half of it they are read again."""
    append_bytes_max: int = setting(4 * 1024 * 1024, minimum=65_536, maximum=12 * 1024 * 1024)
    """Largest APPEND_MANY body; one loop turn's publishes beyond it go in several. A single message may exceed it."""
    append_timeout_ms: int = setting(30_000, minimum=100)
    """How long the broker may take to confirm an append before its connection counts as lost."""
    pull_records_max: int = setting(1_024, minimum=1)
    """Most records asked of one queue in one pull."""
    pull_bytes_max: int = setting(512 * 1024, minimum=4096, maximum=8 * 1024 * 1024)
    """Most bytes asked of one queue in one pull; one record may exceed it."""
    pull_queues_max: int = setting(256, minimum=1)
    """Most (queue, offset) pairs in one pull request; further ones wait for the next."""
    cache_bytes_max: int = setting(16 * 1024 * 1024, minimum=65_536)
    """Bytes of pulled records kept for subscribers of one queue that are close together; the oldest are dropped."""
    offsets_commit_interval_ms: int = setting(200, minimum=1)
    """How often acknowledged offsets of sessions go to the broker. After a crash at most this much is sent again."""
    session_expiry_s: int = setting(7 * 24 * 3600, minimum=60, maximum=0xFFFF_FFFF)
    """Longest time a session is kept without its client. One that asks for longer, or that sets clean=false, gets this,
    and is told so with MQTT 5. 4294967295 keeps sessions, and what waits for them, until their clients come back;
    set `broker.session_expiry_s` to it too."""
    reconnect_delay_ms_max: int = setting(2_000, minimum=10)
    """Longest pause between two attempts to reach the broker; the first one is a twentieth of it."""
    stop_deadline_ms: int = setting(5_000, minimum=100)
    """How long a stopping proxy waits for wills and session states to be confirmed."""
    sys_interval_s: int = setting(10, minimum=0)
    """How often the values of the `$SYS` tree are read anew and changes are sent to who subscribed to them; 0 serves
    none."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """How clients prove who they are, besides the password file."""
    quotas: QuotaConfig = field(default_factory=QuotaConfig)
    """What one client, one user, one address and the whole listener may use."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    """Listeners besides the plain one, and how they end."""

    @property
    def stop_s_max(self) -> float:
        """How long a stop may take as configured: sending away, closing, settling, each with its own deadline."""
        return (self.listen.drain_interval_ms + 2 * self.stop_deadline_ms) / 1_000 + 1.0

    @property
    def listen_host(self) -> str:
        """The address that is really listened on: nothing is open to others before somebody said who they are."""
        if self.host:
            return self.host
        return EVERY_INTERFACE if self.proves_names else LOOPBACK

    @property
    def proves_names(self) -> bool:
        """Whether a client of another machine has any way to say who it is."""
        access = self.access
        known = (self.password_file, access.jwt_keys_file, access.http_url or None, self.listen.tls_client_ca)
        return any(one is not None for one in known)
