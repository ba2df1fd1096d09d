"""What an opening hands over: the recovered parts of a store, and what its start still has to say.

Invariant: everything in it is on the disk, and nothing has been appended since. Thread rule: plain values.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.store.index.queue_index import QueueIndex
from broker.store.log.commit_log import CommitLog
from broker.store.log.durable_mark import DurableMark
from broker.store.log.epoch_file import Epoch
from broker.store.log.taken_group import TakenGroup
from broker.store.recovery.quarantine import Quarantine
from broker.store.state.queue_registry import QueueRegistry
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables


@dataclass(slots=True)
class Opened:
    """The recovered parts of a store."""

    log: CommitLog
    index: QueueIndex
    tables: StateTables
    registry: QueueRegistry
    epoch: int
    store_ms: int
    snapshot_position: int
    replayed_records: int
    mark: DurableMark
    quarantine: Quarantine
    mending: list[StateChange]
    """What must be appended before anything else, because damage took it from the log."""
    epochs: list[Epoch]
    """Which epoch wrote what, the one of this start included."""
    confirmed: int
    """Everything below it counts as confirmed."""
    unconfirmed: list[TakenGroup]
    """What is in the log behind that, of a group of replicas."""
