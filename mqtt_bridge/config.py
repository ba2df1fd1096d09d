"""Configuration of the bridge: one declared table, a list of connections in it, a list of rules in each of them.

Invariant: a configuration that was loaded cannot send a message round in a circle by its own rules; what it refuses it
explains. Secrets are not in it, only the names of the files that hold them.

Whether two topic filters can match the same topic: what decides if two rules of a bridge can meet.

Invariant: `overlap` is symmetric, and True exactly when some topic name matches both filters (the empty one,
which no client can publish to, counted). Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remoting.protocol.records.topics import is_wildcard, validate_filter
from runtime.config import setting
from runtime.tls_config import DialTlsConfig

_PLUS, _HASH = "+", "#"


def overlap(first: str, second: str) -> bool:
    """Whether a topic exists that both valid filters match."""
    one, two = first.split("/"), second.split("/")
    if _hidden(one[0], two[0]):
        return False
    for left, right in zip(one, two, strict=False):
        if _HASH in (left, right):
            return True
        if left != right and _PLUS not in (left, right):
            return False
    rest = one[len(two) :] or two[len(one) :]
    return not rest or rest == [_HASH]  # `a/#` also matches `a`


def _hidden(one: str, two: str) -> bool:
    """A wildcard in the first level does not match what begins with a dollar sign."""
    return (one in (_PLUS, _HASH) and two.startswith("$")) or (two in (_PLUS, _HASH) and one.startswith("$"))


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
CLIENT_ID_PREFIX = "lightmq-bridge-"
"""Client ids at the peer begin with this, then the installation, the connection and the direction."""
IN, OUT, BOTH = "in", "out", "both"


@dataclass(frozen=True, kw_only=True)
class RuleConfig:
    """Which topics go which way. A prefix is taken off at one side and put before the rest at the other."""

    direction: str = setting(OUT, choices=(OUT, IN, BOTH))
    """`out`: from our log to the peer; `in`: from the peer into our log; `both`: two rules in one (MQTT 5 only)."""
    filter: str
    """Topic filter behind the prefixes: with `local_prefix = "plant/"` and `filter = "#"` it is `plant/#` here."""
    local_prefix: str = ""
    """What the topics begin with here; usually it ends with a slash."""
    remote_prefix: str = ""
    """What the topics begin with at the peer."""
    qos: int = setting(1, choices=(0, 1, 2))
    """Highest QoS: a message goes with its own if that is lower. At most 1 for `in`, see the how-to."""
    retain: bool = True
    """Whether a retained message is retained at the other side too."""

    def __post_init__(self) -> None:
        for what, prefix in (("local_prefix", self.local_prefix), ("remote_prefix", self.remote_prefix)):
            if is_wildcard(prefix) or "\0" in prefix:
                raise ValueError(f"{what} {prefix!r} is the beginning of topics, it has no wildcard")
        for name in (self.local_filter, self.remote_filter):
            wrong = validate_filter(name)
            if wrong:
                raise ValueError(f"filter {name!r}: {wrong}")
        if self.local_filter.startswith("$"):
            raise ValueError(
                f"{self.local_filter!r}: topics that begin with $ are this broker's own; set a local_prefix"
            )
        if self.remote_filter.startswith("$share/"):
            raise ValueError(f"{self.remote_filter!r}: a bridge subscribes for itself, not as a member of a group")
        if self.comes_in and self.qos > 1:
            raise ValueError(
                "qos = 2 is for out: the MQTT library confirms such a message before it is stored here, so that it "
                "would be lost if this process ended then; with qos = 1 it is confirmed when it is stored"
            )

    @property
    def local_filter(self) -> str:
        """The whole filter at our side."""
        return self.local_prefix + self.filter

    @property
    def remote_filter(self) -> str:
        """The whole filter at the peer."""
        return self.remote_prefix + self.filter

    @property
    def goes_out(self) -> bool:
        """Whether it takes messages to the peer."""
        return self.direction != IN

    @property
    def comes_in(self) -> bool:
        """Whether it takes messages from the peer."""
        return self.direction != OUT


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """One other MQTT broker."""

    name: str
    """What it is called here: in logs, metrics, and in the name of the offsets that mark its progress."""
    host: str
    """Where it answers."""
    port: int = setting(1883, minimum=1, maximum=65_535)
    """Its MQTT port."""
    version: str = setting("5", choices=("3.1.1", "5"))
    """MQTT version of the connection."""
    transport: str = setting("tcp", choices=("tcp", "websockets"))
    """How MQTT travels."""
    websocket_path: str = "/mqtt"
    """Path of the WebSocket."""
    username: str = ""
    """User at the peer; empty: none."""
    password_file: Path | None = None
    """File whose first line is the password."""
    tls: bool = False
    """Whether to use TLS; the peer's certificate and name are verified."""
    ca_file: Path | None = None
    """Certificates (PEM) the peer's is checked with; unset: those of the system."""
    certificate_file: Path | None = None
    """Certificate (PEM) to show to the peer."""
    key_file: Path | None = None
    """Key of that certificate."""
    client_id: str = ""
    """Client id at the peer, to which `-in` and `-out` are added; empty: made of the names of both sides."""
    peer_name: str = ""
    """`bridge.name` of the peer if it is a LightMQ that bridges back to us: what came from there is not sent there."""
    keep_alive_s: int = setting(60, minimum=5, maximum=65_535)
    """How long the connection may be silent before it is tested."""
    session_expiry_s: int = setting(7 * 24 * 3600, minimum=0, maximum=0xFFFF_FFFF)
    """How long the peer shall keep what it has for us while we are away (MQTT 5)."""
    in_flight_max: int = setting(256, minimum=1, maximum=65_535)
    """Messages on the way to the peer without its acknowledgement, and from it without ours."""
    read_bytes: int = setting(256 * 1024, minimum=4_096, maximum=8 * 1024 * 1024)
    """Bytes of records read from the log at a time."""
    unconfirmed_bytes_max: int = setting(4 * 1024 * 1024, minimum=65_536)
    """Bytes taken from the peer and not yet stored here; above it the peer is not read."""
    commit_interval_ms: int = setting(500, minimum=10)
    """How often the place up to which the peer has everything is stored; after a crash the rest is sent again."""
    reconnect_delay_ms_min: int = setting(500, minimum=10)
    """Pause after the first failure; it doubles with each further one."""
    reconnect_delay_ms_max: int = setting(4_000, minimum=10)
    """Longest pause between two attempts: with it a peer that answers again is connected within 5 s."""
    refusals_max: int = setting(3, minimum=1)
    """How often a message is offered that the peer refuses for a reason that may pass; then it is dropped."""
    start: str = setting("latest", choices=("latest", "earliest"))
    """Where a new `out` rule begins: with what is published from now on, or with everything the log has."""
    forward_bridged: bool = False
    """Send on what came by a bridge over 3.1.1, which carries no marks of where it has been. Only without circles."""
    rules: tuple[RuleConfig, ...] = ()
    """What goes over it."""

    def __post_init__(self) -> None:
        for what, name in (("name", self.name), ("peer_name", self.peer_name or "x")):
            if not NAME.match(name):
                raise ValueError(f"{what} {name!r}: 1 to 64 letters, digits, _ and -")
        if not self.rules:
            raise ValueError(f"{self.name} has no rules: nothing would go over it")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.ca_file and not self.tls:
            raise ValueError("ca_file is set but tls is not")
        _refuse_doubles(self.rules)

    @property
    def is_v5(self) -> bool:
        """Whether messages can carry marks of where they have been."""
        return self.version == "5"


