"""Admission of requests; request code -> handler, the only dispatch of a server; and the route for refused clients.

`Access` admits clients on this machine, others only with a signature by a known key. RocketMQ's clients look up a route
before they send, and turn its refusal into "No route info of this topic", with the reason only in their log. So a
client that signs the lookup with a wrong key, or with a key without a right to the topic, gets a route with one fake
broker: the port it asked, which refuses the next request with the reason. That route depends only on the address at
which this server was reached: it is the same whether or not the topic exists, and for unknown keys, wrong secrets and
missing rights.
Invariants: without keys peers on other machines are always refused; a bound request is accepted once, on the connection
it was signed for; every request that is not one-way is answered exactly once: by its handler, by `later`, or with the
failure. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from remoting import clock
from remoting.protocol.addresses import join_address
from remoting.protocol.bodies.controller_body import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
    encode_body,
)
from remoting.protocol.errors import LocalMisuse, NotOffered, Refused
from remoting.protocol.frames.codes import NAMES, RequestCode, ResponseCode, request_name
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.calls import failure_reply, note_refusal
from remoting.transport.contracts import Handler, Peer
from remoting.transport.signature import (
    ACCESS_KEY_FIELD,
    BOUND_PREFIX,
    CHALLENGE_BYTES,
    CHALLENGE_FIELD,
    COUNT_DIGITS_MAX,
    COUNT_FIELD,
    SIGNATURE_FIELD,
    bound_signature,
    date_signature,
    signature,
)

PROVED_ATTRIBUTE = "proved"
"""Set on peers that have sent a valid signature; see `remoting.server.peer`."""


SESSION_ATTRIBUTE = "signing session"
"""Attribute of a peer with its challenge and the number of its last bound request."""


DIGEST_KEY = secrets.token_bytes(32)
"""Of this process: digests of secrets mean nothing elsewhere."""
CHALLENGES_MAX = 10
"""How often a connection may request its challenge, which nothing else limits; further requests are refused."""


@dataclass(slots=True)
class _Session:
    """State for verifying the bound requests of one connection."""

    challenge: bytes
    count: int = 0
    asked: int = 0
    """How often the challenge was requested."""


class Access:
    """Checks each request of a server; `keys` maps access keys to secrets."""

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        *,
        open_to_all: bool = False,
        keys_count: bool = False,
        bound_only: bool = False,
        created: dict[str, str] | None = None,
    ) -> None:
        """`keys_count`: a claimed key is checked even where none is needed, because rights depend on it. `bound_only`:
        signatures that can be replayed are refused, including those of RocketMQ's own clients. `created`: live table of
        the keys and secrets of users made by requests; `keys` have precedence."""
        self._bound_only = bound_only
        self._keys = dict(keys or {})
        self._created = {} if created is None else created
        self._open_to_all = open_to_all
        self._keys_count = keys_count

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer needs no proof for anything."""
        return (peer.loopback or self._open_to_all) and not self._keys_count

    def knows(self, command: Command) -> bool:
        """Whether the request claims a known key, without proof."""
        access_key = command.fields.get(ACCESS_KEY_FIELD)
        return SIGNATURE_FIELD in command.fields and (access_key in self._keys or access_key in self._created)

    def admit(self, peer: Peer, command: Command) -> Command | None:
        """Return the challenge if it is requested, which needs no right; otherwise None, or raise as `check`."""
        if command.code == RequestCode.SIGN_CHALLENGE:
            fresh = _Session(secrets.token_bytes(CHALLENGE_BYTES))
            session = cast("_Session", peer.attributes.setdefault(SESSION_ATTRIBUTE, fresh))
            session.asked += 1
            if session.asked > CHALLENGES_MAX:
                raise Refused(ResponseCode.NO_PERMISSION, "a connection needs its challenge once")
            return command.reply(fields={CHALLENGE_FIELD: session.challenge.hex()})
        self.check(peer, command)
        return None

    def check(self, peer: Peer, command: Command) -> None:
        """Raise `Refused` (NO_PERMISSION) unless the peer may send this request."""
        access_key = command.fields.get(ACCESS_KEY_FIELD)
        if (peer.loopback or self._open_to_all) and not (self._keys_count and access_key):
            return
        if not access_key:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"requests from {peer.address} need AccessKey and Signature: only this machine may send without",
            )
        secret = self._secret_of(access_key)
        # An unknown key costs the same work as a wrong signature and gets the same answer.
        given = command.fields.get(SIGNATURE_FIELD, "")
        if given.startswith(BOUND_PREFIX):
            session, count = self._place(peer, command)
            expected = bound_signature(command, session.challenge, count, secret or "")
        else:
            self._check_kind()
            session, count = None, 0
            expected = signature(command.fields, command.body, secret or "")
        if not hmac.compare_digest(expected.encode(), given.encode()) or secret is None:
            raise Refused(ResponseCode.NO_PERMISSION, f"the signature by access key {access_key!r} is not valid")
        if session is not None:
            session.count = count
        peer.attributes[PROVED_ATTRIBUTE] = True

    def check_client(self, access_key: str, date_time: str, given: str, *, loopback: bool) -> None:
        """Raise `Refused` (NO_PERMISSION) unless a proxy may serve this client, which signed the time of its request.

        `loopback`: the client is on the proxy's machine.
        """
        if (loopback or self._open_to_all) and not (self._keys_count and access_key):
            return
        if not access_key:
            raise Refused(ResponseCode.NO_PERMISSION, "clients of other machines need an access key and a signature")
        self._check_kind()
        secret = self._secret_of(access_key)
        expected = date_signature(date_time, secret or "")
        same = hmac.compare_digest(expected.encode(), given.lower().encode("utf-8", "replace"))
        if not same or secret is None:
            raise Refused(ResponseCode.NO_PERMISSION, f"the signature by access key {access_key!r} is not valid")

    def knows_secret(self, access_key: str, secret: str) -> bool:
        """Whether this is the secret of a known key; takes the same time for an unknown key as for a wrong secret."""
        known = self._secret_of(access_key)
        same = hmac.compare_digest((known or "").encode(), secret.encode("utf-8", "surrogatepass"))
        return same and known is not None

    def digest(self, access_key: str) -> bytes | None:
        """Return what changes when the key's secret does, and reveals nothing of it; None for an unknown key."""
        secret = self._secret_of(access_key)
        return None if secret is None else hmac.digest(DIGEST_KEY, secret.encode("utf-8", "surrogatepass"), "sha256")

    def proved_by_secret(self, access_key: str, secret: str, *, loopback: bool) -> str | None:
        """Return the key that a reader of an administration page proves by its secret; None when it is not admitted.

        Empty for a peer that needs no proof and gives none that matters.
        """
        if (loopback or self._open_to_all) and not (self._keys_count and access_key):
            return ""
        return access_key if self.knows_secret(access_key, secret) else None

    def _secret_of(self, access_key: str) -> str | None:
        secret = self._keys.get(access_key)
        return self._created.get(access_key) if secret is None else secret

    @staticmethod
    def _place(peer: Peer, command: Command) -> tuple[_Session, int]:
        """Return the session and number of a bound request. Raises Refused for a repeated one."""
        session = peer.attributes.get(SESSION_ATTRIBUTE)
        digits = command.fields.get(COUNT_FIELD, "")
        if not isinstance(session, _Session) or not (digits.isascii() and digits.isdigit()):
            raise Refused(ResponseCode.NO_PERMISSION, "the request is signed for another connection")
        if len(digits) > COUNT_DIGITS_MAX or int(digits) <= session.count:
            raise Refused(ResponseCode.NO_PERMISSION, f"signed request {digits[:20]} was already received")
        return session, int(digits)

    def _check_kind(self) -> None:
        if self._bound_only:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "this server refuses signatures that can be replayed (bound_signatures_only), such as those of "
                "RocketMQ's own clients",
            )


