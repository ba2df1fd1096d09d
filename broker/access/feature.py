"""Users and rules by RocketMQ's requests, in force for RocketMQ's clients, Spark and, by proxies, MQTT.

A broker alone and a master keep them in their log (`created`), what administrators ask is in `requests`. Proxies get
the table without secrets and have passwords of their clients checked here.

Invariant: no secret leaves this broker. Loop thread only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from broker.access.agreement import Agreement
from broker.access.created import CreatedUsers
from broker.access.requests import UserRequests
from broker.requests import Feature, RequestTools
from remoting.access.users import CreatedUsersReply, UserTable
from remoting.client.controllers import Controllers
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from runtime.metrics import Registry

_encode = msgspec.json.encode


class AccessFeature(Feature):
    """The users and rules of a broker."""

    def __init__(self, tools: RequestTools, registry: Registry) -> None:
        self._tools = tools
        self._created = CreatedUsers(tools.store, self._use)
        self._requests = UserRequests(
            tools.config, tools.authorizer, self._created, tools.answers.reply_at, registry, tools.log
        )
        self._version = 0
        self._listeners: list[Callable[[UserTable], None]] = []
        registry.gauge(
            "rocketmq_access_users", "Users made by requests", function=lambda: len(self._created.table.users)
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            **self._requests.handlers(),
            Code.CREATED_USERS: self._created_users,
            Code.CHECK_USER: self._check_user,
        }

    def agree_with(self, controllers: Controllers) -> None:
        """From now on the users are those of the cluster: the controllers are other processes and hold them."""
        if self._requests.policy is not None:
            tools = self._tools
            agreement = Agreement(
                self._created, controllers, tools.config.broker_name, tools.log, controllers.find_leader
            )
            self._requests.agreement = agreement
            agreement.start()

    def on_change(self, listener: Callable[[UserTable], None]) -> None:
        """Call `listener` with the table at the start and after each change, where there is an access list."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Put in force what the log has."""
        self._use(self._created.table)

    def stop(self) -> None:
        """Follow the controllers no longer."""
        if self._requests.agreement is not None:
            self._requests.agreement.stop()

    def status(self) -> dict[str, int]:
        """How many users were made by requests."""
        return {"access_users": len(self._created.table.users)}

    # -- proxies -------------------------------------------------------------------------------------------------------

    def _created_users(self, _peer: Peer, command: Command) -> Command:
        """9071: the table without secrets, if it is another than the version in the body."""
        self._requests.require_policy()
        version = f"{self._tools.store.epoch}.{self._tools.identity.started_ms}.{self._version}"
        table = None if command.body == version.encode() else self._created.table.without_secrets()
        return command.reply(body=_encode(CreatedUsersReply(version=version, table=table)))

    def _check_user(self, _peer: Peer, command: Command) -> Command:
        """9072: whether a name and a password, JSON in the body, are those of an enabled user."""
        policy = self._requests.require_policy()
        try:
            name, password = msgspec.json.decode(command.body, type=tuple[str, str])
        except msgspec.MsgspecError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body is not a name and a password") from error
        secret = policy.secrets.get(name)
        same = hmac.compare_digest((secret or "").encode(), password.encode())
        return command.reply(body=b"true" if same and secret is not None else b"false")

    def _use(self, table: UserTable) -> None:
        policy = self._requests.policy
        self._version += 1
        if policy is not None:
            policy.use(table)
            for listener in self._listeners:
                listener(table)