@dataclass(frozen=True, kw_only=True)
class BridgeConfig:
    """Bridges to other MQTT brokers; with no connections there is nothing to do. See docs/howto/bridge.md."""

    name: str = ""
    """What this installation is called at its peers; every installation that bridges needs a name of its own."""
    controllers: tuple[str, ...] = setting(("127.0.0.1:9876",), form="host:port")
    """Controllers (name servers) as host:port that are asked where our broker is, by `lightmq bridge`."""
    broker: str = setting("", form="host:port")
    """Our broker as host:port; set it to go there directly without asking a controller."""
    broker_name: str = ""
    """Broker group whose messages are bridged. Empty means the group that has MQTT, whose name the controllers
    hold: the first proxy or bridge that asks decides it, without a name here for the first group by name. Another group
    than that is refused. With name servers that hold no name it must be set where there are several groups, at all
    proxies and bridges to the same one."""
    access_key_file: Path | None = None
    """One line `key:secret`, readable by its owner alone: signs requests to controllers and broker, which those of
    other machines require (`access_keys` there)."""
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    admin_host: str = "127.0.0.1"
    """Address of the administration port of `lightmq bridge`."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration port answers, beside `localhost` and IP addresses."""
    admin_access_keys: tuple[str, ...] = ()
    """`key:secret` pairs that may see the administration pages from other machines (docs/howto/metrics.md)."""
    admin_access_list: Path | None = None
    """Access list for the administration pages, in the format of the brokers' `access_list`; it may be the same file.
    With it, requests from loopback need a key too. Reloaded when it changes."""
    admin_port: int = setting(8083, minimum=0, maximum=65_535)
    """Port of /metrics, /livez and /readyz of `lightmq bridge`; 0 takes any free one."""
    stop_deadline_ms: int = setting(5_000, minimum=100)
    """How long a stopping bridge waits for acknowledgements that are on their way."""
    connections: tuple[ConnectionConfig, ...] = ()
    """The other brokers."""

    def __post_init__(self) -> None:
        if self.connections and not NAME.match(self.name):
            raise ValueError(
                f"name {self.name!r}: an installation with a bridge has a name of 1 to 64 letters, digits, _ and -"
            )
        names = [connection.name for connection in self.connections]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two connections are called {', '.join(twice)}")
        for connection in self.connections:
            if connection.peer_name and connection.peer_name == self.name:
                raise ValueError(f"connection {connection.name}: peer_name is the name of this installation")
        _refuse_circles(self.connections)


