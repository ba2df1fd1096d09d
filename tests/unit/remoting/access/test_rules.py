"""Verdicts of compiled rules: deny takes precedence, permissions add up, names never widen anything."""

from __future__ import annotations

import pytest

from remoting.access.acl_file import parse
from remoting.access.rules import (
    ANONYMOUS,
    EVERYTHING,
    HASH,
    PLUS,
    WRITE_ALL_MASK,
    Grants,
    Identity,
    Prefix,
    Rule,
    RuleSet,
    Unproven,
    contains,
    covers,
    fill,
    intersects,
    split,
    topic_prefix,
    write_bit,
)
from tests.support.plants import Plant, catches

STRANGE = ["#", "+", "a/b", "a/#", "", "/", "x\0y", "+/+"]


def grants(text: str, name: str = "ann", client_id: str = "c1", **more: object) -> Grants:
    return Grants(parse(text.encode(), name="acl"), Identity(name, bool(not name), client_id, **more))  # type: ignore[arg-type]


def test_what_no_rule_allows_is_denied() -> None:
    """An empty list denies all, a rule for another user has no effect."""
    for given in (grants(""), grants("user bob\ntopic #\n"), grants("topic #\n"), grants("group g\ntopic #\n")):
        assert given.write_mask(b"a") == 0
        assert given.write(b"a", 0, retain=False).reason == "no_rule"
        assert not given.read("a")
        assert not given.deliver(b"a", retained=False)


def test_the_subject_of_a_rule() -> None:
    """User, group, anonymous clients, everyone."""
    text = "topic read open/#\nuser ann\ntopic read ann/#\ngroup g\ntopic read g/#\npattern read all/#\n"
    ann, nobody = grants(text, groups=("g",)), grants(text, name="")
    assert [bool(ann.read(one)) for one in ("ann/#", "g/#", "all/#", "open/#")] == [True, True, True, False]
    assert [bool(nobody.read(one)) for one in ("ann/#", "g/#", "all/#", "open/#")] == [False, False, True, True]


def test_a_claimed_name_is_no_name() -> None:
    """An anonymous client that calls itself ann is not ann, and `%u` is empty for it."""
    rules = parse(b"user ann\ntopic #\npattern u/%u/#\n", name="acl")
    claimed = Grants(rules, Identity("ann", True, "c"))
    assert not claimed.read("x")
    assert not claimed.read("u/ann/x")
    assert Grants(rules, Identity("ann", False, "c")).read("u/ann/x")


def test_deny_takes_precedence_wherever_it_is() -> None:
    """Over reading and writing, or one of both."""
    text = "user ann\ntopic deny a/secret/#\ntopic a/#\ntopic deny-write a/ro\ntopic deny-read a/wo\n"
    ann = grants(text)
    assert ann.write(b"a/secret/x", 0, retain=False).rule.place == "acl:2"  # type: ignore[union-attr]
    assert ann.write_mask(b"a/secret") == 0
    assert ann.write_mask(b"a/x") == WRITE_ALL_MASK
    assert ann.write_mask(b"a/ro") == 0
    assert ann.read("a/ro")
    assert ann.write_mask(b"a/wo")
    assert not ann.read("a/wo")
    assert ann.read("a/#").reason == "deny_rule"
    assert ann.deliver(b"a/secret/x", retained=False).reason == "deny_rule"
    assert ann.deliver(b"a/x", retained=True)


def test_a_filter_must_lie_inside_an_allowed_one() -> None:
    """Neither a wider one nor one that partly lies outside."""
    ann = grants("user ann\ntopic read a/+/b\ntopic read c/#\n")
    assert ann.read("a/+/b")
    assert ann.read("a/x/b")
    assert ann.read("c")
    assert ann.read("c/+/d/#")
    for wider in ("#", "a/#", "a/+/+", "+/x/b", "+", "$SYS/#"):
        assert not ann.read(wider), wider


