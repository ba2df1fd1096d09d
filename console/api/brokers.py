"""`/brokers`, `/controllers`, `/cluster/history`, `/proxies`: who is master, who is in sync, and since when."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from console.api.operations import INTEGER, PAGE, TEXT, ApiCall, Operation, Parameter
from console.api.pages import Page, slice_page
from console.api.problems import ApiProblem, bad, not_found
from console.cluster import members
from console.roles import broker_rows, group_states, known_brokers
from remoting.protocol.bodies.controller_body import (
    ControllerMetadata,
    ElectMasterHeader,
    EpochCache,
    MasterHeader,
    decode_body,
    from_fields,
    to_fields,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code

TAG = "Cluster"
NAME = Parameter("name", "The name of the broker group.", TEXT, required=True)


class ReplicaRow(msgspec.Struct):
    """One broker of a group."""

    id: int | None
    address: str
    role: str
    alive: bool
    in_sync: bool
    log_end: int | None = None
    behind_bytes: int | None = None
    epochs: list[dict[str, int]] = []


class BrokerGroup(msgspec.Struct):
    """One broker group; `state` is ok, alone, degraded or no master."""

    name: str
    cluster: str
    state: str
    master: int | None
    address: str
    epoch: int | None
    sync_state_set: list[int]
    sync_state_set_epoch: int | None
    mode: str | None
    """Who chooses the master: `controller`, or `dledger` where the brokers elect it; null for a broker alone."""
    needed: int | None
    """How many brokers of an electing group a master needs, itself among them; null for any other."""
    replicas: list[ReplicaRow]


class ControllerRow(msgspec.Struct):
    """A controller, and whether it leads the others."""

    id: str
    address: str
    leads: bool


class ProxyRow(msgspec.Struct):
    """A connected MQTT proxy."""

    name: str
    address: str = ""
    version: str = ""
    since_ms: int = 0


class TransferForm(msgspec.Struct, forbid_unknown_fields=True):
    """Which broker becomes the master."""

    to: int


class MasterNow(msgspec.Struct):
    """The master after a transfer, with its epoch."""

    name: str
    master: int
    address: str
    epoch: int


class SeenRoleChange(msgspec.Struct):
    """A change of roles that this console has seen."""

    time_ms: int
    name: str
    master: int | None
    epoch: int | None
    sync_state_set: list[int]
    state: str


async def list_brokers(call: ApiCall) -> Any:
    """Return a page of broker groups."""
    return slice_page(call, await broker_rows(call.cluster, call.viewer))


async def get_broker(call: ApiCall) -> Any:
    """Return one broker group, with the epochs and positions of its brokers."""
    name = call.text("name")
    row = next((one for one in await broker_rows(call.cluster, call.viewer) if one["name"] == name), None)
    if row is None:
        raise not_found(f"there is no broker group {name!r}")
    living = [replica for replica in row["replicas"] if replica["alive"] and replica["address"]]
    caches = await asyncio.gather(*(_epochs(call, replica["address"]) for replica in living))
    for replica, cache in zip(living, caches, strict=True):
        if cache is not None:
            replica["log_end"] = cache.max_offset
            replica["epochs"] = [
                {"epoch": one.epoch, "start": one.start_offset, "end": one.end_offset} for one in cache.epoch_list
            ]
    end = next((replica["log_end"] for replica in living if replica["role"] == "master"), None)
    for replica in living:
        if end is not None and replica["log_end"] is not None:
            replica["behind_bytes"] = max(0, end - replica["log_end"])
    return row


async def _epochs(call: ApiCall, address: str) -> EpochCache | None:
    try:
        return decode_body(
            (await call.cluster.ask_at(address, call.viewer, Code.GET_BROKER_EPOCH_CACHE)).body, EpochCache
        )
    except LightMQError:
        return None


async def transfer_master(call: ApiCall) -> Any:
    """Make another replica the master; it must be alive and in sync."""
    name, wanted = call.text("name"), call.body.to
    info = await known_brokers(call.cluster, call.viewer)
    state = (await group_states(call.cluster, call.viewer, info)).get(name)
    if state is None:
        raise not_found(f"no master is elected for a group {name!r}")
    replica = next((one for one in state.in_sync_replicas if one.broker_id == wanted), None)
    if replica is None:
        raise bad(f"broker {wanted} is not in sync in {name}: as master it would lose messages")
    if wanted == state.master_broker_id:
        raise ApiProblem(409, "refused", f"broker {wanted} is the master of {name} already")
    if not replica.alive:
        raise ApiProblem(409, "refused", f"broker {wanted} is not running, or its heartbeats do not arrive")
    data = info.broker_addr_table.get(name)
    now_ms = (await call.figures.fresh()).time_ms
    fields = to_fields(ElectMasterHeader(data.cluster if data else "DefaultCluster", name, wanted, True, now_ms))
    if state.elects_itself and state.master_address:
        answer = await call.cluster.ask_at(state.master_address, call.viewer, Code.CONTROLLER_ELECT_MASTER, fields)
    else:
        answer = await call.cluster.ask_controller(call.viewer, Code.CONTROLLER_ELECT_MASTER, fields)
    elected = from_fields(answer.fields, MasterHeader)
    return {
        "name": name, "master": elected.master_broker_id, "address": elected.master_address,
        "epoch": elected.master_epoch,
    }  # fmt: skip


async def list_role_changes(call: ApiCall) -> Any:
    """Return the changes of roles that were seen, the newest first."""
    since_ms, name = call.number("since_ms"), call.text("name")
    seen = [
        change for change in reversed(call.figures.roles.changes)
        if change["time_ms"] >= since_ms and name in ("", change["name"])
    ]  # fmt: skip
    return slice_page(call, seen)


async def list_controllers(call: ApiCall) -> Any:
    """Return a page of controllers."""
    answer = await call.cluster.ask_controller(call.viewer, Code.CONTROLLER_GET_METADATA_INFO)
    leader = from_fields(answer.fields, ControllerMetadata).controller_leader_address or ""
    rows = [{"id": name, "address": address, "leads": address == leader} for name, address in members(answer).items()]
    return slice_page(call, rows)


async def list_proxies(call: ApiCall) -> Any:
    """Return a page of connected MQTT proxies."""
    asked = await call.cluster.ask_all(call.viewer, Code.PROXY_LIST)
    rows = [{**row, "broker": broker} for broker, body in asked.objects() for row in body.get("proxies", ())]
    return slice_page(call, rows, asked.missing)


OPERATIONS = (
    Operation(
        name="list_brokers", method="GET", path="/brokers", summary="List broker groups and their roles", tag=TAG,
        call=list_brokers, query=PAGE, answer=Page[BrokerGroup],
    ),
    Operation(
        name="get_broker", method="GET", path="/brokers/{name}", tag=TAG, call=get_broker, in_path=(NAME,),
        summary="Show a broker group with the epochs and positions of its brokers", answer=BrokerGroup,
    ),
    Operation(
        name="transfer_master", method="POST", path="/brokers/{name}/transfer", tag=TAG, call=transfer_master,
        summary="Make another replica the master", in_path=(NAME,), body=TransferForm, answer=MasterNow,
    ),
    Operation(
        name="list_role_changes", method="GET", path="/cluster/history", tag=TAG, call=list_role_changes,
        summary="List the changes of masters, SyncStateSets and epochs that were seen", answer=Page[SeenRoleChange],
        query=(
            Parameter("since_ms", "Only changes from this time on, in ms since 1970.", INTEGER, default=0),
            Parameter("name", "Only this broker group.", default=""), *PAGE,
        ),
    ),
    Operation(
        name="list_controllers", method="GET", path="/controllers", summary="List controllers", tag=TAG,
        call=list_controllers, query=PAGE, answer=Page[ControllerRow],
    ),
    Operation(
        name="list_proxies", method="GET", path="/proxies", summary="List connected MQTT proxies", tag=TAG,
        call=list_proxies, query=PAGE, answer=Page[ProxyRow],
    ),
)  # fmt: skip
