"""Request codes of the key-value table (100, 101, 102, 219); a change is answered when it is on disk.

Loop rule: handlers run on the loop's thread; the answer to a change comes later.
"""

from __future__ import annotations

from controller.changes import DeleteKeyValue, PutKeyValue
from controller.fields import text
from controller.name_server import NameServer
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.protocol.route_body import KeyValueTable, encode_body
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer


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

    def put(self, peer: Peer, command: Command) -> None:
        change = PutKeyValue(text(command, "namespace"), text(command, "key"), command.fields.get("value", ""))
        self._name_server.apply(change)
        later(peer, command, when_durable(self._name_server, command.reply()))

    def get(self, _peer: Peer, command: Command) -> Command:
        namespace, key = text(command, "namespace"), text(command, "key")
        value = self._name_server.metadata.key_values.get(namespace, {}).get(key)
        if value is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return command.reply(fields={"value": value})

    def delete(self, peer: Peer, command: Command) -> None:
        self._name_server.apply(DeleteKeyValue(text(command, "namespace"), text(command, "key")))
        later(peer, command, when_durable(self._name_server, command.reply()))

    def list(self, _peer: Peer, command: Command) -> Command:
        namespace = text(command, "namespace")
        entries = self._name_server.metadata.key_values.get(namespace)
        if not entries:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return command.reply(body=encode_body(KeyValueTable(entries)))


async def when_durable(name_server: NameServer, reply: Command) -> Command:
    """The reply, once the state is on disk."""
    await name_server.persister.durable()
    return reply
