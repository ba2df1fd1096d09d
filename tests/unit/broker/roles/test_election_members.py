"""Which groups that elect their own master are refused at the start, and in which words."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.election_members import GroupMembers
from broker.roles.replicas_manager import SavedIdentity, refuse_foreign
from broker.store.settings import StoreSettings
from remoting.protocol.errors import LocalMisuse

MEMBERS = ("n1@127.0.0.1:10911", "n2@127.0.0.1:10921", "n3@127.0.0.1:10931")


def config(*members: str, **changes: object) -> BrokerConfig:
    """The broker at the second address."""
    settings = ReplicationConfig(enabled=True, mode="dledger", members=members or MEMBERS)
    return BrokerConfig(port=10_921, replication=replace(settings, **changes))


def test_a_broker_finds_itself_by_its_address_or_by_name() -> None:
    found = GroupMembers.of(config())
    assert (found.own, found.own_id, found.ids) == ("n2", 2, frozenset({1, 2, 3}))
    assert GroupMembers.of(config(node_id="n3")).own_id == 3
    assert found.text == ",".join(MEMBERS)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (config("n1@127.0.0.1:10921"), "2 to 16"),
        (config("n1@127.0.0.1:10921", "n1@127.0.0.1:10931"), "a name of its own"),
        (config("n1@127.0.0.1", "n2@127.0.0.1:10921"), "is not name@host:port"),
        (config("n1@10.0.0.1:10911", "n2@10.0.0.2:10911"), "has this broker's address 127.0.0.1:10921"),
        (config(node_id="n9"), "is none of the members n1, n2, n3"),
        (config(learner=True), "needs controllers"),
        (replace(config(), store=StoreSettings(flush="async")), 'store.flush = "sync" is needed'),
    ],
)
def test_a_group_that_cannot_work_is_refused(made: BrokerConfig, words: str) -> None:
    with pytest.raises(LocalMisuse, match=words):
        GroupMembers.of(made)


def test_groups_that_survive_less_than_they_seem_to_are_warned_of() -> None:
    assert "a majority is both" in GroupMembers.of(config(*MEMBERS[:2])).warnings()[0]
    assert GroupMembers.of(config()).warnings() == []
    assert "as 3 do" in GroupMembers.of(config(*MEMBERS, "n4@127.0.0.1:10941")).warnings()[0]


def test_a_directory_of_another_kind_of_group_or_of_another_member_is_refused() -> None:
    members = GroupMembers.of(config())
    new = SavedIdentity("c", "g")
    own = msgspec.structs.replace(new, broker_id=2, admitted=True, members="n1,n2,n3")
    members.check_identity(new)
    members.check_identity(own)
    members.check_log(own, 500)
    with pytest.raises(LocalMisuse, match="a group with controllers"):
        members.check_identity(msgspec.structs.replace(new, broker_id=2, is_applied=True))
    with pytest.raises(LocalMisuse, match="never change"):
        members.check_identity(msgspec.structs.replace(own, members="n1,n2"))
    with pytest.raises(LocalMisuse, match="never change"):
        members.check_identity(msgspec.structs.replace(own, broker_id=3))
    with pytest.raises(LocalMisuse, match="a new group starts with empty directories"):
        members.check_log(new, 500)
    with pytest.raises(LocalMisuse, match="elects its master itself"):
        refuse_foreign(own)
    refuse_foreign(new)