def test_kinds_of_messages() -> None:
    """QoS, retained and will: one rule must allow all of it."""
    ann = grants("user ann\ntopic write qos=1 retain=no a\ntopic write qos=0 will=no a\n")
    allowed = {
        (qos, retain, will)
        for qos in range(3)
        for retain in (False, True)
        for will in (False, True)
        if ann.write(b"a", qos, retain=retain, will=will)
    }
    assert allowed == {(0, False, False), (1, False, False), (0, False, True), (1, False, True), (0, True, False)}
    assert ann.write_mask(b"a") == sum(write_bit(qos, retain=r, will=w) for qos, r, w in allowed)
    refused = ann.write(b"a", 2, retain=False)
    assert refused.reason == "qos_retain_or_will"
    assert refused.rule.place == "acl:2"  # type: ignore[union-attr]


def test_the_grant_of_a_subscription() -> None:
    """The highest QoS of its rules; retained messages and history where one of them allows those."""
    ann = grants("user ann\ntopic read qos=0 retained=no history=no a/#\ntopic read qos=1 retained=no a/b\n")
    assert ann.read("a/#").qos_max == 0
    assert ann.read("a/b").qos_max == 1
    assert not ann.read("a/b").retained
    assert ann.read("a/b", history=True)
    assert ann.read("a/#", history=True).reason == "history"
    assert ann.deliver(b"a/c", retained=True).reason == "retained"
    assert ann.deliver(b"a/c", retained=False)


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("placeholder", ["%c", "${clientid}", "%u", "${username}"])
def test_an_unusual_name_matches_no_allowing_rule(name: str, placeholder: str) -> None:
    """Neither as client id nor as user name, nor as part of a level."""
    rules = parse(f"pattern d/{placeholder}/#\npattern e/x-{placeholder}\n".encode(), name="acl")
    mine = Grants(rules, Identity(name, False, name))
    for asked in ("d/#", "d/+/#", "d/a/b/#", "d/x/#", "e/#", "e/x-a/b", "d//#", "d/" + name, "e/x-" + name):
        assert not mine.read(asked), asked
        assert mine.write_mask(asked.encode()) == 0


@pytest.mark.parametrize("name", [".*", "%u", "%c", "${username}", "*", "a b", "ä", "$x"])
def test_a_name_is_literal_text(name: str) -> None:
    """Inserted once, matching itself and nothing else."""
    rules = parse(b"pattern d/%c/#\n", name="acl")
    mine = Grants(rules, Identity("victim", False, name))
    assert mine.read(f"d/{name}/x")
    assert not mine.read("d/victim/x")
    assert not mine.read("d/abc/x")


def test_a_name_does_not_begin_the_topic_with_a_dollar() -> None:
    """`%c/#` gives no access to the server's own topics; a rule that names them does."""
    rules = parse(b"pattern %c/#\npattern ${clientid}/#\npattern read $SYS/%c/#\n", name="acl")
    assert not Grants(rules, Identity("", True, "$SYS")).read("$SYS/x")
    assert Grants(rules, Identity("", True, "c")).read("$SYS/c/x")
    assert Grants(rules, Identity("", True, "c")).read("c/x")


def test_a_deny_that_cannot_be_filled_denies_more() -> None:
    """From the level with the placeholder on; everything when that is the first."""
    deny = Rule("acl:1", "", b"a/%c/x", allow=False, read=True, write=True, pattern=True)
    assert fill(deny, Identity("", True, "b")) == split("a/b/x")
    assert fill(deny, Identity("", True, "b/c")) == split("a/#")
    rules = parse(b"pattern deny %c/x\npattern #\npattern $SYS/#\n", name="acl")
    odd = Grants(rules, Identity("", True, "+"))
    assert not odd.read("b")
    assert not odd.read("$SYS/b")
    assert odd.write_mask(b"b") == 0
    assert not odd.deliver(b"b", retained=False)
    assert (
        fill(Rule("", "", b"%c", allow=False, read=True, write=True, pattern=True), Identity("", True, "#"))
        == EVERYTHING
    )


