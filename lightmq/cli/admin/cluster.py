"""``lightmq cluster``: show the leading controller, masters and replicas in sync, and change masters and members.

Invariant: commands that show change nothing; `transfer` moves a master to a replica that has everything, never to
another; `remove` takes no living broker without `--living`; `forget` takes no group that has one, and asks before.

`promised` is what an acknowledgement of a broker means, from its configuration; without it nothing is promised.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from broker.replication.promises import DurabilityRule, promise
from lightmq.cli.admin.controllers import controllers
from lightmq.cli.completing import BROKER_GROUPS
from lightmq.cli.connections import LeadingController, ServerTarget, leading_controller
from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import CommandFailed, columns, print_done, print_json
from remoting.protocol.bodies.controller_body import (
    NO_BROKER,
    CleanBrokerData,
    ElectMasterHeader,
    EpochCache,
    GroupState,
    MasterHeader,
    ReplicaState,
    from_fields,
    to_fields,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime.clock import SystemClock


def promised(settings: Mapping[str, str], brokers: int) -> dict[str, str | None]:
    """`promise` and `warning` of a group of so many brokers whose master has these settings; None: unknown."""
    elects = settings.get("replication.mode") == ELECTED
    try:
        rule = DurabilityRule(
            flush=settings["store.flush"],
            in_group=settings["replication.enabled"].lower() == "true",
            acknowledge=settings["replication.acknowledge"],
            count=settings["replication.members"].count("@")
            if elects
            else int(settings["replication.in_sync_replicas"]),
            in_sync_min=int(settings["replication.in_sync_min"]),
            elects_itself=elects,
        )
    except (KeyError, ValueError):
        return {"promise": None, "warning": None}
    found = promise(rule, brokers)
    return {"promise": found.text, "warning": found.warning or None}


cluster = App(
    name="cluster",
    help="Show and change who is master of the broker groups.",
    help_format="plaintext",
    help_epilogue=epilogue("cluster"),
)
cluster.command(controllers)
HERE = ServerTarget()
CONTROLLED, ELECTED = "controller", "dledger"
"""Who chooses the master of a group: the controllers, or its brokers."""
ALONE = "alone"
"""State of a broker that is in no group."""

Group = Annotated[str, BROKER_GROUPS, Parameter(help="Name of the broker group, broker.broker_name of its brokers.")]
OneGroup = Annotated[str, BROKER_GROUPS, Parameter(help="Only this broker group.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print JSON, one object per line.")]
BrokerId = Annotated[int, Parameter(help="Id of the broker, see: lightmq cluster members.")]


@cluster.command
def status(*, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Show the controllers, and which of them cannot be reached from here, and one line per broker group.

    A broker that is in no group is a line of its own. Below is who elects the master, where its brokers do, and what an
    acknowledgement of each group means.
    The exit status is 1 when a group has no master or a replica is not in sync.
    """
    with leading_controller(target) as found:
        groups = found.groups()
        rows = [summary(name, state) for name, state in groups.items()]
        rows += [lone_summary(name, address) for name, address in found.lone(groups).items()]
        rows += [away_summary(name) for name in found.absent() if name not in groups]
        rows = [row | promised(found.settings(row["address"] or ""), row["replicas"]) for row in rows]
        held = found.mqtt_group()
        known = peers(found)
        dead = found.unreachable(each.partition("-")[2] for each in known)
    if json_output:
        lead = {
            "leader": None if found.is_member else found.address,
            "leaderId": found.metadata.controller_leader_id,
            "peers": known,
            "unreachable": sorted(dead),
            "mqttGroup": held or None,
        }
        print_json([{**lead, "groups": rows}])
    else:
        shown = [f"{each} (cannot be reached)" if each.partition("-")[2] in dead else each for each in known]
        if found.is_member:
            sys.stdout.write(f"no controllers: {found.address} answers for its group\n")
        else:
            sys.stdout.write(f"controllers: {', '.join(shown) or found.address}; {found.address} leads\n")
        cells = [(row["group"], *_master_cells(row), _cell(row["epoch"]), _share(row), row["state"]) for row in rows]
        sys.stdout.write(columns(("GROUP", "MASTER", "ADDRESS", "EPOCH", "IN SYNC", "STATE"), cells))
        sys.stdout.write(f"MQTT is at {held}\n" if held else "")
        sys.stdout.write(
            "".join(f"{name}: {elected(state)}\n" for name, state in groups.items() if state.elects_itself)
        )
        sys.stdout.write("".join(f"{row['group']}: {row['promise']}\n" for row in rows if row["promise"]))
        sys.stderr.write("".join(f"warning: {row['group']}: {row['warning']}\n" for row in rows if row["warning"]))
    if any(row["state"] not in ("ok", ALONE) for row in rows):
        raise SystemExit(1)


