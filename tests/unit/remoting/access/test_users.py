"""Users and rules made by requests have the meaning of the access list's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import structlog

from remoting.access.key_policy import KeyPolicy
from remoting.access.rules import Grants, Identity
from remoting.access.users import Entry, EntryError, User, UserTable, comes_from, entry_of, rules_of
from remoting.protocol.frames.codes import RequestCode as Code
from runtime.files import WatchedFile

ANN = User(secret="a-secret")
BOSS = User(secret="b-secret", type="Super")
OUT = User(secret="c-secret", enabled=False)


def allow(resource: str, *actions: str, sources: tuple[str, ...] = ()) -> Entry:
    return entry_of(resource, actions, sources, "Allow")


def deny(resource: str, *actions: str, sources: tuple[str, ...] = ()) -> Entry:
    return entry_of(resource, actions, sources, "Deny")


def table(*entries: Entry) -> UserTable:
    return UserTable({"ann": ANN, "boss": BOSS, "out": OUT}, {"ann": entries, "out": entries})


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    made = tmp_path / "rules"
    made.write_text("user ann\ntopic read listed\ntopic deny plant/secret/#\n\nuser ops\nrole admin\n")
    return made


def policy_of(listed: Path, *entries: Entry) -> KeyPolicy:
    policy = KeyPolicy(listed, structlog.get_logger(), WatchedFile)
    policy.use(table(*entries))
    return policy


@pytest.mark.parametrize(
    ("entries", "action", "resource", "allowed"),
    [
        ([allow("Topic:orders", "Pub")], "publish", "orders", True),
        ([allow("Topic:orders", "Pub")], "publish", "orders/1", True),  # an MQTT topic below it
        ([allow("Topic:orders", "Pub")], "publish", "orders-2", False),
        ([allow("Topic:orders", "Pub")], "consume", "orders/#", False),
        ([allow("Topic:orders", "Sub")], "consume", "orders/#", True),
        ([allow("Topic:orders", "All")], "consume", "orders/#", True),
        ([allow("Topic:ord*", "Sub")], "consume", "orders/#", True),
        ([allow("Topic:ord*", "Sub")], "consume", "ord/#", True),
        ([allow("Topic:ord*", "Sub")], "consume", "+/#", False),
        ([allow("Topic:ord*", "Pub")], "publish", "or", False),
        ([allow("Topic:*", "Sub")], "consume", "anything/#", True),
        ([allow("Topic:*", "Sub")], "consume", "$group/g", False),
        ([allow("*", "Sub")], "consume", "$group/g", True),
        ([allow("Group:g", "Sub")], "consume", "$group/g", True),
        ([allow("Group:g", "Sub")], "consume", "%RETRY%g/#", True),
        ([allow("Group:g", "Sub")], "consume", "%DLQ%g/#", True),
        ([allow("Group:g", "Sub")], "publish", "%RETRY%g", True),
        ([allow("Group:g", "Pub")], "publish", "%RETRY%g", False),
        ([allow("Topic:%DLQ%g", "Sub")], "consume", "%DLQ%g/#", True),
        ([allow("Topic:*", "All"), deny("Group:g", "Sub")], "consume", "%RETRY%g/#", False),
        ([allow("Group:g", "Sub")], "consume", "$group/g2", False),
        ([allow("Group:g*", "Sub")], "consume", "$group/g2", True),
        ([allow("Group:g*", "Sub")], "consume", "%RETRY%g2/#", True),
        ([allow("Group:g*", "Pub")], "consume", "$group/g2", False),
        ([allow("Group:*", "Sub")], "consume", "$group/any", True),
        ([allow("Group:*", "Sub")], "consume", "orders/#", False),
        ([allow("Topic:ord*", "Pub"), deny("Topic:orders", "Pub")], "publish", "orders", False),
        ([allow("Topic:orders", "Pub"), deny("Topic:ord*", "Pub")], "publish", "orders", False),  # Deny first
        ([allow("Topic:*", "Pub"), deny("Topic:ord*", "Pub")], "publish", "plant", True),
        ([allow("Topic:*", "Sub"), deny("Topic:ord*", "Sub")], "consume", "orders/#", False),
        ([allow("Topic:%LMQ%plant%2F7", "Sub")], "consume", "plant/7", True),
        ([allow("Topic:%LMQ%plant%2F7", "Sub")], "consume", "plant/8", False),
        ([allow("Topic:INST%orders", "Pub")], "publish", "INST%orders", True),  # instances are separate
        ([allow("Topic:INST%orders", "Pub")], "publish", "orders", False),
        ([allow("Topic:orders", "Pub")], "publish", "INST%orders", False),
        ([allow("Topic:INST%*", "Pub")], "publish", "INST%orders", True),
        ([allow("Topic:INST%*", "Pub")], "publish", "OTHER%orders", False),
        ([allow("Group:INST%*", "Sub")], "consume", "$group/INST%25g", True),
        ([allow("Group:INST%*", "Sub")], "consume", "$group/OTHER%25g", False),
        ([allow("Topic:orders", "Pub")], "locate", "orders", True),
        ([allow("Topic:orders", "Pub")], "locate", "plant", False),
        ([allow("Topic:ord*", "Sub")], "locate", "orders", True),
        ([allow("Group:g", "Sub")], "locate", "%RETRY%g", True),
        ([], "locate", "", True),  # a rule of the file
        ([], "consume", "listed", True),
        ([allow("Topic:plant", "Pub")], "publish", "plant/secret/1", False),  # a deny of the file comes first
    ],
)
def test_one_policy_decides(listed, entries, action, resource, allowed):
    policy = policy_of(listed, *entries)
    assert policy("ann", action, resource) is allowed
    assert policy("out", action, resource) is False, "disabled"
    assert policy("nobody", action, resource) is False


def test_a_super_user_may_do_everything_except_the_roles_of_servers(listed):
    policy = policy_of(listed)
    for action, resource in (("publish", "a"), ("consume", "a/#"), ("consume", "$group/g"), ("publish", "$sink/s"),
                             ("admin", "x"), ("locate", ""), ("monitor", ""), ("inspect", "")):  # fmt: skip
        assert policy("boss", action, resource), action
    assert not policy("boss", "register", "broker-a")
    assert not policy("boss", "appoint", "broker-a")


def test_secrets_follow_the_table_and_leave_out_disabled_users(listed):
    policy = policy_of(listed)
    kept = policy.secrets
    assert kept == {"ann": "a-secret", "boss": "b-secret"}
    policy.use(UserTable())
    assert kept == {}
    assert "a-secret" not in repr(ANN)
    assert "a-secret" not in repr(table())


@pytest.mark.parametrize(
    ("entry", "code", "resource", "allowed"),
    [
        (allow("Topic:orders", "Create"), Code.UPDATE_AND_CREATE_TOPIC, "orders", True),
        (allow("Topic:ord*", "Create"), Code.UPDATE_AND_CREATE_TOPIC, "orders", True),
        (allow("Topic:orders", "Create"), Code.UPDATE_AND_CREATE_TOPIC, "plant", False),
        (allow("Topic:orders", "Create"), Code.DELETE_TOPIC_IN_BROKER, "orders", False),
        (allow("Topic:orders", "All"), Code.DELETE_TOPIC_IN_BROKER, "orders", True),
        (allow("Group:g", "Delete"), Code.DELETE_SUBSCRIPTIONGROUP, "$group/g", True),
        (allow("Group:INST%g", "Delete"), Code.DELETE_SUBSCRIPTIONGROUP, "$group/INST%25g", True),
        (allow("Topic:*", "List"), Code.GET_ALL_TOPIC_CONFIG, "request 21", True),
        (allow("Topic:orders", "List"), Code.GET_ALL_TOPIC_CONFIG, "request 21", False),
        (allow("Cluster:*", "Get"), Code.GET_BROKER_CONFIG, "config", True),
        (allow("Cluster:*", "Get"), Code.UPDATE_BROKER_CONFIG, "config", False),
        (allow("*", "All"), Code.AUTH_CREATE_USER, "users", False),  # Super users alone
    ],
)
def test_rights_to_administrate(listed, entry, code, resource, allowed):
    policy = policy_of(listed, entry)
    assert policy.allows("ann", "admin", resource, code, "10.0.0.7") is allowed
    assert not policy.allows("out", "admin", resource, code, "10.0.0.7")
    refusing = policy_of(listed, allow("*", "All"), deny(entry.resource, *entry.actions))
    if allowed:
        assert not refusing.allows("ann", "admin", resource, code, "10.0.0.7")


def test_an_entry_for_addresses_is_about_these_alone(listed):
    policy = policy_of(listed, allow("Topic:orders", "All", sources=("10.0.0.0/8", "::1")))
    for host, allowed in (("10.1.2.3", True), ("::1", True), ("[::1]", True), ("::ffff:10.0.0.1", True),
                          ("11.0.0.1", False), ("local", False), ("", False)):  # fmt: skip
        assert policy.allows("ann", "publish", "orders", Code.SEND_MESSAGE, host) is allowed, host
        assert (policy.readable("ann", "orders/+", host) is not None) is allowed
    assert not policy("ann", "publish", "orders")
    denying = policy_of(listed, allow("Topic:orders", "Pub"), deny("Topic:orders", "Pub", sources=("10.0.0.0/8",)))
    for host, allowed in (("10.1.2.3", False), ("11.0.0.1", True), ("", False)):
        assert denying.allows("ann", "publish", "orders", Code.SEND_MESSAGE, host) is allowed, host
    assert comes_from(allow("Topic:orders", "Pub"), "")


def test_while_the_list_was_never_valid_nothing_is_allowed(tmp_path):
    bad = tmp_path / "rules"
    bad.write_text("nonsense\n")
    policy = policy_of(bad, allow("*", "All"))
    assert not policy("boss", "admin", "x")
    assert not policy("ann", "publish", "orders")
    assert not policy.allows("ann", "admin", "orders", Code.UPDATE_AND_CREATE_TOPIC, "10.0.0.1")


@pytest.mark.parametrize(
    ("resource", "actions", "sources", "decision"),
    [
        ("orders", ["Pub"], [], "Allow"),
        ("Topic:", ["Pub"], [], "Allow"),
        ("Table:orders", ["Pub"], [], "Allow"),
        ("Topic:a*b", ["Pub"], [], "Allow"),
        ("Topic:a/b", ["Pub"], [], "Allow"),
        ("Topic:#", ["Pub"], [], "Allow"),
        ("Topic:%LMQ%pl*", ["Pub"], [], "Allow"),
        ("Topic:%LMQ%pl%zz", ["Pub"], [], "Allow"),
        ("Group:+", ["Sub"], [], "Allow"),
        ("Cluster:a*b", ["Get"], [], "Allow"),
        ("Topic:orders", [], [], "Allow"),
        ("Topic:orders", ["Pub", "Any"], [], "Allow"),
        ("Topic:orders", ["Pub"], ["10.0.0.300"], "Allow"),
        ("Topic:orders", ["Pub"], [], "Perhaps"),
    ],
)
def test_an_invalid_entry_is_ignored(resource, actions, sources, decision):
    with pytest.raises(EntryError):
        entry_of(resource, actions, sources, decision)


def test_words_are_compared_without_case_and_kept_in_one_form():
    made = entry_of("topic:Orders", ["pub", "PUB", "sub"], ["10.0.0.1", "10.0.0.1"], "ALLOW")
    assert made == Entry(resource="Topic:Orders", actions=("Pub", "Sub"), sources=("10.0.0.1",), decision="Allow")


def test_the_table_is_unchanged_in_a_reader_process():
    made = table(allow("Topic:orders", "Pub", sources=("10.0.0.1",)))
    again = msgspec.json.decode(msgspec.json.encode(made), type=UserTable)
    assert again == made


def test_a_prefix_contains_and_filters_like_a_filter():
    (rule,) = rules_of("ann", allow("Topic:ord*", "All"))
    found = UserTable({"ann": ANN}, {"ann": (allow("Topic:ord*", "All"),)}).rules()
    grants = Grants(found, Identity("ann", anonymous=False))
    assert rule.text == "Allow All Topic:ord*"
    assert grants.read("orders/+/x")
    assert grants.read("#", partly=True).partial
    assert grants.deliver(b"orders/1", retained=False)
    assert not grants.deliver(b"plant/1", retained=False)
