"""Configuration of the MQTT proxy: one declared table.

Invariant: every limit of the proxy stands here with its unit, its rule and what happens when it is reached; the
reference page is generated from these declarations. No code of the proxy carries a second default. What contradicts
itself (a TLS port without a certificate), or would admit clients by mistake (no algorithm, a hook over an open
network), is refused when it is read, not when the first client connects. 0 means "no quota" where documented.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from runtime.config import setting
from runtime.tls_config import DialTlsConfig


@dataclass(frozen=True, kw_only=True)
class QuotaConfig:
    """Quotas. Rates are enforced by delaying reads, never by loss; everything else is refused with its reason code."""

    connections_per_address_max: int = setting(0, minimum=0)
    """Open sockets of one address; a further one is closed at once. 0 = no quota."""
    connections_per_user_max: int = setting(0, minimum=0)
    """Client ids one authenticated user may have connected at a time; a further one gets CONNACK 0x97
    (3.1.1: code 3). 0 = no quota. Anonymous clients are not counted."""
    connects_per_address_per_s: float = setting(0.0, minimum=0)
    """Connections one address may open per second in the long run; what is above gets CONNACK 0x9F (3.1.1: code 3),
    and sockets beyond twice `connects_per_address_burst` are closed at once. 0 = no quota."""
    connects_per_address_burst: int = setting(100, minimum=1)
    """Connections one address may open at once before `connects_per_address_per_s` counts: a gateway coming back."""
    client_messages_per_s: float = setting(0.0, minimum=0)
    """Messages one client id may publish per second. Above it the client is read more slowly. 0 = no quota."""
    client_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes of topics and payloads one client id may publish per second. Above it the client is read more slowly.
    0 = no quota."""
    user_messages_per_s: float = setting(0.0, minimum=0)
    """Messages all clients of one user may publish per second. Above it they are read more slowly. 0 = no quota."""
    user_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes all clients of one user may publish per second. Above it they are read more slowly. 0 = no quota."""
    address_messages_per_s: float = setting(0.0, minimum=0)
    """Messages all clients of one address may publish per second. Above it they are read more slowly. 0 = no quota."""
    address_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes all clients of one address may publish per second. Above it they are read more slowly. 0 = no quota."""
    listener_messages_per_s: float = setting(0.0, minimum=0)
    """Messages all clients of this proxy may publish per second. Above it they are read more slowly. 0 = no quota."""
    listener_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes all clients of this proxy may publish per second. Above it they are read more slowly. 0 = no quota."""
    keep_alive_s_max: int = setting(0, minimum=0, maximum=65_535)
    """Longest keep-alive. Clients of MQTT 5 that ask for more, or for none, get this one in the CONNACK; 3.1.1 clients
    are closed after one and a half times this long without a packet. 0 = as long as the client asks."""
    topic_bytes_max: int = setting(4_096, minimum=16, maximum=16_384)
    """Longest topic name or filter in UTF-8; a longer one closes the connection with 0x90 or 0x8F."""
    topic_levels_max: int = setting(128, minimum=1, maximum=128)
    """Most levels of a topic name or filter; more close the connection with 0x90 or
    0x8F."""
    user_properties_max: int = setting(64, minimum=0, maximum=1_024)
    """Most user properties of one message; more close the connection with 0x97. Any other packet may have 1,024."""
    receive_maximum: int = setting(1_024, minimum=1, maximum=65_535)
    """Publishes with QoS 1 or 2 of an MQTT 5 client that may wait for their acknowledgement; the CONNACK names it,
    and more close the connection with 0x93. A 3.1.1 client that has more is read more slowly."""
    topic_alias_max: int = setting(64, minimum=0, maximum=65_535)
    """Topic aliases an MQTT 5 client may use; the CONNACK names it, and a higher one closes the connection with
    0x94. Each may hold a topic of `topic_bytes_max`."""
    retained_payload_bytes_max: int = setting(0, minimum=0)
    """Largest payload that may be retained; a larger one is refused with 0x97 (QoS 0: dropped and counted; 3.1.1: the
    connection is closed); of a will the CONNECT is. 0 = as large as a message may be."""
    filters_refused: tuple[str, ...] = ()
    """Filters that are too wide: a SUBSCRIBE to one of them, or to one that matches all it matches, gets 0x8F (3.1.1:
    0x80). `["#"]` refuses `#` and `+/#` and nothing else."""


LISTENERS = ("tcp", "tls", "ws", "wss")
"""The names of the listeners: in settings, logs, metrics and the ports that a server prints."""
CERTIFICATE_NAMES = ("san", "cn", "uri", "email", "dns")


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """What is listened on besides `proxy.port`, all on the address of `proxy.host`."""

    tls_port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT over TLS, usually 8883; 0 takes any free one, unset: no port is opened."""
    ws_port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT over WebSocket, usually 9001; 0 takes any free one, unset: no port is opened."""
    wss_port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT over WebSocket over TLS, usually 8884; 0 takes any free one, unset: no port is opened."""
    tls_certificate: Path | None = None
    """The server's certificate and those up to its authority, PEM. Read again on SIGHUP and when it changes."""
    tls_key: Path | None = None
    """The key of the certificate, PEM without a passphrase. Read again together with it."""
    tls_client_ca: Path | None = None
    """Authorities of client certificates, PEM. A client may then show a certificate; a wrong one is refused."""
    tls_client_required: bool = False
    """Refuse TLS clients without a certificate."""
    tls_client_name: str = setting("san", choices=CERTIFICATE_NAMES)
    """Which name of a client certificate is the user: the first URI, e-mail address or DNS name (`san`, else the
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
    """Send the reason code for a permanent move (0x9D) instead of a temporary one (0x9C)."""

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


METHODS = ("certificate", "jwt", "password", "broker", "http")
"""Ways to prove who one is, in the order that holds when none is given."""

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256")
USER_NAMES = ("match", "any")


@dataclass(frozen=True, kw_only=True)
class AccessConfig:
    """Certificates, tokens and a hook, beside the users of `proxy.password_file`; and how far the access list goes."""

    partly_readable_filters: str = setting("thin", choices=("thin", "refuse"))
    """What becomes of a subscription to a filter of which the access list allows only some topics: it is granted and
    what may not be read is not delivered (`thin`), or it is refused."""
    methods: tuple[str, ...] = ()
    """Which of certificate, jwt, password, broker and http are asked, in order; the first that knows the client
    decides. Empty: those that are configured, in this order."""
    password_checks_waiting_max: int = setting(8_192, minimum=1, maximum=65_536)
    """Most clients whose password waits to be checked; further ones are refused with a code that asks them to try again
    (0x89, 3 in MQTT 3.1.1), and those that wait are let in as fast as the processor checks (docs/scale.md)."""
    passwords_remembered_max: int = setting(100_000, minimum=0)
    """Most passwords that were right and need not be checked again, some 200 bytes of memory for each: at least as many
    as the fleet has users. Only a keyed hash is kept, in memory; a changed entry of the password file makes it void."""
    passwords_remembered_s: int = setting(2_592_000, minimum=0)
    """How long a right password is remembered after its last use."""
    jwt_keys_file: Path | None = None
    """Keys (a JWKS document) that sign tokens; a client sends its token as password. Read again when it changes."""
    jwt_algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    """Signature algorithms that are believed; a key is used for its own algorithm only."""
    jwt_audience: str = ""
    """What `aud` must name; empty: tokens with an `aud` are refused, since they were made for another audience."""
    jwt_issuer: str = ""
    """What `iss` must be; empty: anything."""
    jwt_leeway_s: int = setting(30, minimum=0, maximum=600)
    """How far the clocks of issuer and proxy may differ."""
    jwt_user_claim: str = "sub"
    """The claim that is the user name."""
    jwt_client_claim: str = ""
    """The claim that must be the client id; empty: none must."""
    jwt_groups_claim: str = "groups"
    """The claim that lists groups of the access list."""
    jwt_acl_claim: str = "acl"
    """The claim that lists rules as behind `pattern` in the access list; they hold beside those of the list."""
    jwt_username: str = setting("match", choices=USER_NAMES)
    """Whether a user name in the CONNECT must be that of the token (`match`) or means nothing (`any`)."""
    broker_users: bool = False
    """Whether the users and rules that requests made at the broker (docs/howto/access.md) hold for MQTT clients too,
    beside `proxy.acl_file`, which must be set."""
    http_url: str = ""
    """Where a CONNECT is asked about by POST; https, or http on this machine. Empty: nowhere."""
    http_secret_file: Path | None = None
    """Sent as `Authorization: Bearer …`, so that the hook can authenticate the proxy."""
    http_timeout_ms: int = setting(2_000, minimum=10, maximum=60_000)
    """Longest wait for an answer; without one the client is not let in and gets a code that asks it to try again."""
    http_concurrent_max: int = setting(16, minimum=1, maximum=1_024)
    """Most questions under way; further ones wait."""
    http_waiting_max: int = setting(256, minimum=0, maximum=65_536)
    """Most questions that wait; further clients are refused with a code that asks them to try again."""
    http_cache_ms: int = setting(60_000, minimum=0)
    """How long an accepted client is accepted again without asking."""

    @property
    def thins(self) -> bool:
        """Whether filters are granted of which only some topics may be read."""
        return self.partly_readable_filters == "thin"

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS or self.methods.count(name) > 1:
                raise ValueError(f"methods are {', '.join(METHODS)}, each once, not {name!r}")
        if self.jwt_keys_file is not None and not self.jwt_algorithms:
            raise ValueError("jwt_algorithms is empty: no token could be believed")
        for name in self.jwt_algorithms:
            if name not in JWT_ALGORITHMS:
                raise ValueError(f"jwt_algorithms knows {', '.join(JWT_ALGORITHMS)}, not {name!r}")
        if self.http_url:
            check_url(self.http_url)


def check_url(url: str) -> None:
    """Passwords are sent there: ValueError unless the way is encrypted or on this machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("http_url must be https://host/path or http://127.0.0.1/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("http_url must hold no password; use http_secret_file")
    if parts.scheme == "http" and not _is_this_machine(parts.hostname):
        raise ValueError("http_url must be https: passwords would cross the network in the clear")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


LOOPBACK = "127.0.0.1"
PLAIN_PORT = 1883
"""Opened unasked where no listener is configured: what one tries first."""
EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - listened on only with a password file or by explicit setting


@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """The MQTT front end: listener, sessions, the link to the broker."""

    host: str = ""
    """Address to listen on. Empty means loopback for the plain listeners (`port`, `ws_port`); for those with TLS every
    interface once clients can prove who they are (a password file, token keys, a hook, authorities of client
    certificates). Whatever is set here, clients of other machines must prove it."""
    port: int | None = setting(None, minimum=0, maximum=65535)
    """Port of MQTT without TLS; 0 takes any free one. Unset: 1883, or no such port where another listener is
    configured. Passwords that it takes from other machines cross the network in the clear; the start says so."""
    admin_host: str = "127.0.0.1"
    """Address of the administration port."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration port answers, beside `localhost` and IP addresses."""
    admin_access_keys: tuple[str, ...] = ()
    """`key:secret` pairs that may see the administration pages from other machines (docs/howto/metrics.md)."""
    admin_access_list: Path | None = None
    """Access list for the administration pages, in the format of the brokers' `access_list`; it may be the same file.
    With it, requests from loopback need a key too. Reloaded when it changes."""
    admin_port: int = setting(8082, minimum=0, maximum=65535)
    """Port of /metrics, /livez and /readyz when the proxy is a process of its own; 0 takes any free one."""
    controllers: tuple[str, ...] = setting(("127.0.0.1:9876",), form="host:port")
    """Controllers (name servers) as host:port that are asked where the broker is."""
    broker: str = setting("", form="host:port")
    """Broker as host:port; set it to go there directly without asking a controller."""
    broker_name: str = ""
    """Broker group that MQTT lives in. Empty means the group that has MQTT, whose name the controllers
    hold: the first proxy or bridge that asks decides it, without a name here for the first group by name. Another group
    than that is refused. With name servers that hold no name it must be set where there are several groups, at all
    proxies and bridges to the same one."""
    read_from: str = setting("master", choices=("master", "replica", "nearest"))
    """Where what a subscription with wildcards asks of the past is read: at the `master`; at a `replica`, so that it
    costs the master next to nothing and goes on while there is none; or at the `nearest`, a replica on this machine or
    faster to reach than the master. Where a history begins and ends is asked of the master. It needs `controllers`;
    docs/howto/history.md."""
    access_key_file: Path | None = None
    """One line `key:secret`, readable by its owner alone: signs requests to controllers and broker, which those of
    other machines require (`access_keys` there)."""
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    """TLS of the connections to brokers and controllers, and which servers are trusted."""
    password_file: Path | None = None
    """Users and the hashes of their passwords; see docs/howto/passwords.md. Without it, and without another way to
    prove a name (`proxy.access`), clients on this machine may connect and no others."""
    acl_file: Path | None = None
    """Who may read and write which topics; see docs/howto/access.md. Without it every accepted client may do
    everything, with it what no rule allows is denied."""
    connections_max: int = setting(20_000, minimum=1)
    """Most open sockets; a further one is closed at once and counted."""
    connect_timeout_ms: int = setting(10_000, minimum=100)
    """Longest time between opening a socket and a complete CONNECT, and between a challenge and its answer. Time that
    the proxy itself takes, to check a password or to ask the broker, does not count."""
    packet_size_bytes_max: int = setting(4 * 1024 * 1024, minimum=1024, maximum=16 * 1024 * 1024 - 65_536)
    """Largest MQTT packet taken, its fixed header included, as announced to clients of MQTT 5; a larger one closes the
    connection."""
    in_flight_max: int = setting(4_096, minimum=1, maximum=16_384)
    """QoS 1 messages sent to one client and not yet acknowledged by it; further ones stay in the log. More than 1,024
    only for clients that acknowledge quickly."""
    response_topic_prefix: str = ""
    """Beginning of the response topics of a client of MQTT 5 that asks for Response Information: it gets this
    prefix, its client id and a slash. Empty: it gets none. The access list decides who may read and write there."""
    report_no_subscribers: bool = False
    """Whether PUBACK and PUBREC of MQTT 5 carry 0x10 when a message is stored and its topic has no subscribers; see
    docs/errors.md. It costs the broker a lookup per message, and shows every publisher whether a topic has subscribers,
    also those that may not read it."""
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
    reconnect_delay_ms_max: int = setting(2_000, minimum=10)
    """Longest pause between two attempts to reach the broker; the first one is a twentieth of it."""
    stop_deadline_ms: int = setting(5_000, minimum=100)
    """How long a stopping proxy waits for wills and session states to be confirmed."""
    sys_interval_s: int = setting(10, minimum=0)
    """How often the values of the `$SYS` tree are updated and changes are sent to their subscribers; 0 serves
    none."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """How clients prove who they are, besides the password file."""
    quotas: QuotaConfig = field(default_factory=QuotaConfig)
    """What one client, one user, one address and the whole listener may use."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    """Listeners besides the plain one, and how they end."""

    def __post_init__(self) -> None:
        if self.read_from != "master" and self.broker:
            raise ValueError(f"read_from = {self.read_from!r} finds replicas by the controllers: leave broker empty")

    @property
    def stop_s_max(self) -> float:
        """How long a stop may take as configured: sending away, closing, settling, each with its own deadline."""
        return (self.listen.drain_interval_ms + 2 * self.stop_deadline_ms) / 1_000 + 1.0

    @property
    def plain_port(self) -> int | None:
        """Port of MQTT without TLS; None where none is opened."""
        listen = self.listen
        if self.port is None and (listen.tls_port, listen.ws_port, listen.wss_port) == (None, None, None):
            return PLAIN_PORT
        return self.port

    @property
    def plain_host(self) -> str:
        """The address of listeners without TLS: other machines reach them only where an address is set."""
        return self.host or LOOPBACK

    @property
    def takes_passwords_in_the_clear(self) -> bool:
        """Whether a listener without TLS takes clients of other machines, which prove who they are."""
        is_open = self.plain_port is not None or self.listen.ws_port is not None
        return is_open and self.proves_names and not _is_this_machine(self.plain_host)

    @property
    def listen_host(self) -> str:
        """The address of listeners with TLS: no other machine can connect while clients cannot authenticate."""
        if self.host:
            return self.host
        return EVERY_INTERFACE if self.proves_names else LOOPBACK

    @property
    def proves_names(self) -> bool:
        """Whether a client of another machine has any way to say who it is."""
        access = self.access
        known = (self.password_file, access.jwt_keys_file, access.http_url or None, self.listen.tls_client_ca)
        return any(one is not None for one in known)
