"""Pages of connected clients over several proxies, and the end of connections and sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from remoting.protocol.bodies.client_order import ClientOrder
from remoting.protocol.bodies.operating_body import (
    ClientLine,
    ClientPage,
    ClientQuery,
    LimitsNamed,
    ProxyAnswered,
    ProxyAsked,
    ProxyPresent,
    decode,
    encode,
)
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionClose,
    SessionFenced,
    SessionOpen,
    SessionOpened,
    SubscribeRequest,
    WillDue,
    WillSpec,
)
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.operating.asking import asked


def line(client: str, since_ms: int = 1) -> ClientLine:
    return ClientLine(client, None, "127.0.0.1", "5", "tcp", since_ms, 60, True, 0, 0, 1)


@dataclass
class ScriptedProxy:
    """A proxy with some clients; `hands_in` makes a kick close the session first, as a proxy does."""

    connection: object
    clients: list[ClientLine]
    fenced: list[SessionFenced] = field(default_factory=list)
    due: list[WillDue] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    hands_in: bool = True
    limits: list[LimitsNamed] = field(default_factory=list)
    error: str = ""

    async def show(self, name: str) -> ScriptedProxy:
        self.connection.on_push(self.pushed)
        await self.ask(Code.PROXY_PRESENT, ProxyPresent(name, "1", 5, {"tcp": 1883}))
        return self

    async def ask(self, code: int, message) -> Command:
        reply = await self.connection.request(Command(code, body=encode(message)))
        assert reply.code == 0, reply.remark
        return reply

    async def open(self, client: str, *, will: WillSpec | None = None) -> None:
        reply = await self.ask(Code.SESSION_OPEN, SessionOpen(client, False, None, 60, will))
        self.epochs[client] = decode(SessionOpened, reply.body).epoch

    def pushed(self, command: Command) -> None:
        if command.code == Code.SESSION_FENCED:
            self.fenced.append(decode(SessionFenced, command.body))
        elif command.code == Code.WILL_DUE:
            self.due.append(decode(WillDue, command.body))
        elif command.code == Code.PROXY_ASKED:
            asked = decode(ProxyAsked, command.body)
            if asked.question == "limits":
                self.limits.append(decode(LimitsNamed, asked.body))
                return
            page = self.page(asked.question, decode(ClientQuery, asked.body))
            answered = ProxyAnswered(asked.number, encode(page), self.error)
            self.connection.oneway(Command(Code.PROXY_ANSWERED, body=encode(answered)))

    def page(self, question: str, query: ClientQuery) -> ClientPage:
        if question == "kick":
            known = [one for one in self.clients if one.client == query.client]
            if known and self.hands_in:
                close = SessionClose(query.client, self.epochs[query.client], True, [], [])
                self.connection.oneway(Command(Code.SESSION_CLOSE, body=encode(close)))
            return ClientPage(known, len(self.clients), len(known))
        order = ClientOrder.parse(query.sort)
        begin, found = order.behind(query.after), []
        for one in self.clients:
            key = order.key(order.value({order.figure: getattr(one, order.figure, 0)}), one.client)
            if query.contains in one.client and (begin is None or key > begin):
                found.append((key, one))
        lines = [one for _, one in sorted(found, key=lambda pair: pair[0])]
        return ClientPage(lines[: query.limit], len(self.clients), len(lines))


async def test_a_proxy_is_told_the_limits_that_it_checks_and_their_changes(running) -> None:
    """The longest delay is a limit of the broker alone."""
    proxy = await ScriptedProxy(running.connect(), []).show("p1")
    change = Command(Code.UPDATE_BROKER_CONFIG, body=b"delay_s_max=9\n")
    assert (await running.connect().request(change)).code == 0
    await running.settle()
    assert [named.delay_s_max for named in proxy.limits] == [3 * 86_400, 9]


async def test_pages_of_several_proxies_are_merged_by_client_id(running) -> None:
    one = await ScriptedProxy(running.connect(), [line("a"), line("c"), line("e", 9)]).show("p1")
    await ScriptedProxy(running.connect(), [line("b"), line("d"), line("e", 3)]).show("p2")
    first = await asked(running, Code.MQTT_CLIENTS, limit="3")
    assert [(row["client"], row["proxy"]) for row in first["clients"]] == [("a", "p1"), ("b", "p2"), ("c", "p1")]
    assert (first["next"], first["total"], first["missing"]) == ("c", 6, [])
    rest = await asked(running, Code.MQTT_CLIENTS, limit="3", after=first["next"])
    assert [(row["client"], row["proxy"]) for row in rest["clients"]] == [("d", "p2"), ("e", "p1")]
    assert rest["next"] == ""
    one.error = "busy"
    less = await asked(running, Code.MQTT_CLIENTS, contains="b")
    assert ([row["client"] for row in less["clients"]], less["missing"]) == (["b"], ["p1"])
    assert await asked(running, Code.MQTT_CLIENTS, limit="0") == (
        ResponseCode.INVALID_PARAMETER, "limit 0 is no number from 1 on",
    )  # fmt: skip


async def test_sorted_pages_of_several_proxies_are_merged(running) -> None:
    def at(client: str, rate: float, since_ms: int = 1) -> ClientLine:
        return replace(line(client, since_ms), messages_in_per_s=rate)

    await ScriptedProxy(running.connect(), [at("a", 0.5), at("c", 7), at("e", 2, 9)]).show("p1")
    await ScriptedProxy(running.connect(), [at("b", 400.25), at("d", 0.5), at("e", 3, 3)]).show("p2")
    sort, after, pages = "-messages_in_per_s", "", []
    while not pages or after:
        shown = await asked(running, Code.MQTT_CLIENTS, limit="2", sort=sort, after=after)
        pages.append([(row["client"], row["messages_in_per_s"], row["proxy"]) for row in shown["clients"]])
        after = shown["next"]
    assert pages == [
        [("b", 400.25, "p2"), ("c", 7.0, "p1")], [("e", 2.0, "p1"), ("a", 0.5, "p1")], [("d", 0.5, "p2")],
    ]  # fmt: skip
    for wrong in ({"sort": "size"}, {"sort": "backlog", "after": "x"}):
        assert (await asked(running, Code.MQTT_CLIENTS, **wrong))[0] == ResponseCode.INVALID_PARAMETER


async def test_proxies_are_listed_until_their_connection_ends(running) -> None:
    proxy = await ScriptedProxy(running.connect(), []).show("p1")
    (row,) = (await asked(running, Code.PROXY_LIST))["proxies"]
    assert row == {"name": "p1", "address": "in-process", "version": "1", "listeners": {"tcp": 1883}, "since_ms": 5}
    assert (await asked(running, Code.CLUSTER_STATUS))["proxies"] == 1
    await proxy.connection.close()
    assert (await asked(running, Code.PROXY_LIST))["proxies"] == []


async def test_a_client_is_disconnected_and_keeps_its_session(running) -> None:
    proxy = await ScriptedProxy(running.connect(), [line("c")]).show("p")
    await proxy.open("c")
    assert await asked(running, Code.MQTT_KICK, client="c") == {"client": "c", "proxy": "p", "ended": False}
    assert running.broker.sessions.table.get("c").owner is None
    refused = ResponseCode.QUERY_NOT_FOUND, "no client with id 'c' is connected"
    assert await asked(running, Code.MQTT_KICK, client="c") == refused


async def test_a_kick_can_end_the_session_too(running) -> None:
    proxy = await ScriptedProxy(running.connect(), [line("c")]).show("p")
    await proxy.open("c")
    assert (await asked(running, Code.MQTT_KICK, client="c", end="true"))["ended"] is True
    assert running.broker.sessions.table.get("c") is None
    proxy.error = "out of order"
    await proxy.open("c")
    assert await asked(running, Code.MQTT_KICK, client="c") == (ResponseCode.SYSTEM_ERROR, "proxy p: out of order")


async def test_a_session_is_ended_while_its_client_is_away(running) -> None:
    proxy = await ScriptedProxy(running.connect(), []).show("p")
    await proxy.open("c")
    wanted = SubscribeRequest("c", proxy.epochs["c"], True, [FilterRequest("a/+", 1)])
    await proxy.ask(Code.SUBSCRIBE, wanted)
    await proxy.ask(Code.SESSION_CLOSE, SessionClose("c", proxy.epochs["c"], True, [], []))
    assert await asked(running, Code.SESSION_END, client="c") == {"client": "c", "was_connected": False}
    await running.restart()
    assert running.broker.sessions.table.get("c") is None
    assert await asked(running, Code.SESSION_END, client="c") == (
        ResponseCode.QUERY_NOT_FOUND, "there is no session of client id 'c'",
    )  # fmt: skip


async def test_a_will_that_waits_is_due_with_the_end_of_its_session(running) -> None:
    proxy = await ScriptedProxy(running.connect(), []).show("p")
    await proxy.ask(Code.WILL_WATCH, ProxyAsked(0, ""))
    await proxy.open("c", will=WillSpec(b"w", b"gone", 1, False, 3_600, [], b""))
    close = SessionClose("c", proxy.epochs["c"], True, [], [], will=1)
    await proxy.ask(Code.SESSION_CLOSE, close)
    assert proxy.due == []
    await asked(running, Code.SESSION_END, client="c")
    assert [due.topic for due in proxy.due] == [b"w"]


async def test_a_proxy_that_does_not_let_go_is_fenced(running) -> None:
    proxy = await ScriptedProxy(running.connect(), [line("c")], hands_in=False).show("p")
    await proxy.open("c")
    assert await asked(running, Code.SESSION_END, client="c") == {"client": "c", "was_connected": True}
    assert [(one.client_id, one.epoch) for one in proxy.fenced] == [("c", proxy.epochs["c"])]
    assert running.broker.sessions.table.get("c") is None


async def test_rights_are_asked_for(running) -> None:
    judged = []
    running.judge_by(lambda identity, action, resource: judged.append((action, resource)) or False)
    for code in (Code.MQTT_CLIENTS, Code.PROXY_LIST, Code.MQTT_KICK, Code.SESSION_END):
        assert (await asked(running, code, client="c"))[0] == ResponseCode.NO_PERMISSION
    assert judged == [("monitor", "clients"), ("monitor", "proxies"), ("admin", "clients"), ("admin", "sessions")]
