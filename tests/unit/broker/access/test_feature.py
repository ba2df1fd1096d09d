"""Users and rules by request, over a broker on a real store with an access list."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from broker.access.created import CreatedUsers
from broker.access.requests import ENTRIES_MAX
from broker.config import LimitsConfig
from remoting.access.agreement import UserState, Version
from remoting.access.key_policy import KeyPolicy
from remoting.access.users import User, UserTable
from remoting.protocol.bodies.follow_body import encode_follow
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import TRUSTED_ATTRIBUTE
from remoting.server.router import Access
from remoting.transport.signature import ACCESS_KEY_FIELD, SIGNATURE_FIELD, date_signature, signature
from runtime.files import WatchedFile
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench


@pytest.fixture
def policy(tmp_path: Path) -> KeyPolicy:
    listed = tmp_path / "rules"
    listed.write_text("user ops\nrole admin\n")
    return KeyPolicy(listed, structlog.get_logger(), WatchedFile)


def guarding(directory: Path, policy: KeyPolicy, **options: object) -> BrokerBench:
    """A broker whose administrator is the key `ops`."""
    bench = BrokerBench(directory, ManualClock(), access_keys=("ops:o", "configured:c"), **options)
    bench.judge_by(policy)
    bench.broker.access.start()
    return bench


@pytest.fixture
async def guarded(tmp_path: Path, policy: KeyPolicy) -> AsyncIterator[BrokerBench]:
    bench = guarding(tmp_path / "data", policy)
    yield bench
    bench.store.close()


async def ask(broker, code: int, *, key: str = "ops", body: object = None, **fields: str) -> Command:
    """The answer to a request signed with a key."""
    data = b"" if body is None else json.dumps(body).encode()
    return await broker.connect().request(Command(code, fields={ACCESS_KEY_FIELD: key, **fields}, body=data))


async def create(broker, name: str = "ann", **body: str) -> Command:
    """A user as made by `createUser`."""
    user = {"username": name, "password": "a-secret", **body}
    return await ask(broker, Code.AUTH_CREATE_USER, username=name, body=user)


def rules(*entries: dict[str, object], policy_type: str | None = None) -> dict[str, object]:
    """The body of `createAcl`."""
    return {"subject": "User:ann", "policies": [{"policyType": policy_type, "entries": list(entries)}]}


def rule(resource: str = "Topic:orders", *actions: str, decision: str = "Allow") -> dict[str, object]:
    return {"resource": resource, "actions": list(actions) or ["Pub"], "sourceIps": None, "decision": decision}


async def test_a_user_is_made_shown_without_its_password_changed_and_removed(guarded, policy):
    made = await create(guarded, userType="normal")
    assert made.code == ResponseCode.SUCCESS, made.remark
    assert policy.secrets == {"ann": "a-secret"}
    shown = await ask(guarded, Code.AUTH_GET_USER, username="ann")
    assert json.loads(shown.body) == {"username": "ann", "userType": "Normal", "userStatus": "enable"}
    changed = {"password": "another", "userType": "Super"}
    assert (await ask(guarded, Code.AUTH_UPDATE_USER, username="ann", body=changed)).code == ResponseCode.SUCCESS
    assert policy.secrets == {"ann": "another"}
    assert policy("ann", "admin", "x")
    await ask(guarded, Code.AUTH_UPDATE_USER, username="ann", body={"userStatus": "disable"})
    assert policy.secrets == {}
    listed = await ask(guarded, Code.AUTH_LIST_USER, filter="an")
    assert json.loads(listed.body) == [{"username": "ann", "userType": "Super", "userStatus": "disable"}]
    assert json.loads((await ask(guarded, Code.AUTH_LIST_USER, filter="bob")).body) == []
    assert guarded.broker.access.status() == {"access_users": 1}
    for _again in range(2):
        assert (await ask(guarded, Code.AUTH_DELETE_USER, username="ann")).code == ResponseCode.SUCCESS
    assert (await ask(guarded, Code.AUTH_GET_USER, username="ann")).code == ResponseCode.USER_NOT_EXIST


async def test_rules_are_in_force_at_once_and_replaced_by_resource(guarded, policy):
    await create(guarded)
    put = await ask(guarded, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule(), rule("Group:g", "Sub")))
    assert put.code == ResponseCode.SUCCESS, put.remark
    assert policy("ann", "publish", "orders")
    assert not policy("ann", "consume", "orders/#")
    await ask(guarded, Code.AUTH_UPDATE_ACL, subject="User:ann", body=rules(rule("Topic:orders", "Sub")))
    assert not policy("ann", "publish", "orders")
    assert policy("ann", "consume", "orders/#")
    shown = json.loads((await ask(guarded, Code.AUTH_GET_ACL, subject="User:ann")).body)
    assert shown["subject"] == "User:ann"
    assert [entry["resource"] for entry in shown["policies"][0]["entries"]] == ["Topic:orders", "Group:g"]
    listed = await ask(guarded, Code.AUTH_LIST_ACL, subjectFilter="ann", resourceFilter="Group")
    assert [entry["resource"] for entry in json.loads(listed.body)[0]["policies"][0]["entries"]] == ["Group:g"]
    gone = await ask(guarded, Code.AUTH_DELETE_ACL, subject="User:ann", resource="Topic:orders")
    assert gone.code == ResponseCode.SUCCESS
    assert not policy("ann", "consume", "orders/#")
    assert policy("ann", "consume", "$group/g")
    again = await ask(guarded, Code.AUTH_DELETE_ACL, subject="User:ann", resource="Topic:orders")
    assert again.code == ResponseCode.POLICY_NOT_EXIST
    assert (await ask(guarded, Code.AUTH_DELETE_ACL, subject="User:ann")).code == ResponseCode.SUCCESS
    assert (await ask(guarded, Code.AUTH_GET_ACL, subject="User:ann")).code == ResponseCode.POLICY_NOT_EXIST


async def test_only_administrators_may_ask(guarded, policy):
    await create(guarded)
    await ask(guarded, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule("*", "All")))
    codes = range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1)
    for key in ("ann", "nobody"):
        for code in codes:
            answer = await ask(guarded, code, key=key, username="bob", subject="User:ann", body={"password": "x"})
            assert answer.code == ResponseCode.NO_PERMISSION, (key, code)
    assert sorted(policy.secrets) == ["ann"]
    await create(guarded, "boss", userType="Super")
    assert (await ask(guarded, Code.AUTH_LIST_USER, key="boss")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (Code.AUTH_CREATE_USER, {"username": "ann"}, {"password": "x"}),  # exists
        (Code.AUTH_CREATE_USER, {"username": "configured"}, {"password": "x"}),
        (Code.AUTH_CREATE_USER, {"username": ""}, {"password": "x"}),
        (Code.AUTH_CREATE_USER, {"username": "a:b"}, {"password": "x"}),
        (Code.AUTH_CREATE_USER, {"username": "anonymous"}, {"password": "x"}),  # who shows no key
        (Code.AUTH_CREATE_USER, {"username": "bob"}, {}),
        (Code.AUTH_CREATE_USER, {"username": "bob"}, {"password": "x" * 257}),
        (Code.AUTH_CREATE_USER, {"username": "bob"}, {"password": "x", "userType": "King"}),
        (Code.AUTH_CREATE_USER, {"username": "bob"}, {"password": "x", "userStatus": "perhaps"}),
        (Code.AUTH_CREATE_ACL, {"subject": "Role:ann"}, rules(rule())),
        (Code.AUTH_CREATE_ACL, {"subject": "User:ann"}, rules()),
        (Code.AUTH_CREATE_ACL, {"subject": "User:ann"}, {"policies": "all"}),
        (Code.AUTH_CREATE_ACL, {"subject": "User:ann"}, rules(rule(), policy_type="Default")),
        (Code.AUTH_CREATE_ACL, {"subject": "User:ann"}, rules(rule(), rule("Topic:a/b"))),
    ],
)
async def test_malformed_requests_change_nothing(guarded, code, fields, body):
    """No user and no rule: what is written is the record of the attempt."""
    await create(guarded)
    before = (await ask(guarded, Code.AUTH_LIST_USER)).body, (await ask(guarded, Code.AUTH_LIST_ACL)).body
    assert (await ask(guarded, code, body=body, **fields)).code == ResponseCode.INVALID_PARAMETER
    after = (await ask(guarded, Code.AUTH_LIST_USER)).body, (await ask(guarded, Code.AUTH_LIST_ACL)).body
    assert after == before


async def test_limits_are_refusals(tmp_path, policy):
    broker = guarding(tmp_path / "data", policy, limits=LimitsConfig(access_users_max=1))
    await create(broker)
    assert (await create(broker, "bob")).code == ResponseCode.SYSTEM_BUSY
    many = rules(*(rule(f"Topic:t{number}") for number in range(ENTRIES_MAX + 1)))
    answer = await ask(broker, Code.AUTH_CREATE_ACL, subject="User:ann", body=many)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    broker.store.close()


async def test_a_user_signs_as_rocketmqs_clients_do(guarded, policy):
    access = Access({"ops": "o"}, keys_count=True, created=policy.secrets)
    fields = {ACCESS_KEY_FIELD: "ann", "topic": "orders"}
    remote = SimpleNamespace(loopback=False, attributes={}, address="10.1.2.3:4")
    request = Command(Code.SEND_MESSAGE, fields={**fields, SIGNATURE_FIELD: signature(fields, b"", "a-secret")})
    with pytest.raises(Refused, match="is not valid"):
        access.admit(remote, request)
    await create(guarded)
    assert access.knows(request)
    assert access.admit(remote, request) is None
    assert access.knows_secret("ann", "a-secret")
    assert not access.knows_secret("ann", "wrong")


async def test_users_and_rules_survive_a_restart(guarded, policy):
    await create(guarded)
    await ask(guarded, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule()))
    policy.use(UserTable())
    await guarded.restart()
    guarded.judge_by(policy)
    seen: list[UserTable] = []
    guarded.broker.access.on_change(seen.append)
    guarded.broker.access.start()
    assert policy.secrets == {"ann": "a-secret"}
    assert policy("ann", "publish", "orders")
    assert [sorted(table.users) for table in seen] == [["ann"]]


async def test_without_an_access_list_requests_are_refused_by_name(running):
    answer = await ask(running, Code.AUTH_LIST_USER)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "broker.access_list" in (answer.remark or "")


async def test_a_proxy_gets_the_table_without_secrets_and_has_passwords_checked(guarded):
    await create(guarded)
    first = json.loads((await ask(guarded, Code.CREATED_USERS, key="ops")).body)
    assert first["table"]["users"] == {"ann": {"secret": "", "type": "Normal", "enabled": True}}
    connection = guarded.connect()
    fields = {ACCESS_KEY_FIELD: "ops"}
    again = await connection.request(Command(Code.CREATED_USERS, fields=dict(fields), body=first["version"].encode()))
    assert json.loads(again.body) == {"version": first["version"], "table": None}
    for password, right in (("a-secret", b"true"), ("wrong", b"false"), ("", b"false")):
        assert (await ask(guarded, Code.CHECK_USER, body=["ann", password])).body == right
    assert (await ask(guarded, Code.CHECK_USER, body=["nobody", ""])).body == b"false"
    assert (await ask(guarded, Code.CHECK_USER, body={})).code == ResponseCode.INVALID_PARAMETER
    assert (await ask(guarded, Code.CHECK_USER, key="ann", body=["ann", "x"])).code == ResponseCode.NO_PERMISSION


async def test_a_proxy_has_its_clients_admitted_and_named_in_its_requests(tmp_path):
    """Users made by requests are known too; what a client may not do, its proxy may not do for it."""
    listed = tmp_path / "rules"
    listed.write_text("user ops\nrole admin\nuser front\nrole proxy\n")
    policy = KeyPolicy(listed, structlog.get_logger(), WatchedFile)
    broker = guarding(tmp_path / "data", policy)
    await create(broker)
    now = "20261124T034500Z"
    shown = {"clientKey": "ann", "clientTime": now, "clientSignature": date_signature(now, "a-secret")}
    found = await ask(broker, Code.ADMIT_CLIENT, key="front", **shown)
    assert (found.code, found.fields["brokerName"]) == (0, broker.config.broker_name)
    for key, changed in (("front", {"clientSignature": ""}), ("front", {"clientKey": ""}), ("ops", {}), ("ann", {})):
        refused = await ask(broker, Code.ADMIT_CLIENT, key=key, **{**shown, **changed})
        assert refused.code == ResponseCode.NO_PERMISSION
    send = {"topic": "orders", "producerGroup": "g", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0"}
    refused = await ask(broker, Code.SEND_MESSAGE, key="front", onBehalfOf="ann", **send)
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "ann may not publish 'orders'")
    assert (await ask(broker, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule()))).code == 0
    assert (await ask(broker, Code.SEND_MESSAGE, key="front", onBehalfOf="ann", **send)).code == 0
    broker.store.close()


async def test_a_proxy_in_this_process_has_its_clients_rights_only(tmp_path):
    """It needs no rights of its own; a request that names a client has no more than that client."""
    listed = tmp_path / "rules"
    listed.write_text("user ops\nrole admin\nuser ann\ntopic read plant\n")
    broker = guarding(tmp_path / "data", KeyPolicy(listed, structlog.get_logger(), WatchedFile))
    broker.broker.topics.table.ensure("orders", 1)
    connection = broker.connect()
    connection.peer.attributes[TRUSTED_ATTRIBUTE] = True
    pull = {"topic": "orders", "consumerGroup": "g", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
            "sysFlag": "0", "subscription": "*"}  # fmt: skip
    follow = encode_follow([broker.broker.topics.table.queue_ids("orders")[0]])
    for command in (Command(Code.PULL_MESSAGE, fields=pull), Command(Code.FOLLOW, body=follow)):
        own = await connection.request(Command(command.code, fields=dict(command.fields), body=command.body))
        assert own.code != ResponseCode.NO_PERMISSION
        fields = {**command.fields, "onBehalfOf": "ann"}
        refused = await connection.request(Command(command.code, fields=fields, body=command.body))
        assert refused.code == ResponseCode.NO_PERMISSION, refused.remark
    broker.store.close()


def test_the_table_follows_the_log(bench):
    made = CreatedUsers(bench.store, lambda _table: None)
    made.write([UserState(name="ann", user=User(secret="x")), UserState(name="bob", user=User(secret="y"))])
    made.write([UserState(name="ann")], Version("first", 7))
    bench.settle()
    again = CreatedUsers(bench.reopen(), lambda _table: None)
    assert (again.table, again.version) == (made.table, Version("first", 7))
    assert sorted(again.table.users) == ["bob"]
