"""Resources on a real installation: `console.api.overview`, `console.api.clients`, `console.api.topics`,
`console.api.retained`, `console.api.groups`, `console.api.brokers`, `console.api.streams`, `console.api.security`,
and what they are made with: `console.cluster`, `console.tail`, `console.publishing`, `console.codes`, `console.app`,
`console.viewers`, `console.config`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console import figures
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.support.console_rig import ConsolePage, console_page


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ConsolePage]:
    async with console_page(tmp_path) as made:
        await made.sign_in()
        yield made


async def remoting_port(page: ConsolePage) -> int:
    async with page.http.get("/status") as answer:
        return int((await answer.json())["ports"]["remoting"])


async def metrics(page: ConsolePage) -> dict[str, float]:
    async with page.http.get("/metrics") as answer:
        lines = [line.rpartition(" ") for line in (await answer.text()).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_overview_and_what_belongs_to_it(page: ConsolePage) -> None:
    await page.ask("/messages", "POST", json={"topic": "plant/1", "payload": "x"})
    shown = await page.ask("/overview")
    assert (shown["flush_mode"], shown["brokers"], shown["missing"]) == ("sync", 1, {})
    alarms = await page.ask("/alarms")
    assert (alarms["next"], alarms["missing"], alarms["total"]) == ("", {}, len(alarms["items"]))
    assert {each["id"] for each in alarms["items"]} <= {"disk_low:broker-a"}  # this machine's disk is not the test's
    assert (await page.ask("/refusals"))["missing"] == {}


async def test_a_message_is_published_and_found(page: ConsolePage) -> None:
    body = {
        "topic": "plant/7/temp", "payload": "21.5", "retain": True, "properties": {"unit": "C"},
        "content_type": "text/plain", "expiry_s": 60,
    }  # fmt: skip
    published = await page.ask("/messages", "POST", json=body)
    assert published["acknowledged"] is True
    (message,) = (await page.ask("/topics/plant%2F7%2Ftemp"))["messages"]
    assert (message["payload"], message["retain"], message["offset"]) == ("21.5", True, published["offset"])
    assert message["properties"] == {"content_type": "text/plain", "expiry_s": 60, "user": [["unit", "C"]]}
    assert message["message_id"] == published["message_id"]
    assert len((await page.ask("/topics/plant%2F%23"))["messages"]) == 1
    counted = await metrics(page)
    assert counted["rocketmq_messages_out_total"] == 0  # nobody consumes: what the page shows is not part of it
    assert counted["rocketmq_messages_viewed_total"] == 3
    queues = await page.ask("/queues?topic=plant")
    assert (len(queues["items"]), sum(queue["messages"] for queue in queues["items"])) == (4, 1)
    await page.ask("/queues?topic=none", status=404)


@pytest.mark.parametrize(
    "wrong",
    [{"topic": "a/#"}, {"topic": ""}, {"topic": "a", "qos": 3}, {"topic": "a", "payload_base64": "?"},
     {"topic": "a", "payload": "x", "payload_base64": "eA=="}, {"topic": "a", "delay_ms": -1}],
)  # fmt: skip
async def test_messages_that_cannot_be(page: ConsolePage, wrong: dict[str, object]) -> None:
    assert (await page.ask("/messages", "POST", 400, json=wrong))["reason"] == "bad_parameter"


async def test_a_delayed_message_waits_is_rescheduled_and_recalled(page: ConsolePage) -> None:
    await page.ask("/messages", "POST", json={"topic": "plant/7", "payload": "later", "delay_ms": 600_000})
    (timer,) = (await page.ask("/timers"))["items"]
    assert timer["topic"] == "plant/7"
    moved = await page.ask(f"/timers/{timer['handle']}/reschedule", "POST", json={"delay_ms": 900_000})
    assert not moved["delivered"]
    (again,) = (await page.ask("/timers"))["items"]
    assert again["due_ms"] > timer["due_ms"]
    await page.ask(f"/timers/{moved['handle']}", "DELETE")
    assert (await page.ask("/timers"))["items"] == []
    await page.ask("/timers/nonsense", "DELETE", 400)


async def test_a_group_with_its_lag_is_moved(page: ConsolePage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        await page.ask("/messages", "POST", json={"topic": "plant/7", "payload": str(number)})
    queue = next(one["queue"] for one in (await page.ask("/queues?topic=plant"))["items"] if one["messages"])
    connection = await connect("127.0.0.1", await remoting_port(page))
    fields = {"consumerGroup": "billing", "topic": "plant", "queueId": str(queue), "commitOffset": "4"}
    assert (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))).code == 0
    await connection.close()
    (group,) = (await page.ask("/groups?search=bill&sort=lag"))["items"]
    assert (group["name"], group["lag"], group["topics"]) == ("billing", 6, ["plant"])
    monkeypatch.setattr(figures, "SLOW_IDLE_S", 0.0)
    monkeypatch.setattr(figures, "WATCHED_S", -1.0)
    await page.ask("/overview")  # from here on every look is a sample of everything
    shown = await page.ask("/overview")  # nobody watches the stream of events
    assert (shown["groups"], shown["lag_max"]) == (1, group["lag"])
    assert (await page.ask("/alarms/past"))["items"] == []
    moved = await page.ask("/groups/billing/reset", "POST", json={"topic": "plant", "queue": queue, "offset": 8})
    assert moved["queues"] == [{"topic": "plant", "broker": "broker-a", "queue": queue, "offset": 8}]
    shown = await page.ask("/groups/billing")
    assert (shown["lag"], shown["queues"][0]["offset"], shown["members"]) == (2, 8, [])
    await page.ask("/groups/billing/skip", "POST", json={"topic": "plant"})
    assert (await page.ask("/groups/billing"))["lag"] == 0
    await page.ask("/groups/billing/reset", "POST", json={"topic": "plant", "to": "earliest"})
    assert (await page.ask("/groups/billing"))["lag"] == 10
    await page.ask("/groups/billing/reset", "POST", 400, json={"topic": "plant"})
    await page.ask("/groups/billing/reset", "POST", 404, json={"topic": "none", "to": "latest"})
    await page.ask("/groups/nobody", status=404)


async def test_brokers_and_controllers(page: ConsolePage) -> None:
    (broker,) = (await page.ask("/brokers"))["items"]
    assert (broker["name"], broker["state"], broker["replicas"][0]["role"]) == ("broker-a", "alone", "alone")
    assert (await page.ask("/brokers/broker-a"))["address"] == broker["address"]
    await page.ask("/brokers/none", status=404)
    (controller,) = (await page.ask("/controllers"))["items"]
    assert controller["leads"] is True
    await page.ask("/brokers/broker-a/transfer", "POST", 404, json={"to": 1})
    assert (await page.ask("/cluster/history"))["items"][0]["name"] == "broker-a"


async def refusals(page: ConsolePage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await page.ask("/refusals"))["items"]
    return found


async def test_reasons_are_said_in_words(page: ConsolePage) -> None:
    """Beside the identifier, which programs go by."""
    async with page.http.post("/api/v1/session", json={"token": "wrong"}) as answer:
        assert answer.status == 401
    async with asyncio.timeout(30):  # what is shown may be a sample from before
        while not (rows := [one for one in await refusals(page) if one["counter"] == "rocketmq_console_refused_total"]):
            await asyncio.sleep(0.1)
    (row,) = rows
    assert (row["reason"], row["what"], row["text"]) == (
        "unproven", "Requests to the console", "no key or token, or a wrong one",
    )  # fmt: skip
    asked = {"user": "", "client_id": "press-7", "action": "publish", "topic": "$SYS/broker/version"}
    verdict = await page.ask("/access/test", "POST", json=asked)
    assert (verdict["allowed"], verdict["reason"]) == (False, "dollar_topic")
    assert verdict["text"] == "topics that begin with $ belong to the server: no client may publish there"
    assert (await page.ask("/clients?sort=-messages_in_per_s"))["items"] == []
    await page.ask("/clients?sort=loud", status=400)
    await page.ask("/sessions?state=gone", status=400)


async def test_sessions_and_clients_of_nobody(page: ConsolePage) -> None:
    assert (await page.ask("/sessions"))["items"] == []
    assert (await page.ask("/clients"))["items"] == []
    await page.ask("/clients/nobody", status=404)
    await page.ask("/sessions/nobody", "DELETE", 404)
    await page.ask("/trace", status=400)
    await page.ask("/access/test", "POST", 400, json={"action": "fly"})


async def test_what_operators_do_at_the_controller_of_the_same_process_is_listed_once(page: ConsolePage) -> None:
    connection = await connect("127.0.0.1", await remoting_port(page))
    fields = {"namespace": "n", "key": "k", "value": "v"}
    assert (await connection.request(Command(RequestCode.PUT_KV_CONFIG, fields=fields))).code == 0
    await connection.close()
    (act,) = (await page.ask("/audit"))["items"]
    assert (act["server"], act["act"], act["target"]) == ("broker-a", "PUT_KV_CONFIG", "namespace=n key=k")


async def test_what_a_token_does_is_recorded_with_its_name_role_and_address(page: ConsolePage) -> None:
    await page.ask("/sessions/nobody", "DELETE", 404)
    (act,) = (await page.ask("/audit"))["items"]
    assert (act["who"], act["role"], act["address"], act["road"]) == ("administrator", "admin", "127.0.0.1", "console")