def parse_access_keys(pairs: Iterable[str]) -> dict[str, str]:
    """Return `key:secret` texts as a table. LocalMisuse names the number of a malformed one, not its secret."""
    keys: dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        key, separator, secret = pair.partition(":")
        if not separator or not key or not secret:
            raise LocalMisuse(f"access_keys entry {number} is not of the form key:secret")
        keys[key] = secret
    return keys


BROKER_NAME = "access-refused"
"""Name of cluster and broker in the route, shown in clients' errors."""


@runtime_checkable
class Reached(Protocol):
    """A peer that connected to an address of this server."""

    reached_at: tuple[str, int] | None
    """This server's host and port of the connection."""


def refusal_route(peer: Peer, command: Command, advertised_host: str = "") -> Command | None:
    """Return the route to send instead of a refusal; None to send the refusal.

    `advertised_host`: this machine's name for clients, if it is not the address of the connection. LightMQ's own
    clients, whose signatures are bound, report the refusal itself.
    """
    if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or not command.fields.get(ACCESS_KEY_FIELD):
        return None
    if command.fields.get(SIGNATURE_FIELD, "").startswith(BOUND_PREFIX):
        return None
    place = peer.reached_at if isinstance(peer, Reached) else None
    if place is None:
        return None
    address = join_address(advertised_host or place[0], place[1])
    route = TopicRoute(
        queue_datas=[QueueData(BROKER_NAME, 1, 1, PERM_READ | PERM_WRITE)],
        broker_datas=[BrokerData(BROKER_NAME, BROKER_NAME, {MASTER_ID: address})],
    )
    return command.reply(body=encode_body(route))


