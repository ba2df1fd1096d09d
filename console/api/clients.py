"""`/clients` and `/sessions`: connected MQTT clients, kept sessions; disconnecting one, ending the other."""

from __future__ import annotations

from typing import Any

import msgspec

from console.api.operations import PAGE, SEARCH, TEXT, ApiCall, Operation, Parameter
from console.api.pages import Page, page_over
from console.api.problems import ApiProblem, not_found
from console.cluster import json_object
from remoting.protocol.bodies.client_order import BY_ID, SORTED_BY
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode

TAG = "Clients"
SORT = Parameter(
    "sort", "The order; with `-` the largest first. Clients with the same value are in the order of their ids.",
    default=BY_ID, choices=tuple(f"{sign}{name}" for name in SORTED_BY for sign in ("", "-")),
)  # fmt: skip
CLIENT_ID = Parameter("id", "The client id.", TEXT, required=True, characters_max=65_535)


class ClientRow(msgspec.Struct):
    """A connected MQTT client."""

    id: str
    user: str = ""
    address: str = ""
    version: str = ""
    protocol: str = ""
    since_ms: int = 0
    keep_alive_s: int = 0
    in_flight: int = 0
    backlog: int = 0
    subscriptions: int = 0
    messages_in: int = 0
    """PUBLISHes received on this connection."""
    messages_out: int = 0
    """PUBLISHes sent on it."""
    bytes_in: int = 0
    bytes_out: int = 0
    messages_in_per_s: float = 0.0
    """The rates are those of the last 5 to 10 seconds."""
    messages_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    proxy: str = ""


class SessionRow(msgspec.Struct):
    """An MQTT session, connected or kept."""

    id: str
    user: str = ""
    connected: bool = False
    expiry_s: int = 0
    ends_ms: int | None = None
    subscriptions: int = 0
    backlog: int = 0
    shared_backlog: int = 0
    """What waits for the members of its shared subscriptions, whoever gets it."""


class DisconnectForm(msgspec.Struct, forbid_unknown_fields=True):
    """How to disconnect a client."""

    end_session: bool = False
    """End the session too: its subscriptions and what waits in it are dropped."""


class EndedClient(msgspec.Struct):
    """What became of a client and its session."""

    id: str
    was_connected: bool = False
    session_ended: bool = False


async def list_clients(call: ApiCall) -> Any:
    """Return a page of connected clients."""
    fields = {
        "contains": call.text("search"), "user": call.text("user"), "address": call.text("address"),
        "sort": call.text("sort"),
    }  # fmt: skip
    page = await page_over(call, Code.MQTT_CLIENTS, "clients", {k: v for k, v in fields.items() if v})
    page["items"] = [_renamed(item) for item in page["items"]]
    return page


async def get_client(call: ApiCall) -> Any:
    """Return one client with its session."""
    name = call.text("id")
    asked = await call.cluster.ask_all(call.viewer, Code.MQTT_CLIENTS, {"client": name, "limit": "1"})
    rows = [{**row, "broker": broker} for broker, body in asked.objects() for row in body.get("clients", ())]
    session = await _session(call, name)
    if not rows and session is None:
        raise not_found(f"there is no client {name!r}, and no session of it")
    client = _renamed(rows[0]) if rows else {"id": name}
    return {**client, "connected": bool(rows), "session": session}


async def disconnect_client(call: ApiCall) -> Any:
    """Disconnect a client, with or without the end of its session."""
    fields = {"client": call.text("id"), "end": str(call.body.end_session).lower()}
    done = await _at_its_broker(call, Code.MQTT_KICK, fields)
    return {
        "id": call.text("id"), "was_connected": done.get("was_connected", True),
        "session_ended": bool(done.get("ended", False)),
    }  # fmt: skip


async def list_sessions(call: ApiCall) -> Any:
    """Return a page of sessions."""
    fields = {"contains": call.text("search"), "user": call.text("user"), "state": call.text("state")}
    asked = {name: text for name, text in fields.items() if text}
    page = await page_over(call, Code.SESSION_LIST, "sessions", asked, key="client")
    page["items"] = [_renamed(item) for item in page["items"]]
    return page


async def end_session(call: ApiCall) -> Any:
    """End a session, connected or not."""
    done = await _at_its_broker(call, Code.SESSION_END, {"client": call.text("id")})
    return {"id": call.text("id"), "was_connected": bool(done.get("was_connected")), "session_ended": True}


async def _session(call: ApiCall, name: str) -> dict[str, Any] | None:
    """Return the session of a client id with its subscriptions; None when no broker has one."""
    try:
        asked = await call.cluster.ask_all(call.viewer, Code.SESSION_LIST, {"client": name})
    except Refused as refused:
        if refused.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.NO_PERMISSION):
            return None
        raise
    for broker, body in asked.objects():
        if isinstance(body.get("session"), dict):
            return {**_renamed(body["session"]), "broker": broker}
    return None


async def _at_its_broker(call: ApiCall, code: int, fields: dict[str, str]) -> dict[str, Any]:
    """Ask each broker until one has the client. Raises the last refusal."""
    failure: LightMQError | None = None
    for broker in await call.cluster.masters():
        try:
            return json_object(await call.cluster.ask(broker, call.viewer, code, fields))
        except Refused as refused:
            if refused.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            failure = refused
    if failure is None:
        raise ApiProblem(503, "unavailable", "the controllers know no broker group")
    raise failure


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a broker with the name of the API for the client id."""
    return {"id": row.get("client", ""), **{name: value for name, value in row.items() if name != "client"}}


OPERATIONS = (
    Operation(
        name="list_clients", method="GET", path="/clients", summary="List connected MQTT clients", tag=TAG,
        call=list_clients, answer=Page[ClientRow],
        query=(
            SEARCH, Parameter("user", "Only clients of this user."),
            Parameter("address", "Only clients whose address begins with this."), SORT, *PAGE,
        ),
    ),
    Operation(
        name="get_client", method="GET", path="/clients/{id}", summary="Show one client and its session", tag=TAG,
        call=get_client, in_path=(CLIENT_ID,), answer=ClientRow,
    ),
    Operation(
        name="disconnect_client", method="POST", path="/clients/{id}/disconnect", summary="Disconnect a client",
        tag=TAG, call=disconnect_client, in_path=(CLIENT_ID,), body=DisconnectForm, answer=EndedClient,
    ),
    Operation(
        name="list_sessions", method="GET", path="/sessions", summary="List MQTT sessions", tag=TAG,
        call=list_sessions, answer=Page[SessionRow],
        query=(
            SEARCH, Parameter("user", "Only sessions of this user."),
            Parameter("state", "Only sessions whose client is connected, or away.", choices=("connected", "away")),
            *PAGE,
        ),
    ),
    Operation(
        name="end_session", method="DELETE", path="/sessions/{id}", summary="End a session", tag=TAG,
        call=end_session, in_path=(CLIENT_ID,), answer=EndedClient,
    ),
)  # fmt: skip
