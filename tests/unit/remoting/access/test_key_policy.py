"""Rules of a file decide per key; an invalid file never allows anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from remoting.access.key_policy import KeyPolicy
from remoting.access.users import NORMAL, SUPER, User, UserTable, entry_of
from remoting.protocol.frames.codes import RequestCode
from runtime.files import WatchedFile
from tests.support.plants import Plant, catches

RULES = """
topic read public/#

user etl
topic read plant/#
topic write $sink/etl
topic write plant/cmd/#
topic deny plant/secret
topic read $group/etl

user edge
role proxy

user boss
role admin

user node
role broker plants spare

user brain
role controller
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "rules"
    made.write_text(RULES)
    return made


def make(path: Path) -> KeyPolicy:
    return KeyPolicy(path, structlog.get_logger(), WatchedFile)


@pytest.mark.parametrize(
    ("identity", "action", "resource", "allowed"),
    [
        ("anonymous", "consume", "public/a", True),
        ("anonymous", "consume", "plant/1", False),
        ("anonymous", "publish", "public/a", False),
        ("anonymous", "session", "c", False),
        ("etl", "consume", "plant/1", True),
        ("etl", "consume", "plant/#", False),  # shares a topic with the deny
        ("etl", "consume", "public/a", False),
        ("etl", "consume", "$group/etl", True),
        ("etl", "consume", "$group/other", False),
        ("etl", "consume", "", False),
        ("etl", "publish", "plant/cmd/1", True),
        ("etl", "publish", "plant/1", False),
        ("etl", "publish", "$sink/etl", True),
        ("etl", "publish", "$sink/other", False),
        ("etl", "session", "c", False),
        ("etl", "admin", "status", False),
        ("nobody", "consume", "public/a", False),
        ("edge", "publish", "any/where", True),
        ("edge", "session", "c", True),
        ("edge", "admin", "status", False),
        ("boss", "admin", "status", True),
        ("boss", "session", "c", True),
        ("boss", "consume", "plant/1", False),
        ("etl", "locate", "", True),
        ("etl", "locate", "plant", True),
        ("etl", "locate", "other", False),
        ("etl", "locate", "%RETRY%etl", True),
        ("etl", "locate", "%RETRY%other", False),
        ("etl", "locate", "%DLQ%etl", True),
        ("etl", "locate", "%RETRY%etl+plant", True),
        ("etl", "consume", "%RETRY%etl/#", True),
        ("etl", "consume", "%RETRY%etl+plant/#", True),
        ("etl", "consume", "%DLQ%etl/#", True),
        ("etl", "consume", "%DLQ%other/#", False),
        ("etl", "consume", "%RETRY%etl/x", False),
        ("etl", "publish", "%RETRY%etl", True),
        ("etl", "publish", "%DLQ%etl", True),
        ("etl", "publish", "%RETRY%other", False),
        ("nobody", "locate", "", False),
        ("anonymous", "locate", "public", True),
        ("anonymous", "locate", "plant", False),
        ("edge", "locate", "other", True),
        ("etl", "inspect", "", False),
        ("edge", "inspect", "", True),
        ("node", "register", "plants", True),
        ("node", "register", "spare", True),
        ("node", "register", "others", False),
        ("node", "register", "", False),
        ("node", "consume", "plant/1", False),
        ("node", "admin", "", False),
        ("edge", "register", "plants", False),
        ("boss", "register", "plants", False),
        ("boss", "appoint", "plants", False),
        ("brain", "appoint", "plants", True),
        ("brain", "admin", "", False),
    ],
)
def test_rights_of_keys(path: Path, identity: str, action: str, resource: str, allowed: bool) -> None:
    policy = make(path)
    assert policy(identity, action, resource) is allowed
    assert policy(identity, action, resource) is allowed  # cached


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ("topic read $group/g", (True, True, True)),
        ("topic write $group/g", (False, False, False)),
        ("topic read %RETRY%g/#", (True, False, False)),  # by name, as before
        ("topic readwrite %RETRY%g/#", (True, True, False)),
        ("topic read $group/g\ntopic deny %RETRY%g/#", (False, False, True)),
        ("topic read $group/g\ntopic deny-write #", (True, False, True)),
        ("topic readwrite #\ntopic deny $group/g", (False, False, False)),
    ],
)
def test_the_retry_and_dead_letter_topics_of_a_group_follow_from_the_right_to_it(
    tmp_path: Path, rules: str, allowed: tuple[bool, bool, bool]
) -> None:
    (tmp_path / "rules").write_text(f"user k\n{rules}\n")
    policy = make(tmp_path / "rules")
    asked = (("consume", "%RETRY%g/#"), ("publish", "%RETRY%g"), ("consume", "%DLQ%g/#"))
    assert tuple(policy("k", *one) for one in asked) == allowed