def _refuse_doubles(rules: Sequence[RuleConfig]) -> None:
    """Rules that bring the same remote topic would bring its messages twice."""
    coming = [rule for rule in rules if rule.comes_in]
    for index, one in enumerate(coming):
        for two in coming[index + 1 :]:
            if overlap(one.remote_filter, two.remote_filter):
                raise ValueError(f"{one.remote_filter!r} and {two.remote_filter!r} bring some of the same topics twice")


def _refuse_circles(connections: Sequence[ConnectionConfig]) -> None:
    """What goes out to a broker must not come in again, unless both directions mark where a message has been."""
    for sender in connections:
        for receiver in connections:
            same = (sender.host, sender.port) == (receiver.host, receiver.port)
            if same and not (sender.is_v5 and receiver.is_v5):
                for out, back in _meeting(sender, receiver):
                    raise ValueError(
                        f"connections {sender.name} and {receiver.name}: {out.remote_filter!r} goes out to "
                        f"{sender.host} and would come back in by {back.remote_filter!r}; with MQTT 3.1.1 a message "
                        f"cannot say where it has been: use version 5, or prefixes that keep the two ways apart"
                    )


def _meeting(sender: ConnectionConfig, receiver: ConnectionConfig) -> Iterator[tuple[RuleConfig, RuleConfig]]:
    for out in sender.rules:
        for back in receiver.rules:
            if out.goes_out and back.comes_in and overlap(out.remote_filter, back.remote_filter):
                yield out, back
