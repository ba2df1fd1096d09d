"""Reading access lists: Mosquitto's form, LightMQ's own keywords, and every kind of invalid line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remoting.access import acl_file
from remoting.access.acl_file import PROBLEMS_SHOWN_MAX, AclError, load, parse

MOSQUITTO = b"""\
# This affects access control for clients with no username.
topic read $SYS/#

# This only affects clients with username "roger".
user roger
topic foo/bar
topic deny foo/secret
topic write with space/#

# This affects all clients.
pattern write $SYS/broker/connection/%c/state
pattern sensor/%u/data
"""


def test_a_list_of_mosquitto() -> None:
    """As in its manual."""
    rules = parse(MOSQUITTO, name="acl")
    assert [rule.filter for rule in rules.anonymous] == [b"$SYS/#"]
    foo, secret, space = rules.users["roger"]
    assert (foo.filter, foo.allow, foo.read, foo.write) == (b"foo/bar", True, True, True)
    assert (secret.allow, secret.read, secret.write) == (False, True, True)
    assert (space.filter, space.read, space.write) == (b"with space/#", False, True)
    assert [rule.pattern for rule in rules.everyone] == [True, True]
    assert foo.place == "acl:6"


def test_additional_keywords() -> None:
    """Options before the filter, groups, one-sided denies, the way back to anonymous clients."""
    rules = parse(
        b"group g\ntopic read qos=1 retained=no history=no a\nuser u\ntopic deny-read b\nanonymous\n"
        b"topic write qos=0 retain=no will=no c\r\n  topic readwrite retain=no retained=no d\n",
        name="acl",
    )
    (narrow,) = rules.groups["g"]
    assert (narrow.qos_max, narrow.retained, narrow.history, narrow.retain) == (1, False, False, True)
    (deny,) = rules.users["u"]
    assert (deny.allow, deny.read, deny.write) == (False, True, False)
    writing, both = rules.anonymous
    assert (writing.filter, writing.qos_max, writing.retain, writing.will) == (b"c", 0, False, False)
    assert (both.retain, both.retained) == (False, False)
    assert len(parse(b"user u\ntopic a\nuser v\ntopic b\nuser u\ntopic c\n", name="acl").users["u"]) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"topic", "at least one character"),
        (b"topic read", "at least one character"),
        (b"topic reed a/b", "'reed' is none of"),
        (b"topic a/#/b", "# must be the whole"),
        (b"topic read a+/b", r"\+ must be a whole"),
        (b"topic read a\0b", "U\\+0000"),
        (b"topic \xff", "not UTF-8"),
        (b"user", "without a name"),
        (b"group  ", "without a name"),
        (b"users ann", "begins with 'users'"),
        (b"anonymous ann", "begins with 'anonymous'"),
        (b"topic dev/%c", "use pattern"),
        (b"topic dev/${username}", "use pattern"),
        (b"topic read $share/g/a", "inner filter"),
        (b"pattern $history/last=3/a", "inner filter"),
        (b"topic read qos=3 a", "qos= must be"),
        (b"topic read history=maybe a", "yes or no"),
        (b"topic read retain=no a", "does not apply to read"),
        (b"topic write history=no a", "does not apply to write"),
        (b"topic deny qos=1 a", "a deny cannot have it"),
        (b"ann:$argon2id$", "begins with"),
    ],
)
def test_an_invalid_line_invalidates_the_list(line: bytes, words: str) -> None:
    """It may have been a deny: nothing of the list is used, and the line is named."""
    with pytest.raises(AclError, match="line 2: ") as caught:
        parse(b"topic read #\n" + line + b"\ntopic write #\n", name="acl")
    assert re.search(words, caught.value.problems[0])
    assert len(caught.value.problems) == 1


def test_many_problems_are_counted() -> None:
    """A file of another kind does not fill the log."""
    with pytest.raises(AclError, match="and 5 more"):
        parse(b"what\n" * (PROBLEMS_SHOWN_MAX + 5), name="acl")


def test_nothing_gives_no_rules() -> None:
    """An empty list is a list."""
    for empty in (b"", b"\n", b"# only words\n\n"):
        assert parse(empty, name="acl").count == 0


def test_unusable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, not a file, writable by others, too large."""
    path = tmp_path / "acl"
    with pytest.raises(AclError, match="No such file"):
        load(path)
    with pytest.raises(AclError, match="not a regular file"):
        load(tmp_path)
    path.write_text("topic #\n")
    path.chmod(0o646)
    with pytest.raises(AclError, match="chmod o-w"):
        load(path)
    path.chmod(0o644)
    assert load(path).anonymous[0].place == f"{path}:1"
    monkeypatch.setattr(acl_file, "FILE_SIZE_BYTES_MAX", 3)
    with pytest.raises(AclError, match="at most 3"):
        load(path)


def test_roles_of_keys() -> None:
    """A broker's list says which keys are proxies or administrators; no other key has a role."""
    rules = parse(b"user p\nrole proxy\nuser boss\nrole admin\nrole proxy\ntopic a\n", name="acl")
    assert rules.roles == {"p": {"proxy"}, "boss": {"admin", "proxy"}}
    for text, words in ((b"role proxy", "section of a user"), (b"user u\nrole king", "none of the roles")):
        with pytest.raises(AclError, match=words):
            parse(text, name="acl")
    with pytest.raises(AclError, match="section of a user"):
        parse(b"user u\nanonymous\nrole admin", name="acl")


def test_a_broker_is_named() -> None:
    """Its role says which broker names are its own, and no other role has names."""
    rules = parse(b"user n\nrole broker a b\nrole broker c\n", name="acl")
    assert (rules.roles, rules.brokers) == ({"n": {"broker"}}, {"n": {"a", "b", "c"}})
    for text in (b"user n\nrole broker", b"user n\nrole admin a", b"user n\nrole"):
        with pytest.raises(AclError, match="line 2"):
            parse(text, name="acl")
