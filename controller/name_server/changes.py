"""What can happen to the controller's state, and what follows from it: commands in, events out.

Commands carry everything they need (no clock, no defaults looked up later), so that applying the same ones in the same
order gives the same state anywhere. Pure values.
"""

from __future__ import annotations

import msgspec

from remoting.protocol.bodies.route_body import DataVersion, QueueData, TopicConfig


class RegisterBroker(msgspec.Struct, tag=True):
    """A broker says who it is; `topics` is None when it tells nothing of its topics."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    zone_name: str | None = None
    enable_acting_master: bool = False
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] | None = None


class RemoveMember(msgspec.Struct, tag=True):
    """A broker address left in order, or is dead."""

    cluster: str
    address: str
    reason: str


class SetWritable(msgspec.Struct, tag=True):
    """An operator takes the write permission of all of a broker's topics out of the routes, or gives it back."""

    broker_name: str
    writable: bool


class PutTopic(msgspec.Struct, tag=True):
    """Queues of one topic on some brokers."""

    topic: str
    queues: list[QueueData]


class RemoveTopic(msgspec.Struct, tag=True):
    """A topic leaves the routes, of one cluster or of all."""

    topic: str
    cluster: str | None = None


class PutKeyValue(msgspec.Struct, tag=True):
    """An entry of the key-value table."""

    namespace: str
    key: str
    value: str


class DeleteKeyValue(msgspec.Struct, tag=True):
    """An entry of the key-value table that goes."""

    namespace: str
    key: str


Change = RegisterBroker | RemoveMember | SetWritable | PutTopic | RemoveTopic | PutKeyValue | DeleteKeyValue


class Rejected(msgspec.Struct):
    """The command was not carried out; `remark` says why, for the peer."""

    remark: str


class Registered(msgspec.Struct):
    """A broker address is in the routes; `first` when it was not before."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    first: bool


class MemberLeft(msgspec.Struct):
    """A broker address is no longer in the routes."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    reason: str


class TopicsTouched(msgspec.Struct):
    """So many topics changed their permission or left."""

    count: int


Event = Rejected | Registered | MemberLeft | TopicsTouched
