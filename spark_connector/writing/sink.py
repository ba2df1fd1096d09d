"""The sink's conversation with the brokers' ledgers: what is committed, commit it everywhere, finish it, drop it.

Exactly-once comes from two things a broker keeps: attempts under (sink, batch, partition, attempt), of which a
commit shows exactly the listed ones, and a ledger with each sink's last batch, which makes a repeated commit or
replay harmless. A batch that is staged at several broker groups goes in three steps, each of which may be repeated:

    prepare   at every other group    its attempts are checked and kept
    commit    at the sink's home      decides the batch; the plan of the other groups is part of that ledger record
    commit    at every other group    what the home's plan says, whoever has to do it

Whoever finds a batch decided (a replay after a dead driver) commits what the plan says and nothing else. Invariant: the
home is the group with the highest batch, the first by name among equals, so a group that joins changes nothing. Thread
rule: one task or the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remoting.protocol.bodies import sink_body
from remoting.protocol.bodies.sink_body import Planned, StageHandle
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers.masters import GroupMaster, find_masters
from spark_connector.errors import BrokerUnreachable, OptionError
from spark_connector.options.read_write import WriteOptions


@dataclass(frozen=True, slots=True)
class SinkHome:
    """Where a sink's batches are decided: group, last batch there (-1 for none), what of it is at other groups."""

    group: str
    last_batch: int
    plan: tuple[Planned, ...]
    brokers: Mapping[str, GroupMaster]
    """Every broker group there is."""


def sink_home(sink: str, options: WriteOptions) -> SinkHome:
    """Ask every broker group for the sink's ledger; raises BrokerUnreachable when one of them cannot say.

    Taking another one instead would repeat rows: the silent one may have the batch.
    """
    brokers = find_masters(options)
    states = [(name, ledger_of(master, sink)) for name, master in brokers.items()]
    name, state = max(states, key=lambda one: one[1].last_batch)
    return SinkHome(name, state.last_batch, tuple(state.plan), brokers)


def check_replay(sink: str, batch: int, last: int) -> None:
    """Raise OptionError unless a stream repeats its last batch: what is further behind is of another checkpoint."""
    if batch < last:
        raise OptionError(
            f"sink {sink!r} has committed batch {last} and this query writes batch {batch}: it has another checkpoint, "
            "whose rows would be taken for repeated ones. Give it a name of its own ('sinkId', or the batch writer's), "
            "or go on with the checkpoint that wrote them"
        )


def ledger_of(master: GroupMaster, sink: str) -> sink_body.LedgerState:
    """What one broker knows of a sink."""
    reply = master.ask(Command(RequestCode.LEDGER, body=sink_body.encode(sink_body.Ledger(sink))))
    return sink_body.decode(sink_body.LedgerState, reply.body)


def commit_batch(
    master: GroupMaster,
    sink: str,
    batch: int,
    handles: Sequence[StageHandle],
    *,
    plan: Sequence[Planned] = (),
    prepare: bool = False,
) -> sink_body.BatchCommitted:
    """Make the listed attempts visible, or prepare that; repeating it is harmless."""
    body = sink_body.encode(sink_body.CommitBatch(sink, batch, list(handles), list(plan), prepare))
    return sink_body.decode(sink_body.BatchCommitted, master.ask(Command(RequestCode.COMMIT_BATCH, body=body)).body)


def commit_everywhere(
    sink: str, batch: int, handles: Mapping[str, Sequence[StageHandle]], options: WriteOptions
) -> list[str]:
    """Commit what is staged at each group, or what was decided for this batch before; the groups concerned."""
    brokers = find_masters(options)
    if len(brokers) == 1 and set(handles) <= set(brokers):
        home = SinkHome(next(iter(brokers)), sink_body.NO_BATCH, (), brokers)
    else:
        home = sink_home(sink, options)
    if home.last_batch >= batch:
        return finish_batch(home, sink, batch)
    others = {group: list(staged) for group, staged in handles.items() if group != home.group}
    for group, staged in others.items():
        commit_batch(_at(home, group), sink, batch, staged, prepare=True)
    plan = [Planned(group, staged) for group, staged in others.items()]
    decided = commit_batch(_at(home, home.group), sink, batch, handles.get(home.group, ()), plan=plan)
    return _finish(home, sink, batch, decided.plan)


def finish_batch(home: SinkHome, sink: str, batch: int) -> list[str]:
    """Commit at the other groups what the home has decided for this batch, if it is its last; the groups concerned."""
    return _finish(home, sink, batch, home.plan if home.last_batch == batch else ())


def _finish(home: SinkHome, sink: str, batch: int, plan: Sequence[Planned]) -> list[str]:
    for part in plan:
        commit_batch(_at(home, part.group), sink, batch, part.handles)
    return [home.group, *(part.group for part in plan)]


def _at(home: SinkHome, group: str) -> GroupMaster:
    """The master of a group; raises BrokerUnreachable while no name server knows its master."""
    if group not in home.brokers:
        raise BrokerUnreachable(f"no name server knows a master of the broker group {group!r}, which has rows staged")
    return home.brokers[group]


def abort_batch(master: GroupMaster, sink: str, batch: int) -> None:
    """Drop what is staged for a batch, but not what is prepared for its commit."""
    master.ask(Command(RequestCode.ABORT_BATCH, body=sink_body.encode(sink_body.AbortBatch(sink, batch))))


def forget_sink(master: GroupMaster, sink: str) -> None:
    """Tell the broker that a sink will not commit again, so that its ledger does not keep the name for ever."""
    abort_batch(master, sink, sink_body.NO_BATCH)
