"""What a broker asks the MQTT proxies connected to it for an operator, and what they answer.

    PROXY_PRESENT   a proxy names itself, after every connection; from then on it is asked
    PROXY_ASKED     broker -> proxy, one-way: a question with its arguments
    PROXY_ANSWERED  proxy -> broker, one-way: the answer to the question of that number, or why there is none

Bodies are msgpack arrays. A question goes out as a push and its answer comes as a request, because a peer in the same
process takes no requests. Members with a default were added later: where one is missing, the default applies.
Invariant: the text of a search is compared literally, never as a pattern. Thread rule: plain values.
"""

from __future__ import annotations

import msgspec

from remoting.protocol.bodies.packed import decode, encode

__all__ = [
    "ClientLine",
    "ClientPage",
    "ClientQuery",
    "LimitsNamed",
    "ProxyAnswered",
    "ProxyAsked",
    "ProxyPresent",
    "QuotaAnswer",
    "RuleAnswer",
    "RuleLinesAnswer",
    "RuleLinesQuestion",
    "RuleQuestion",
    "SparkReport",
    "decode",
    "encode",
]

ASK_CLIENTS = "clients"
ASK_KICK = "kick"
ASK_ACCESS = "access"
ASK_QUOTAS = "quotas"
ASK_RULES = "rules"
ASK_LIMITS = "limits"
"""The questions; a proxy that does not know one says so in `ProxyAnswered.error`."""

PAGE_MAX = 200
"""Most clients in one page."""


class ProxyPresent(msgspec.Struct, array_like=True):
    """One proxy as it shows itself."""

    name: str
    """The same after every reconnection, unique among the proxies of an installation."""
    version: str
    since_ms: int
    """When it started, ms since 1970."""
    listeners: dict[str, int]
    """Open ports by the name of their listener: tcp, tls, ws, wss."""


class LimitsNamed(msgspec.Struct, array_like=True):
    """Limits of the broker that proxies check; nobody waits for an answer."""

    delay_s_max: int
    """Longest delay a message may ask for."""


class ProxyAsked(msgspec.Struct, array_like=True):
    """A question; `body` is the struct that belongs to it."""

    number: int
    question: str
    body: bytes = b""


class ProxyAnswered(msgspec.Struct, array_like=True):
    """The answer to question `number`; with an `error` there is no answer."""

    number: int
    body: bytes = b""
    error: str = ""


class ClientQuery(msgspec.Struct, array_like=True):
    """Connected clients behind the mark `after` of the order `sort` (`client_order`) that match every other text, empty
    ones apart."""

    limit: int
    after: str = ""
    client: str = ""
    """Exactly this client id."""
    prefix: str = ""
    """Beginning of the client id."""
    contains: str = ""
    """Part of the client id."""
    user: str = ""
    """Exactly this user."""
    address: str = ""
    """Beginning of the address."""
    sort: str = ""
    """By id when empty."""


class ClientLine(msgspec.Struct, array_like=True):
    """One connected client."""

    client: str
    user: str | None
    address: str
    version: str
    """3.1.1 or 5."""
    protocol: str
    """Name of the listener: tcp, tls, ws, wss."""
    since_ms: int
    keep_alive_s: int
    clean: bool
    """Whether its CONNECT asked for a new session."""
    in_flight: int
    """Messages sent to it and not acknowledged."""
    backlog: int
    """Messages that wait for it, those in flight not counted."""
    subscriptions: int
    messages_in: int = 0
    """PUBLISHes received on this connection, refused ones too."""
    messages_out: int = 0
    """PUBLISHes sent, repeated ones too, without those of `$SYS`."""
    bytes_in: int = 0
    """Of MQTT packets of all kinds; without TLS and frames of WebSocket."""
    bytes_out: int = 0
    messages_in_per_s: float = 0.0
    """The rates are those of the last 5 to 10 seconds."""
    messages_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0


class ClientPage(msgspec.Struct, array_like=True):
    """The first clients of a query, in its order; `total` counts those connected, `matching` those of the query."""

    clients: list[ClientLine]
    total: int
    matching: int


class RuleQuestion(msgspec.Struct, array_like=True):
    """Whether a client may do something by the rules that a proxy has in force."""

    action: str
    """publish, will, subscribe, history or deliver."""
    topic: str
    user: str = ""
    """Empty: a client without a proven name."""
    client: str = ""
    qos: int = 0
    retain: bool = False


class RuleAnswer(msgspec.Struct, array_like=True):
    """The verdict; `rule` is the deciding rule with its place in the file, empty without one."""

    allowed: bool
    reason: str
    rule: str


class RuleLinesQuestion(msgspec.Struct, array_like=True):
    """Lines of the access list in force, `limit` of them from number `first` on."""

    first: int
    limit: int


class RuleLinesAnswer(msgspec.Struct, array_like=True):
    """(for whom, place, text) of these lines; `open`: there is no list, and every client may do everything."""

    lines: list[tuple[str, str, str]]
    total: int
    open: bool


class QuotaAnswer(msgspec.Struct, array_like=True):
    """What one proxy allows and uses."""

    limits: dict[str, float]
    used: dict[str, float]
    refusals: dict[str, float]
    """Counter{reason} -> how often, since the start."""


PLACES_MAX = 1_000
"""Queues in one report of a Spark query, those furthest behind first."""


class SparkReport(msgspec.Struct, array_like=True):
    """One batch of a Spark query, or its end."""

    id: str
    """The query's, the same after a restart from its checkpoint."""
    run: str
    name: str
    status: str
    """running, ended or failed."""
    batch: int = 0
    rows: int = 0
    """Rows of this batch."""
    rows_per_s: float = 0.0
    """Rows processed per second of the batch."""
    batch_ms: int = 0
    lag_messages: int = 0
    """Messages of all queues that the batch did not read."""
    lag_s: float = 0.0
    """For how long the oldest of them has been stored."""
    state_rows: int = 0
    state_bytes: int = 0
    last_error: str = ""
    time_ms: int = 0
    """When Spark made the batch, by the clock of the driver."""
    places: list[tuple[str, str, int, int]] = []
    """(topic, broker, queue, offset that the batch read up to)."""