def test_without_a_list_everything_is_allowed_unless_a_token_restricts_it() -> None:
    """Rules that came with the identity apply even where there are no others."""
    anybody = Grants(RuleSet(open=True), Identity("ann", False))
    assert anybody.read("#")
    assert anybody.write(b"a", 2, retain=True)
    assert anybody.deliver(b"a", retained=True)
    assert anybody.write_mask(b"a") == WRITE_ALL_MASK
    own = Rule("token", "", b"a/%c", allow=True, read=True, write=False, pattern=True)
    narrowed = Grants(RuleSet(open=True), Identity("ann", False, "c", rules=(own,)))
    assert narrowed.read("a/c")
    assert not narrowed.read("#")
    assert narrowed.write_mask(b"a/c") == 0


def test_a_rule_has_its_place_and_text() -> None:
    """For people: the line and its content."""
    rules = parse(b"user ann\ntopic read a\n", name="acl")
    assert str(rules.users["ann"][0]) == "acl:2: topic read a"
    assert rules.count == 1


@pytest.mark.parametrize(
    ("outer", "inner", "inside"),
    [
        ("#", "a/b", True),
        ("#", "+/#", True),
        ("+/#", "#", True),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/#", "a/+/#", True),
        ("a/+/#", "a/#", False),
        ("a/+", "a/#", False),
        ("a/+", "a/b", True),
        ("a/b", "a/+", False),
        ("+", "#", False),
        ("+/+", "a/", True),
        ("a", "a/", False),
        ("a/b", "a", False),
        ("#", "$SYS/#", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/broker/+", True),
        ("$SYS/#", "#", False),
    ],
)
def test_contains(outer: str, inner: str, inside: bool) -> None:
    """Every topic of the inner filter, or not every one."""
    assert contains(split(outer), split(inner)) is inside


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("a/#", "+/b", True),
        ("a/+", "+/b", True),
        ("a/#", "a", True),
        ("a/b/#", "a", False),
        ("a/b", "a/c", False),
        ("a/+/c", "a/b", False),
        ("a/+/#", "a/b", True),
        ("a/+/#", "a", False),
        ("#", "$SYS/x", False),
        ("$SYS/+", "$SYS/x", True),
        ("#", "+", True),
    ],
)
def test_intersects(one: str, other: str, shared: bool) -> None:
    """Some topic matches both, in either order."""
    assert intersects(split(one), split(other)) is shared
    assert intersects(split(other), split(one)) is shared


@catches(
    Plant("seen-from-the-left", "remoting.access.rules:intersects", "and not _level_contains(right, left)", ""),
    Plant("seen-from-the-right", "remoting.access.rules:intersects", "not _level_contains(left, right) and", ""),
)
def test_a_prefix_meets_what_begins_with_it() -> None:
    """Whichever of the two is the rule: a deny that is looked at from one side only is overlooked."""
    orders, every_order = (Prefix(b"ord"),), (topic_prefix(b"ord"), HASH)
    for one, other, shared in [
        (orders, (b"orders",), True),
        (orders, (b"or",), False),
        (orders, (Prefix(b"order"),), True),
        (orders, (Prefix(b"bill"),), False),
        (orders, (PLUS,), True),
        (every_order, (b"orders", HASH), True),
        (every_order, (b"or", HASH), False),
    ]:
        assert intersects(one, other) is shared, (one, other)
        assert intersects(other, one) is shared, (other, one)


def test_covers() -> None:
    """Topic names, with the `$` rule and the parent that `#` includes."""
    assert covers(split("a/#"), (b"a",))
    assert covers(split("#"), (b"a", b"b"))
    assert not covers(split("#"), (b"$SYS", b"b"))
    assert not covers(split("a/+"), (b"a",))
    assert not covers(split("a"), (b"a", b"b"))


def test_identities_are_values() -> None:
    """Equal when their fields are, and immutable."""
    assert Identity("", anonymous=True) == ANONYMOUS
    assert Identity("ann", anonymous=False) != Identity("ann", anonymous=True)
    with pytest.raises(AttributeError):
        ANONYMOUS.name = "root"  # type: ignore[misc]


def test_reasons_are_metric_labels() -> None:
    """Their words are part of the operator's vocabulary."""
    assert [str(one) for one in Unproven] == ["denied", "busy", "unavailable", "left"]