PENDING_ATTRIBUTE = "pending replies"
"""Attribute of a peer with the tasks of requests that are answered later, so that its end can cancel them."""


FEATURES: tuple[tuple[str, frozenset[int]], ...] = (
    ("new questions about an expired transaction", frozenset({Code.RESUME_CHECK_HALF_MESSAGE})),
    ("moving POP records from one store to another (exportPopRecord)", frozenset({Code.POP_ROLLBACK})),
    ("lists of how groups consume", frozenset({Code.GET_ALL_MESSAGE_REQUEST_MODE})),
    ("static topics and their logical queues", frozenset({Code.UPDATE_AND_CREATE_STATIC_TOPIC})),
    ("requests relayed to a consumer", frozenset({Code.CONSUME_MESSAGE_DIRECTLY, Code.GET_CONSUMER_RUNNING_INFO})),
    ("copies of a broker's own files", frozenset({
        Code.GET_ALL_DELAY_OFFSET, Code.GET_TIMER_CHECK_POINT, Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    })),
    ("figures of RocketMQ's timer wheel (see `lightmq timers`)", frozenset({Code.GET_TIMER_METRICS})),
    ("another engine for timers", frozenset({Code.SWITCH_TIMER_ENGINE})),
    ("consume queues in RocksDB", frozenset({Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS})),
    ("topics that are forbidden to single groups", frozenset({Code.UPDATE_AND_GET_GROUP_FORBIDDEN})),
    ("control of reads of cold data", frozenset({
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, Code.GET_COLD_DATA_FLOW_CTR_INFO,
        Code.SET_COMMITLOG_READ_MODE,
    })),
    ("brokers in a container", frozenset({Code.ADD_BROKER, Code.REMOVE_BROKER})),
    ("replicas that stand in for a master", frozenset({Code.NOTIFY_MIN_BROKER_ID_CHANGE})),
    ("replication as RocketMQ's brokers do it among themselves", frozenset({
        Code.EXCHANGE_BROKER_HA_INFO, Code.RESET_MASTER_FLUSH_OFFSET,
    })),
    ("filter servers", frozenset({Code.REGISTER_FILTER_SERVER, Code.REGISTER_MESSAGE_FILTER_CLASS})),
    ("units", frozenset({
        Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    })),
    ("requests that RocketMQ has only a number for", frozenset({
        Code.QUERY_BROKER_OFFSET, Code.GET_TOPIC_CONFIG_LIST, Code.GET_TOPIC_NAME_LIST, Code.TRIGGER_DELETE_FILES,
        Code.GET_CLIENT_CONFIG, Code.SUSPEND_CONSUMER, Code.RESUME_CONSUMER, Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_BROKER, Code.ADJUST_CONSUMER_THREAD_POOL, Code.WHO_CONSUME_THE_MESSAGE,
    })),
)  # fmt: skip
"""The purpose of RocketMQ's codes that are not supported, for the remark of their refusal."""

PLACES: tuple[tuple[str, frozenset[int]], ...] = (
    ("controllers, which are the name servers", frozenset({
        Code.PUT_KV_CONFIG, Code.GET_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE,
        Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.BROKER_HEARTBEAT, Code.QUERY_DATA_VERSION,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO, Code.GET_TOPICS_BY_CLUSTER,
        Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.DELETE_TOPIC_IN_NAMESRV, Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.UPDATE_NAMESRV_CONFIG, Code.GET_NAMESRV_CONFIG, Code.UPDATE_CONTROLLER_CONFIG, Code.GET_CONTROLLER_CONFIG,
        Code.CLEAN_BROKER_DATA, Code.FORGET_GROUP, Code.CONTROLLER_ALTER_SYNC_STATE_SET, Code.CONTROLLER_ELECT_MASTER,
        Code.CONTROLLER_REGISTER_BROKER, Code.CONTROLLER_GET_REPLICA_INFO, Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA, Code.CONTROLLER_GET_NEXT_BROKER_ID, Code.CONTROLLER_APPLY_BROKER_ID,
        Code.AGREED_USERS, Code.CHANGE_USERS, Code.LIST_CONTROLLERS, Code.CHANGE_CONTROLLERS,
        Code.MQTT_GROUP, Code.MOVE_MQTT,
    })),
    ("clients", frozenset({
        Code.CHECK_TRANSACTION_STATE, Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.PUSH_REPLY_MESSAGE_TO_CLIENT, Code.NOTIFY_UNSUBSCRIBE_LITE,
    })),
    ("replicated brokers", frozenset({Code.GET_BROKER_EPOCH_CACHE, Code.NOTIFY_BROKER_ROLE_CHANGED})),
)  # fmt: skip
"""Who answers RocketMQ's codes that not every server has, for the remark of another one; the rest: brokers."""

