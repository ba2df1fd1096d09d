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
from spark_connector.brokers.connections import Address
from spark_connector.brokers.masters import ask_master, find_brokers
from spark_connector.errors import BrokerUnreachable, OptionError
from spark_connector.options.read_write import WriteOptions


@dataclass(frozen=True, slots=True)
class SinkHome:
    """Where a sink's batches are decided: group, last batch there (-1 for none), what of it is at other groups."""

    group: str
    last_batch: int
    plan: tuple[Planned, ...]
    brokers: Mapping[str, Address]
    """Every broker group there is."""


def sink_home(sink: str, options: WriteOptions) -> SinkHome:
    """Ask every broker group for the sink's ledger; raises BrokerUnreachable when one of them cannot say.

    Taking another one instead would repeat rows: the silent one may have the batch.
    """
    brokers = find_brokers(options)
    states = [(name, ledger_of(address, sink, options)) for name, address in brokers.items()]
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


def ledger_of(address: Address, sink: str, options: WriteOptions) -> sink_body.LedgerState:
    """What one broker knows of a sink."""
    body = sink_body.encode(sink_body.Ledger(sink))
    return sink_body.decode(
        sink_body.LedgerState, ask_master(address, Command(RequestCode.LEDGER, body=body), options).body
    )


def commit_batch(
    address: Address,
    sink: str,
    batch: int,
    handles: Sequence[StageHandle],
    options: WriteOptions,
    *,
    plan: Sequence[Planned] = (),
    prepare: bool = False,
) -> sink_body.BatchCommitted:
    """Make the listed attempts visible, or prepare that; repeating it is harmless."""
    body = sink_body.encode(sink_body.CommitBatch(sink, batch, list(handles), list(plan), prepare))
    reply = ask_master(address, Command(RequestCode.COMMIT_BATCH, body=body), options)
    return sink_body.decode(sink_body.BatchCommitted, reply.body)


def commit_everywhere(
    sink: str, batch: int, handles: Mapping[str, Sequence[StageHandle]], options: WriteOptions
) -> list[str]:
    """Commit what is staged at each group, or what was decided for this batch before; the groups concerned."""
    brokers = find_brokers(options)
    if len(brokers) == 1 and set(handles) <= set(brokers):
        home = SinkHome(next(iter(brokers)), sink_body.NO_BATCH, (), brokers)
    else:
        home = sink_home(sink, options)
    if home.last_batch >= batch:
        return finish_batch(home, sink, batch, options)
    others = {group: list(staged) for group, staged in handles.items() if group != home.group}
    for group, staged in others.items():
        commit_batch(_at(home, group), sink, batch, staged, options, prepare=True)
    plan = [Planned(group, staged) for group, staged in others.items()]
    decided = commit_batch(_at(home, home.group), sink, batch, handles.get(home.group, ()), options, plan=plan)
    return _finish(home, sink, batch, decided.plan, options)


def finish_batch(home: SinkHome, sink: str, batch: int, options: WriteOptions) -> list[str]:
    """Commit at the other groups what the home has decided for this batch, if it is its last; the groups concerned."""
    return _finish(home, sink, batch, home.plan if home.last_batch == batch else (), options)


def _finish(home: SinkHome, sink: str, batch: int, plan: Sequence[Planned], options: WriteOptions) -> list[str]:
    for part in plan:
        commit_batch(_at(home, part.group), sink, batch, part.handles, options)
    return [home.group, *(part.group for part in plan)]


def _at(home: SinkHome, group: str) -> Address:
    """Where a group is; raises BrokerUnreachable while no name server knows its master."""
    if group not in home.brokers:
        raise BrokerUnreachable(f"no name server knows a master of the broker group {group!r}, which has rows staged")
    return home.brokers[group]


def abort_batch(address: Address, sink: str, batch: int, options: WriteOptions) -> None:
    """Drop what is staged for a batch, but not what is prepared for its commit."""
    ask_master(
        address, Command(RequestCode.ABORT_BATCH, body=sink_body.encode(sink_body.AbortBatch(sink, batch))), options
    )


def forget_sink(address: Address, sink: str, options: WriteOptions) -> None:
    """Tell the broker that a sink will not commit again, so that its ledger does not keep the name for ever."""
    abort_batch(address, sink, sink_body.NO_BATCH, options)