@cluster.command
def members(group: OneGroup = "", *, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Show every broker of every group: its role, whether it is alive, in sync, and how far it is behind."""
    with leading_controller(target) as found:
        groups = found.groups()
        lone = found.lone(groups)
        if group not in ("", *lone):
            groups, lone = found.groups(group), {}
        elif group:
            groups, lone = {}, {group: lone[group]}
        rows = [row for name, state in groups.items() for row in member_rows(found, name, state)]
        rows += [lone_row(found, name, address) for name, address in lone.items()]
    if json_output:
        print_json(rows)
        return
    headings = ("GROUP", "ID", "ADDRESS", "ROLE", "ALIVE", "IN SYNC", "LOG END", "BEHIND")
    sys.stdout.write(columns(headings, [tuple(map(_cell, row.values())) for row in rows]))


@cluster.command
def epochs(group: Group, *, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Show the epochs of each broker's log: who was master from which position on. Brokers in sync show the same."""
    rows: list[dict[str, Any]] = []
    with leading_controller(target) as found:
        for replica in replicas(found.groups(group)[group]):
            cache = found.epochs(replica.broker_address)
            if isinstance(cache, str):
                sys.stderr.write(f"broker {replica.broker_id} does not show its epochs: {cache}\n")
                continue
            rows += epoch_rows(replica, cache)
    if not rows:
        raise CommandFailed(f"no broker of group {group!r} shows its epochs")
    if json_output:
        print_json(rows)
        return
    cells = [tuple(map(str, row.values())) for row in rows]
    sys.stdout.write(columns(("ID", "ADDRESS", "EPOCH", "START", "END"), cells))


@cluster.command
def elect(group: Group, *, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Elect a master for a group that has none, from the live replicas that are in sync."""
    with leading_controller(target) as found:
        state = found.groups(group)[group]
        if state.elects_itself:
            raise CommandFailed(
                f"the brokers of {group!r} elect their master themselves, as soon as enough can be reached"
            )
        _elected(found, group, state, NO_BROKER, json_output=json_output)


@cluster.command
def transfer(group: Group, to: BrokerId, *, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Make another replica the master; it must be alive and in sync."""
    with leading_controller(target) as found:
        state = found.groups(group)[group]
        known = {replica.broker_id: replica for replica in replicas(state)}
        if to not in known:
            raise CommandFailed(f"group {group!r} has no broker {to}; it has {', '.join(map(str, sorted(known)))}")
        if to == state.master_broker_id:
            raise CommandFailed(f"broker {to} is the master of {group!r} already")
        if known[to] not in state.in_sync_replicas:
            raise CommandFailed(
                f"broker {to} is not in sync: as master it would lose messages; see lightmq cluster members"
            )
        if not known[to].alive:
            raise CommandFailed(f"broker {to} is not running, or its heartbeats do not reach the controllers")
        _elected(found, group, state, to, json_output=json_output)


@cluster.command
def remove(
    group: Group,
    broker_ids: Annotated[list[int], Parameter(negative=(), help="Ids of the brokers to forget.")],
    *,
    living: Annotated[
        bool, Parameter(negative=(), help="Also running brokers, which must then register again.")
    ] = False,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Remove brokers that will not return, so that no master waits for them. Their data stays where it is."""
    with leading_controller(target) as found:
        state = found.groups(group)[group]
        if state.elects_itself:
            raise CommandFailed(
                f"the members of {group!r} are those of its configuration: they elect their master themselves"
            )
        known = {replica.broker_id: replica for replica in replicas(state)}
        unknown = sorted(set(broker_ids) - set(known))
        if unknown:
            raise CommandFailed(
                f"group {group!r} has no broker {unknown[0]}; it has {', '.join(map(str, sorted(known)))}"
            )
        running = [each for each in broker_ids if known[each].alive]
        if running and not living:
            raise CommandFailed(f"broker {running[0]} of {group!r} is running; stop it first, or add --living")
        header = CleanBrokerData(
            group,
            broker_controller_ids_to_clean=";".join(map(str, broker_ids)),
            is_clean_living_broker=living,
            invoke_time=SystemClock().now_ms(),
        )
        found.ask(Command(RequestCode.CLEAN_BROKER_DATA, fields=to_fields(header)))
    done = f"the controllers forgot {', '.join(map(str, broker_ids))} of {group}"
    print_done(done, json_output, group=group, removed=broker_ids)


@cluster.command
def forget(
    group: Group,
    *,
    yes: Annotated[bool, Parameter(name=["--yes"], negative=(), help="Do not ask.")] = False,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Forget a broker group of which no broker will return: its topics leave the routes, and nobody waits for it.

    While a group is only away it stays known, so that no reader takes the rest of a topic for all of it.
    """
    with leading_controller(target) as found:
        if found.is_member:
            raise CommandFailed(f"{found.address} is a broker: give the address of a controller or name server")
        known = found.absent()
        if group not in known:
            away = ", ".join(known) or "none"
            raise CommandFailed(f"{group!r} is not known as a broker group that is away; these are: {away}")
        state = found.groups().get(group)
        running = [each for each in replicas(state) if each.alive] if state is not None else []
        if running:
            raise CommandFailed(f"broker {running[0].broker_id} of {group!r} is running; stop it first")
        if not yes:
            raise CommandFailed(f"what only {group} holds is given up: lightmq cluster forget {group} --yes")
        if state is not None and not state.elects_itself:
            header = CleanBrokerData(group, invoke_time=SystemClock().now_ms())
            found.ask(Command(RequestCode.CLEAN_BROKER_DATA, fields=to_fields(header)))
        failed = found.forget(group)
    if failed:
        told = "; ".join(f"{address}: {why}" for address, why in failed.items())
        raise CommandFailed(f"{group} is not forgotten everywhere, repeat it when these answer: {told}")
    print_done(f"the controllers forgot the broker group {group}", json_output, group=group, forgotten=True)


@cluster.command
def mqtt(
    *,
    move_to: Annotated[str, BROKER_GROUPS, Parameter(help="Broker group that is to have MQTT from now on.")] = "",
    yes: Annotated[bool, Parameter(name=["--yes"], negative=(), help="Do not ask.")] = False,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Show which broker group has MQTT, or move it while no proxy is connected.

    Sessions and retained messages stay in the log of the old group, where no MQTT client sees them any more.
    """
    with leading_controller(target) as found:
        if found.is_member:
            raise CommandFailed(f"{found.address} is a broker: give the address of a controller or name server")
        held = found.mqtt_group()
        if not move_to:
            print_done(f"MQTT is at {held}" if held else "no proxy has asked yet", json_output, group=held or None)
            return
        if move_to == held:
            raise CommandFailed(f"MQTT is at {held} already")
        address = found.master_of(held) if held else ""
        if held and not address:
            sys.stderr.write(f"warning: {held} has no master; its proxies are refused when they connect again\n")
        elif held:
            answer = found.ask_broker(address, Command(RequestCode.PROXY_LIST))
            connected = msgspec.json.decode(answer.body)["proxies"]
            if connected:
                count = len(connected)
                raise CommandFailed(f"{count} proxies are connected to {held}: stop all proxies and bridges first")
        if held and not yes:
            raise CommandFailed(
                f"sessions and retained messages stay at {held}: lightmq cluster mqtt --move-to {move_to} --yes"
            )
        fields = {"brokerName": move_to, "heldName": held}
        found.ask(Command(RequestCode.MOVE_MQTT, fields=fields))
    print_done(f"MQTT is at {move_to} now", json_output, group=move_to)


def _elected(found: LeadingController, group: str, state: GroupState, broker_id: int, *, json_output: bool) -> None:
    """Request an election and print its outcome."""
    header = ElectMasterHeader(
        found.cluster_of(group), group, broker_id, broker_id != NO_BROKER, SystemClock().now_ms()
    )
    command = Command(RequestCode.CONTROLLER_ELECT_MASTER, fields=to_fields(header))
    try:
        answer = found.ask_broker(state.master_address or "", command) if state.elects_itself else found.ask(command)
    except Refused as refused:
        if refused.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            now = f"broker {state.master_broker_id} at {state.master_address}"
            raise CommandFailed(
                f"{group!r} has a master that lives, {now}; to move it: lightmq cluster transfer"
            ) from refused
        raise
    elected = from_fields(answer.fields, MasterHeader)
    row = {"group": group, "master": elected.master_broker_id, "address": elected.master_address}
    row["epoch"] = elected.master_epoch
    if json_output:
        print_json([row])
    else:
        sys.stdout.write(f"broker {row['master']} at {row['address']} is master of {group} in epoch {row['epoch']}\n")


def replicas(state: GroupState) -> list[ReplicaState]:
    """All brokers of a group by id."""
    return sorted([*state.in_sync_replicas, *state.not_in_sync_replicas], key=lambda replica: replica.broker_id)


def summary(name: str, state: GroupState) -> dict[str, Any]:
    """One group as `status` shows it."""
    known = replicas(state)
    in_sync = sum(replica.alive for replica in state.in_sync_replicas)
    has_master = any(replica.alive and replica.broker_id == state.master_broker_id for replica in known)
    return {
        "group": name,
        "master": state.master_broker_id,
        "address": state.master_address,
        "epoch": state.master_epoch,
        "inSync": in_sync,
        "replicas": len(known),
        "state": "no master" if not has_master else "ok" if in_sync == len(known) else "degraded",
        "mode": ELECTED if state.elects_itself else CONTROLLED,
    }


def elected(state: GroupState) -> str:
    """A group that elects its master itself, in a sentence: the term, who can be reached, and what a master needs."""
    known = replicas(state)
    reached = sum(replica.alive for replica in known)
    majority = len(known) // 2 + 1
    missing = [f"broker {replica.broker_id} at {replica.broker_address}" for replica in known if not replica.alive]
    told = f"its brokers elect the master, term {state.master_epoch}; {reached} of {len(known)} can be reached"
    told += f", {majority} are needed"
    return told + (f"; missing: {', '.join(missing)}" if missing else "")


def lone_summary(name: str, address: str) -> dict[str, Any]:
    """A broker that is in no group, as `status` shows it: registered, hence alive."""
    return {
        "group": name, "master": None, "address": address, "epoch": None, "inSync": 1, "replicas": 1, "state": ALONE,
        "mode": None,
    }  # fmt: skip


def away_summary(name: str) -> dict[str, Any]:
    """A group of which no broker is registered, as `status` shows it: how many brokers it has is not known here."""
    return {
        "group": name, "master": None, "address": None, "epoch": None, "inSync": 0, "replicas": 0,
        "state": "no master", "mode": None,
    }  # fmt: skip


def member_rows(found: LeadingController, name: str, state: GroupState) -> list[dict[str, Any]]:
    """The brokers of one group as `members` shows them; positions from the brokers themselves, if they answer."""
    known = replicas(state)
    caches = {replica.broker_id: found.epochs(replica.broker_address) for replica in known if replica.alive}
    ends = {broker_id: cache.max_offset for broker_id, cache in caches.items() if isinstance(cache, EpochCache)}
    master_end = ends.get(state.master_broker_id or NO_BROKER)
    rows = []
    for replica in known:
        end = ends.get(replica.broker_id)
        rows.append(
            {
                "group": name,
                "id": replica.broker_id,
                "address": replica.broker_address,
                "role": "master" if replica.broker_id == state.master_broker_id else "replica",
                "alive": replica.alive,
                "inSync": replica in state.in_sync_replicas,
                "logEnd": end,
                "behindBytes": max(0, master_end - end) if master_end is not None and end is not None else None,
            }
        )
    return rows


def lone_row(found: LeadingController, name: str, address: str) -> dict[str, Any]:
    """A broker that is in no group, as `members` shows it: it has no id there and follows no other."""
    cache = found.epochs(address)
    end = cache.max_offset if isinstance(cache, EpochCache) else None
    return {
        "group": name, "id": None, "address": address, "role": ALONE, "alive": True, "inSync": True, "logEnd": end,
        "behindBytes": None,
    }  # fmt: skip


def epoch_rows(replica: ReplicaState, cache: EpochCache) -> list[dict[str, Any]]:
    """The epochs of one broker."""
    return [
        {
            "id": replica.broker_id,
            "address": replica.broker_address,
            "epoch": one.epoch,
            "start": one.start_offset,
            "end": one.end_offset,
        }
        for one in cache.epoch_list
    ]


def peers(found: LeadingController) -> list[str]:
    """The controllers as `id-address`."""
    return [each for each in found.metadata.peers.split(";") if each]


def _master_cells(row: dict[str, Any]) -> tuple[str, str]:
    return _cell(row["master"]), _cell(row["address"])


def _share(row: dict[str, Any]) -> str:
    return f"{row['inSync']} of {row['replicas']}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
