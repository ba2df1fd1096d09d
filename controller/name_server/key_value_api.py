"""Request codes of the key-value table (100, 101, 102, 219); a change is answered, and shown, when it is on disk.

Invariant: what one answer shows, no later one takes back, a restart in between or not; so the table is one register.
Loop rule: handlers run on the loop's thread; the answer to a change comes later.

Request fields as values, with refusals that name the field. Pure.
"""

from __future__ import annotations

from controller.name_server.changes import DeleteKeyValue, PutKeyValue
from controller.name_server.name_server import NameServer
from remoting.protocol.bodies.route_body import KeyValueTable, encode_body
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

NUMBER_MAX = 2**63 - 1


def text(command: Command, name: str) -> str:
    """A field that must be there and say something."""
    value = command.fields.get(name)
    if not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request {command.code} needs the field {name!r}")
    return value


def number(command: Command, name: str, default: int | None = None) -> int:
    """A whole number; required when there is no default."""
    value = command.fields.get(name)
    if not value:
        if default is not None:
            return default
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request {command.code} needs the field {name!r}")
    # Longer texts are no number anybody means, and int() of them is slow.
    digits = value.removeprefix("-")
    if len(digits) > len(str(NUMBER_MAX)) or not (digits.isascii() and digits.isdigit()):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"field {name!r} is no number: {value[:64]!r}")
    return int(value)


def truth(command: Command, name: str) -> bool:
    """A switch as Java ("true") or C++ ("1") writes it; absent means off."""
    return command.fields.get(name, "").lower() in ("true", "1")


def key_value_handlers(name_server: NameServer) -> dict[int, Handler]:
    """The table's entries for codes 100, 101, 102 and 219."""
    api = _KeyValueApi(name_server)
    return {
        RequestCode.PUT_KV_CONFIG: api.put,
        RequestCode.GET_KV_CONFIG: api.get,
        RequestCode.DELETE_KV_CONFIG: api.delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: api.list,
    }


class _KeyValueApi:
    def __init__(self, name_server: NameServer) -> None:
        self._name_server = name_server
        self._changed_at = 0
        """The state's revision after the last change of the table."""

    def put(self, peer: Peer, command: Command) -> None:
        change = PutKeyValue(text(command, "namespace"), text(command, "key"), command.fields.get("value", ""))
        self._change(peer, command, change)

    def get(self, peer: Peer, command: Command) -> Command | None:
        namespace, key = text(command, "namespace"), text(command, "key")
        value = self._name_server.metadata.key_values.get(namespace, {}).get(key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return self._shown(peer, command, command.reply(ResponseCode.QUERY_NOT_FOUND, remark))
        return self._shown(peer, command, command.reply(fields={"value": value}))

    def delete(self, peer: Peer, command: Command) -> None:
        self._change(peer, command, DeleteKeyValue(text(command, "namespace"), text(command, "key")))

    def list(self, peer: Peer, command: Command) -> Command | None:
        namespace = text(command, "namespace")
        entries = self._name_server.metadata.key_values.get(namespace)
        if not entries:
            remark = f"No config item, Namespace: {namespace}"
            return self._shown(peer, command, command.reply(ResponseCode.QUERY_NOT_FOUND, remark))
        return self._shown(peer, command, command.reply(body=encode_body(KeyValueTable(entries))))

    def _change(self, peer: Peer, command: Command, change: PutKeyValue | DeleteKeyValue) -> None:
        state = self._name_server.state
        before = state.revision
        self._name_server.apply(change)
        if state.revision != before:
            self._changed_at = state.revision
        later(peer, command, when_durable(self._name_server, command.reply()))

    def _shown(self, peer: Peer, command: Command, reply: Command) -> Command | None:
        """The answer to a read: at once, or when what it tells is on disk."""
        if self._name_server.persister.has(self._changed_at):
            return reply
        later(peer, command, when_durable(self._name_server, reply))
        return None


async def when_durable(name_server: NameServer, reply: Command) -> Command:
    """The reply, once the state is on disk."""
    await name_server.persister.durable()
    return reply
