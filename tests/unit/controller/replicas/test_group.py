"""What a group shows, and that its rules are really looked at."""

from __future__ import annotations

import pytest

from controller.replicas.group import Replica, ReplicaGroup, check

REPLICAS = {1: Replica("x", "h:1", "ha:1"), 2: Replica("y", "h:2")}


def test_the_view_has_the_master():
    """Addresses of the master where there is one, empty texts where there is none."""
    view = ReplicaGroup("C", "g", REPLICAS, 3, 1, 4, 5, (1, 2)).view()
    assert (view.master_address, view.master_ha_address, view.addresses) == ("h:1", "ha:1", {1: "h:1", 2: "h:2"})
    assert ReplicaGroup("C", "g", REPLICAS, 3).view().master_address == ""


@pytest.mark.parametrize(
    "group",
    [
        ReplicaGroup("C", "g", REPLICAS, 3, master=1, master_epoch=1, in_sync=(2,)),
        ReplicaGroup("C", "g", REPLICAS, 3, in_sync=(3,)),
        ReplicaGroup("C", "g", REPLICAS, 3, in_sync=(2, 1)),
        ReplicaGroup("C", "g", REPLICAS, 2),
        ReplicaGroup("C", "g", REPLICAS, 3, master=1, in_sync=(1,)),
    ],
)
def test_rules_are_checked(group):
    """A state that breaks a rule stops us instead of the brokers."""
    with pytest.raises(AssertionError):
        check(group)