NotOfferedNote = Callable[[Peer, Command, NotOffered], object]
Judge = Callable[[Peer, Command], None]


def not_supported(code: int) -> str:
    """Return the remark for a request without a handler: RocketMQ's text, and the feature or servers it belongs to."""
    remark = f" request type {code} not supported"
    for feature, codes in FEATURES:
        if code in codes:
            return f"{remark}: LightMQ does not offer {feature}"
    if code not in NAMES:
        return remark
    place = next((place for place, codes in PLACES if code in codes), "brokers")
    return f"{remark}: {request_name(code)} is a request to {place}"


Took = Callable[[int, int], None]
"""(request code, nanoseconds that its handler kept the loop)."""


class Router:
    """The handler of a whole server: checks access, then calls the table's entry for the request's code."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        access: Access | None = None,
        not_offered: NotOfferedNote | None = None,
        judge_unserved: Judge | None = None,
        advertised_host: str = "",
        took: Took | None = None,
    ) -> None:
        """`not_offered(peer, request, refusal)` is called for requests for features that are not offered, among them
        those without a handler, unless `judge_unserved` raises, as a handler's check of rights would;
        `advertised_host`: see `refusal_route`; `took(code, nanoseconds)` is called when a handler has returned."""
        self._handlers = dict(handlers)
        self._advertised_host = advertised_host
        self._access = access
        self._not_offered = not_offered
        self._judge_unserved = judge_unserved
        self._took = took

    def __call__(self, peer: Peer, command: Command) -> Command | None:
        """Answer one request; raises what the handler raises, `Refused` for an unknown code or missing access."""
        if self._access is not None:
            try:
                answered = self._access.admit(peer, command)
            except Refused:
                answered = self._instead_of_refusal(peer, command)
                if answered is None:
                    raise
                note_refusal(peer)
            if answered is not None:
                return answered
        handler = self._handlers.get(command.code)
        if handler is None:
            if self._judge_unserved is not None:
                self._judge_unserved(peer, command)
            missing = NotOffered(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, not_supported(command.code))
            self._note(peer, command, missing)
            raise missing
        try:
            return self._handled(handler, peer, command)
        except NotOffered as refused:
            self._note(peer, command, refused)
            raise
        except Refused as refused:
            answered = self._instead_of_refusal(peer, command) if refused.code == ResponseCode.NO_PERMISSION else None
            if answered is None:
                raise
            return answered

    def _handled(self, handler: Handler, peer: Peer, command: Command) -> Command | None:
        if self._took is None:
            return handler(peer, command)
        started_ns = clock.monotonic_ns()
        answered = handler(peer, command)
        self._took(command.code, clock.monotonic_ns() - started_ns)
        return answered

    def _note(self, peer: Peer, command: Command, refused: NotOffered) -> None:
        if self._not_offered is not None:
            self._not_offered(peer, command, refused)

    def _instead_of_refusal(self, peer: Peer, command: Command) -> Command | None:
        """Return the route that shows a client the reason of its refusal, if this server serves routes."""
        served = Code.GET_ROUTEINFO_BY_TOPIC in self._handlers
        return refusal_route(peer, command, self._advertised_host) if served else None


def later(peer: Peer, command: Command, awaitable: Awaitable[Command | None]) -> None:
    """Send the awaitable's result once it is there; a failure is answered like a handler's, the peer's end cancels."""
    task = asyncio.ensure_future(_reply(peer, command, awaitable))
    tasks = peer.attributes.get(PENDING_ATTRIBUTE)
    if tasks is None:
        tasks = peer.attributes[PENDING_ATTRIBUTE] = set()
        pending = cast("set[asyncio.Task[None]]", tasks)
        peer.on_close(lambda _reason: _cancel(pending))
    pending = cast("set[asyncio.Task[None]]", tasks)
    pending.add(task)
    task.add_done_callback(pending.discard)


async def _reply(peer: Peer, command: Command, awaitable: Awaitable[Command | None]) -> None:
    try:
        reply = await awaitable
    except Exception as error:  # noqa: BLE001 - the peer always gets an answer
        reply = failure_reply(peer, command, error)
    if reply is not None and not command.is_oneway:
        peer.send(reply)


def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
