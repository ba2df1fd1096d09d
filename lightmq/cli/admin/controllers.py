"""``lightmq cluster controllers``: show the controllers, and add, remove or replace one while they run.

A change is asked of the leader, again when another one leads meanwhile; what an earlier attempt has done already is
seen in the list. Invariant: a command succeeds only when the change is complete: an added controller votes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from lightmq.cli.connections import ServerTarget, leading_controller
from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import CommandFailed, columns, print_done, print_json
from remoting import clock
from remoting.protocol.bodies.controller_body import ControllerList, ControllerState, decode_body
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

PAUSE_SECONDS = 0.1
TRY_AGAIN = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.CONTROLLER_NOT_LEADER})

controllers = App(
    name="controllers",
    help="Show the controllers, and add, remove or replace one while they run.",
    help_format="plaintext",
    help_epilogue=epilogue("cluster"),
)
HERE = ServerTarget()

Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print JSON, one object per line.")]
NodeId = Annotated[str, Parameter(help="Its controller.node_id, see: lightmq cluster controllers list.")]
Node = Annotated[str, Parameter(help="As in controller.peers: n4@host:port@raftport.")]
Wait = Annotated[float, Parameter(help="How long to wait until the change is complete, in seconds.")]


@controllers.command(name="list")
def show(*, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Show every controller: its address, whether it leads, votes or still learns, and how far it is behind."""
    found = _list(target)
    rows = [msgspec.to_builtins(each) | {"group": found.group} for each in found.controllers]
    if json_output:
        print_json(rows)
        return
    cells = [
        (
            each.node_id,
            each.address,
            str(each.raft_port),
            each.role,
            "yes" if each.connected else "no",
            str(each.behind),
        )
        for each in found.controllers
    ]
    sys.stdout.write(columns(("ID", "ADDRESS", "RAFT PORT", "ROLE", "CONNECTED", "BEHIND"), cells))


@controllers.command
def add(node: Node, *, wait: Wait = 60.0, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Add a controller. It takes over what the others know, and then votes.

    Start it with an empty data directory, its own controller.node_id, and controller.peers that name the others and it.
    """
    node_id = node.partition("@")[0]
    _add(node, clock.monotonic_s() + wait, target)
    print_done(f"{node_id} is a controller now: it has everything and votes", json_output, added=node_id)


@controllers.command
def remove(node_id: NodeId, *, wait: Wait = 60.0, json_output: Json = False, target: ServerTarget = HERE) -> None:
    """Remove a controller; one that leads hands over first. Stop it afterwards: its directory cannot be used again."""
    _remove(node_id, clock.monotonic_s() + wait, target)
    print_done(f"{node_id} is no controller any more: stop it if it still runs", json_output, removed=node_id)


@controllers.command
def replace(
    node_id: NodeId,
    by: Annotated[
        str, Parameter(help="The one that takes its place, as in controller.peers; without it, itself.")
    ] = "",
    *,
    wait: Wait = 60.0,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Put another controller in the place of one, or the same one with an empty directory after its disk was lost."""
    until, new_id = clock.monotonic_s() + wait, by.partition("@")[0] or node_id
    known: dict[str, ControllerState] = {}

    def find() -> str:
        known.update({each.node_id: each for each in _list(target).controllers})
        return ""

    _until(find, until, "nothing is changed yet")
    if not by and node_id not in known:
        raise CommandFailed(
            f"{node_id} is no controller: add it with lightmq cluster controllers add {node_id}@HOST:PORT@RAFTPORT"
        )
    if new_id == node_id:
        _remove(node_id, until, target)
        _add(by or _text(known[node_id]), until, target)
    else:
        _add(by, until, target)
        _remove(node_id, until, target)
    done = f"{new_id} has taken the place of {node_id}: it has everything and votes"
    print_done(done, json_output, removed=node_id, added=new_id)


def _add(node: str, until: float, target: ServerTarget) -> None:
    node_id = node.partition("@")[0]

    def act() -> str:
        role = {each.node_id: each.role for each in _list(target).controllers}.get(node_id)
        if role is None:
            _change({"add": node}, target)
        if role != "learner":
            return "" if role else "it was not added yet"
        return f"it is added, but has not taken over everything: start it, with {node_id} as controller.node_id"

    _until(act, until, f"{node_id} does not vote yet")


def _remove(node_id: str, until: float, target: ServerTarget) -> None:
    def act() -> str:
        if node_id in [each.node_id for each in _list(target).controllers]:
            _change({"remove": node_id}, target)
        return ""

    _until(act, until, f"{node_id} is not removed yet")


def _until(act: Callable[[], str], until: float, what: str) -> None:
    """Act until nothing is left to do; what is refused for good is raised at once."""
    while True:
        try:
            left = act()
        except Refused as refused:
            if refused.code not in TRY_AGAIN:
                raise
            left = str(refused)
        except CommandFailed as failed:  # no leader at this moment
            left = str(failed)
        if not left:
            return
        if clock.monotonic_s() > until:
            raise CommandFailed(f"{what}: {left}; run the same command again to go on")
        time.sleep(PAUSE_SECONDS)


def _list(target: ServerTarget) -> ControllerList:
    with leading_controller(target) as found:
        return decode_body(found.ask(Command(RequestCode.LIST_CONTROLLERS)).body, ControllerList)


def _change(change: dict[str, str], target: ServerTarget) -> None:
    with leading_controller(target) as found:
        try:
            found.ask(Command(RequestCode.CHANGE_CONTROLLERS, fields=change))
        except Refused:
            raise
        except LightMQError as error:
            raise CommandFailed(f"its outcome is not known ({error})") from error


def _text(each: ControllerState) -> str:
    return f"{each.node_id}@{each.address}@{each.raft_port}"
