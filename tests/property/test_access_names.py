"""Whatever its client id, a rule with a placeholder gives a client its own topics and no other's."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.access.acl_file import parse
from remoting.access.rules import Grants, Identity

RULES = parse(b"pattern dev/%c/#\npattern home/${username}/x-%c\npattern ${clientid}/own\n", name="acl")
DENY = parse(b"pattern #\npattern deny private/%u/#\n", name="acl")
NASTY = st.sampled_from(["#", "+", "/", "%c", "%u", "${clientid}", "$SYS", ".*", "a", "b", "\0", ""])
NAMES = st.one_of(st.lists(NASTY, max_size=4).map("".join), st.text(max_size=6))
TOPICS = st.lists(st.one_of(NASTY, NAMES), min_size=1, max_size=4).map("/".join)


@settings(max_examples=1_500, deadline=None)
@given(NAMES, NAMES, NAMES, TOPICS)
def test_what_one_may_read_no_other_may(one: str, other: str, user: str, topic: str) -> None:
    """For the topics that a name could aim at, and for any other."""
    first = Grants(RULES, Identity(user, False, one))
    second = Grants(RULES, Identity(user, False, other))
    for asked in (
        topic,
        f"dev/{one}/x",
        f"dev/{other}/x",
        f"home/{user}/x-{one}",
        f"{other}/own",
        "dev/#",
        "dev/+/x",
        "#",
    ):
        both = bool(first.read(asked)) and bool(second.read(asked))
        assert not both or one == other, asked
        assert not (first.write_mask(asked.encode()) and second.write_mask(asked.encode())) or one == other, asked


@settings(max_examples=1_000, deadline=None)
@given(NAMES, NAMES)
def test_a_deny_by_name_cannot_be_evaded_by_a_name(user: str, client_id: str) -> None:
    """Whatever the name, its own private topics stay denied, and so does a filter that matches them."""
    mine = Grants(DENY, Identity(user, False, client_id))
    for asked in ("#", "private/#", "private/+/x", f"private/{user}/x"):
        assert not mine.read(asked), asked
    assert mine.write_mask(f"private/{user}/x".encode("utf-8", "surrogatepass")) == 0