async def test_a_changed_file_is_put_in_force_and_an_invalid_one_is_not(path: Path) -> None:
    policy = make(path)
    path.write_text("user etl\ntopic read other/#\n")
    await policy.refresh()
    await policy.refresh()
    assert policy("etl", "consume", "other/1")
    assert not policy("etl", "consume", "plant/1")
    path.write_text("user etl\ntopic red other/#\nnonsense\n")
    await policy.refresh()
    await policy.refresh()
    assert policy("etl", "consume", "other/1")


async def test_an_invalid_first_file_denies_everything_until_it_is_corrected(tmp_path: Path) -> None:
    policy = make(tmp_path / "rules")
    assert not policy("anonymous", "consume", "public/a")
    (tmp_path / "rules").write_text(RULES)
    await policy.refresh()
    await policy.refresh()
    assert policy("anonymous", "consume", "public/a")


def test_the_number_of_cached_keys_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remoting.access.key_policy.GRANTS_MAX", 2)
    policy = make(path)
    for key in ("a", "b", "c", "etl"):
        policy(key, "consume", "x")
    assert policy("etl", "consume", "plant/1")
    assert len(policy._grants) == 2


def test_a_filter_that_a_key_may_read_in_part(tmp_path: Path) -> None:
    """Topic by topic, by the list in force; not where refusal was chosen."""
    listed = tmp_path / "acl"
    listed.write_text("user etl\ntopic read plant/#\ntopic deny-read plant/secret/#\n")
    policy = make(listed)
    assert not policy("etl", "consume", "plant/#")
    for topic_filter in ("plant/#", "#", "+/secret", "plant/+"):
        judge = policy.readable("etl", topic_filter)
        assert judge is not None
        verdicts = [judge(topic) for topic in (b"plant/1", b"plant/secret/1", b"other")]
        assert [(one.allowed, one.reason) for one in verdicts] == [(True, ""), (False, "deny_rule"), (False, "no_rule")]
    assert policy.readable("etl", "plant/secret/#") is None
    assert policy.readable("etl", "other/#") is None
    assert policy.readable("nobody", "#") is None
    assert KeyPolicy(listed, structlog.get_logger(), WatchedFile, partly=False).readable("etl", "#") is None


@catches(
    Plant("a-role-of-nobody", "remoting.access.key_policy:KeyPolicy.role_for", "if identity == NOBODY:", "if False:"),
    Plant("nobody-manages", "remoting.access.key_policy:KeyPolicy.allows", "identity == NOBODY or", ""),
    Plant(
        "a-name-is-a-proof", "remoting.access.key_policy:KeyPolicy._grants_of", "anonymous = identity == NOBODY",
        "anonymous = False",
    ),
)  # fmt: skip
def test_whoever_shows_no_key_has_no_role_whatever_is_written(path: Path) -> None:
    """A user may be called `anonymous`, in the file or by a request: that gives nobody without a key anything."""
    roles = "role admin\nrole proxy\nrole monitor\nrole controller\nrole broker plants\ntopic readwrite #\n"
    path.write_text(f"user anonymous\n{roles}")
    listed = make(path)
    path.write_text(RULES)
    entries = {"anonymous": tuple(entry_of(what, ["All"], [], "Allow") for what in ("Cluster:*", "Topic:*", "Group:*"))}
    made = {kind: make(path) for kind in (SUPER, NORMAL)}
    for kind, policy in made.items():
        policy.use(UserTable({"anonymous": User(secret="s", type=kind)}, entries))
    asked = [
        ("session", "c"), ("act_for", ""), ("monitor", ""), ("appoint", ""), ("register", "plants"),
        ("admin", "orders"), ("publish", "orders"), ("consume", "orders"),
    ]  # fmt: skip
    for policy in (listed, *made.values()):
        for action, resource in asked:
            for code in (0, RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_BROKER_CONFIG):
                assert not policy.allows("anonymous", action, resource, code), (action, code)
