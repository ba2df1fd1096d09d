"""Users of the cluster at the leading controller: fetched, changed for one version, refused without an access list."""

from __future__ import annotations

import asyncio

import pytest

from controller.control_plane.user_requests import ClusterUserRequests
from remoting.access.agreement import AgreedUsers, UserChange, UserState, Version
from remoting.access.users import User
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.errors import NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command


def change(made_for: Version, name: str = "ann", origin: str = "first", secret: str = "x") -> Command:
    """A request that makes a user."""
    states = (UserState(name=name, user=User(secret=secret)),)
    return Command(Code.CHANGE_USERS, body=encode_body(UserChange(made_for=made_for, origin=origin, states=states)))


async def fetched(requests: ClusterUserRequests, known: Version) -> AgreedUsers:
    """The table, or only its version."""
    command = Command(Code.AGREED_USERS, fields={"exact": "true"}, body=encode_body(known))
    return decode_body((await requests.agreed(None, command)).body, AgreedUsers)


async def test_a_change_is_answered_with_its_version_and_shown_to_those_who_lack_it(world):
    requests = ClusterUserRequests(world.masters, frozenset())
    assert (await fetched(requests, Version())).table is None
    answer = await requests.change(None, change(Version()))
    made = decode_body(answer.body, AgreedUsers).version
    assert made == Version("first", 1)
    table = (await fetched(requests, Version())).table
    assert table is not None
    assert table.users == {"ann": User(secret="x")}
    assert await fetched(requests, made) == AgreedUsers(version=made)


async def test_the_first_user_waits_for_members_that_may_be_too_old(world, monkeypatch):
    """Nothing is changed until all have said that they know users; later one of them may be down."""
    requests = ClusterUserRequests(world.masters, frozenset())
    monkeypatch.setattr(type(world.plane.engine), "outdated", frozenset({"n3", "n2"}))
    with pytest.raises(Refused, match="n2, n3"):
        await requests.change(None, change(Version()))
    assert await fetched(requests, Version()) == AgreedUsers(version=Version())
    monkeypatch.setattr(type(world.plane.engine), "outdated", frozenset())
    await requests.change(None, change(Version()))
    monkeypatch.setattr(type(world.plane.engine), "outdated", frozenset({"n3"}))
    await requests.change(None, change(Version("first", 1), "bob"))
    assert set(world.plane.machine.users.users) == {"ann", "bob"}


async def test_of_two_changes_for_one_version_one_is_made(world):
    requests = ClusterUserRequests(world.masters, frozenset())
    both = (requests.change(None, change(Version(), name)) for name in ("ann", "bob"))
    answers = await asyncio.gather(*both, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert [answer.code for answer in refused] == [9102]
    assert len(world.plane.machine.users.users) == 1


@pytest.mark.parametrize(
    "command",
    [
        change(Version(), origin=""),
        change(Version(), name="configured"),
        change(Version(), secret="s" * 1_100_000),
        Command(Code.CHANGE_USERS, body=encode_body(UserChange(made_for=Version(), origin="first", states=()))),
    ],
)
async def test_what_cannot_be_kept_is_refused(world, command):
    requests = ClusterUserRequests(world.masters, frozenset({"configured"}))
    with pytest.raises(Refused) as refusal:
        await requests.change(None, command)
    assert refusal.value.code == 29
    assert not world.plane.machine.users.users


async def test_without_an_access_list_both_are_refused_by_name(world):
    requests = ClusterUserRequests(world.masters, None)
    for asked in (fetched(requests, Version()), requests.change(None, change(Version()))):
        with pytest.raises(NotOffered, match=r"controller\.access_list"):
            await asked
