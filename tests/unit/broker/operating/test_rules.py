"""The verdicts of the rules in force, and limits with what is used of them."""

from __future__ import annotations

from remoting.protocol.bodies.operating_body import (
    ProxyAnswered,
    ProxyAsked,
    ProxyPresent,
    QuotaAnswer,
    RuleAnswer,
    RuleLinesAnswer,
    RuleLinesQuestion,
    RuleQuestion,
    decode,
    encode,
)
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.operating.asking import asked


async def proxy(running, name: str, *, error: str = "") -> list[RuleQuestion]:
    """A proxy that allows reading only; returns what it is asked."""
    connection, questions = running.connect(), []

    def pushed(command: Command) -> None:
        message = decode(ProxyAsked, command.body)
        if message.question == "access":
            questions.append(decode(RuleQuestion, message.body))
            answer = encode(RuleAnswer(questions[-1].action == "subscribe", "no_rule", "acl:3: topic read #"))
        elif message.question == "rules":
            first = decode(RuleLinesQuestion, message.body)
            lines = [("user anna", f"acl:{number}", "topic read #") for number in range(3)]
            answer = encode(RuleLinesAnswer(lines[first.first : first.first + first.limit], 3, False))
        else:
            answer = encode(QuotaAnswer({"connections_max": 9.0}, {"connections_max": 2.0}, {"x_refused{y}": 1.0}))
        connection.oneway(Command(Code.PROXY_ANSWERED, body=encode(ProxyAnswered(message.number, answer, error))))

    connection.on_push(pushed)
    await connection.request(Command(Code.PROXY_PRESENT, body=encode(ProxyPresent(name, "1", 0, {"tcp": 1}))))
    return questions


async def test_a_proxy_decides_about_clients(running) -> None:
    test = {"action": "subscribe", "topic": "a/#", "user": "anna", "client": "c", "qos": "1", "retain": "true"}
    assert (await asked(running, Code.ACCESS_TEST, **test))[0] == ResponseCode.INVALID_PARAMETER
    await proxy(running, "p0", error="out of order")
    questions = await proxy(running, "p1")
    found = await asked(running, Code.ACCESS_TEST, **test)
    assert found == {"allowed": True, "reason": "no_rule", "rule": "acl:3: topic read #", "role": "", "by": "p1"}
    assert questions == [RuleQuestion("subscribe", "a/#", "anna", "c", 1, True)]


class Roles:
    """One administrator; anybody may write."""

    def __call__(self, identity: str, action: str, resource: str) -> bool:
        return bool(self.role_for(identity, action, resource)) or action == "publish"

    def role_for(self, identity: str, action: str, resource: str) -> str:
        return "admin" if identity == "anna" else ""


async def test_this_broker_decides_about_keys(running) -> None:
    found = await asked(running, Code.ACCESS_TEST, key="otto", request="DELETE_TOPIC_IN_BROKER", on="t")
    assert (found["allowed"], found["reason"]) == (True, "no_access_list")
    assert (await asked(running, Code.ACCESS_TEST, request="weather"))[0] == ResponseCode.INVALID_PARAMETER
    running.judge_by(Roles())
    who = {"AccessKey": "anna"}
    found = await asked(running, Code.ACCESS_TEST, key="otto", request="delete_topic_in_broker", on="t", **who)
    assert (found["allowed"], found["reason"]) == (False, "no_rule")
    found = await asked(running, Code.ACCESS_TEST, key="anna", request="215", **who)
    assert (found["allowed"], found["role"]) == (True, "admin")
    assert (await asked(running, Code.ACCESS_TEST, request="10"))[0] == ResponseCode.NO_PERMISSION


class Listed:
    """Everything is allowed by two lines."""

    def __call__(self, identity: str, action: str, resource: str) -> bool:
        return True

    def lines(self) -> list[tuple[str, str, str]]:
        return [("user boss", "keys:1", "role admin"), ("everybody", "keys:2", "topic read a/#")]


async def test_rules_of_keys_and_of_clients_page_by_page(running) -> None:
    assert await asked(running, Code.ACCESS_RULES) == {"rules": [], "next": "", "missing": []}
    await proxy(running, "p0", error="out of order")
    assert (await asked(running, Code.ACCESS_RULES))["missing"] == ["p0"]
    await proxy(running, "p1")
    running.judge_by(Listed())
    for limit in range(1, 7):
        found, after = [], ""
        while True:
            page = await asked(running, Code.ACCESS_RULES, limit=str(limit), after=after)
            assert len(page["rules"]) <= limit
            found += page["rules"]
            after = page["next"]
            if not after:
                break
        assert [row["place"] for row in found] == ["keys:1", "keys:2", "acl:0", "acl:1", "acl:2"], limit
    assert found[0] == {"on": "keys", "who": "user boss", "place": "keys:1", "rule": "role admin"}
    assert found[2]["on"] == "MQTT"
    for wrong in ("x:1", "keys:x", "keys:"):
        assert (await asked(running, Code.ACCESS_RULES, after=wrong))[0] == ResponseCode.INVALID_PARAMETER


async def test_quotas_of_the_broker_and_its_proxies(running) -> None:
    await proxy(running, "p1")
    await proxy(running, "p2", error="out of order")
    running.broker.tools.metrics.refused.child("disk_full").value += 2
    found = await asked(running, Code.QUOTAS)
    assert (found["missing"], [one["name"] for one in found["proxies"]]) == (["p2"], ["p1"])
    assert found["proxies"][0]["used"] == {"connections_max": 2.0}
    assert found["broker"]["limits"]["sessions_max"] >= found["broker"]["used"]["sessions_max"] == 0
    assert [value for name, value in found["broker"]["refusals"].items() if "disk_full" in name] == [2.0]
