"""Options that change at run time: UPDATE_BROKER_CONFIG (25), and GET_BROKER_CONFIG (26), which shows what is in force.

```
OPTION  key = the option's key as below `broker`, or logs.level    value = its value as text
```
A change is a record of the log: it outlasts a restart and, in a group, a change of master. At the start the changes are
applied on top of the file, the environment and the flags; an empty value takes a change back. An option that is not
declared `live` is refused with 16, an unknown one or a wrong value with 29; of a request with several, all or none
change. Secrets are left out of the answer of 26.

`OptionsInForce.value` is a copy of the configuration of this start. Features read it at each use, or take values over
in `Feature.configure`, which is called after each change; the store gets new limits of retention. The level of the logs
is that of the process. Invariant: what 26 shows is in force. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import Feature, RequestTools
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import ADMIN
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime import logs
from runtime.config import ConfigError, assign, flatten, keys_of, live_keys, parsed, with_values

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics
    from remoting.transport.contracts import Handler, Peer

LOG_LEVEL = "logs.level"
STORE = "store."
SECRET_KEYS = ("access_keys",)
CHANGE_BYTES_MAX = 65_536
"""Largest body of a change."""


class OptionsInForce:
    """The configuration of this start with the changes that were made at run time."""

    def __init__(self, configured: BrokerConfig, store: LogStore, log: Any) -> None:
        self._configured = configured
        self._log = log
        self._level = logs.in_use()[0]
        """The level of the logs as configured."""
        kept = store.state.items(state_kinds.OPTION)
        self.changes = {bytes(key).decode(): bytes(value).decode() for key, (value, _position) in list(kept)}
        """Key -> value as text."""
        self.value = self._applied()
        store.retention.use(self.value.store)

    def _applied(self) -> BrokerConfig:
        """A copy of the configuration with the stored changes; those that do not fit this version are left out."""
        kind = type(self._configured)
        values: dict[str, Any] = {}
        for key, text in self.changes.items():
            try:
                values |= {} if key == LOG_LEVEL else {key: checked(kind, key, text)}
            except (ConfigError, Refused) as error:
                self._log.warning("option_not_applied", key=key, value=text, reason=str(error))
                continue
            self._log.info("option_changed", key=key, value=text, reason="changed at run time")
        if LOG_LEVEL in self.changes:
            logs.set_level(self.changes[LOG_LEVEL])
        return with_values(self._configured, values)

    def configured(self, key: str) -> Any:
        """The value of an option without the changes."""
        return self._level if key == LOG_LEVEL else dict(flatten(self._configured))[key]

    def put(self, key: str, text: str) -> None:
        """Change an option in force; with empty text it is again as it was configured."""
        if text:
            self.changes[key] = text
        else:
            self.changes.pop(key, None)
        if key == LOG_LEVEL:
            logs.set_level(text or self._level)
        else:
            value = parsed(type(self.value), key, text) if text else self.configured(key)
            assign(self.value, key, value)
        self._log.info("option_changed", key=key, value=text or str(self.configured(key)), reason="requested")


class OptionFeature(Feature):
    """Changes and shows options."""

    def __init__(
        self, tools: RequestTools, options: OptionsInForce, topics: Topics, configure: Callable[[], None]
    ) -> None:
        """`configure` makes every part of the broker take over the options in force."""
        self._tools = tools
        self._options = options
        self._topics = topics
        self._configure = configure

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.UPDATE_BROKER_CONFIG: self.update, RequestCode.GET_BROKER_CONFIG: self.get}

    def update(self, peer: Peer, command: Command) -> None:
        """25: change options; the body has a line `key=value` for each. Answered when the changes are confirmed."""
        tools = self._tools
        tools.authorizer.authorize(peer, command, ADMIN, "config")
        wanted = properties(command.body)
        if not wanted:
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no line of the form key=value")
        values: dict[str, Any] = {}
        for key, text in wanted.items():
            value = checked(type(tools.config), key, text)
            values |= {} if key == LOG_LEVEL else {key: value if text else self._options.configured(key)}
        try:
            in_force = with_values(tools.config, values)
        except ConfigError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        changes = [StateChange(state_kinds.OPTION, key.encode(), text.encode() or None) for key, text in wanted.items()]
        position = tools.store.append_state(changes)
        for key, text in wanted.items():
            self._options.put(key, text)
        if any(key.startswith(STORE) for key in wanted):
            tools.store.retention.use(in_force.store)
        self._configure()
        tools.answers.reply_at(position, peer, command.reply(fields={"version": self._version()}))

    def get(self, peer: Peer, command: Command) -> Command:
        """26: every option in force as properties text."""
        self._tools.authorizer.authorize(peer, command, ADMIN, "config")
        lines = [f"{key}={value}" for key, value in flatten(self._tools.config) if key not in SECRET_KEYS]
        lines.append(f"{LOG_LEVEL}={logs.in_use()[0]}")
        return command.reply(body="\n".join(lines).encode(), fields={"version": self._version()})

    def _version(self) -> str:
        tools = self._tools
        version = {
            "stateVersion": tools.store.epoch,
            "timestamp": tools.identity.started_ms,
            "counter": self._topics.version,
        }
        return msgspec.json.encode(version).decode()


def checked(table: type, key: str, text: str) -> Any:
    """The value of a change.

    Raises:
        Refused: NO_PERMISSION for an option that is read at the start; INVALID_PARAMETER for an unknown one and for a
            value that it cannot have.
    """
    if key == LOG_LEVEL:
        if text and text not in logs.LEVELS:
            remark = f"{key} must be one of {', '.join(logs.LEVELS)}, not {text!r}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        return text
    changing, declared = live_keys(table), {name for name, _field, _kind in keys_of(table)}
    if key in declared and key not in changing:
        remark = (
            f"{key} is read at the start: change the configuration file, the environment or the flags and restart. "
            f"At run time these can change: {', '.join(sorted((*changing, LOG_LEVEL)))}"
        )
        raise Refused(ResponseCode.NO_PERMISSION, remark)
    try:
        return parsed(table, key, text) if text or key not in declared else None
    except ConfigError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error


def properties(body: bytes | memoryview) -> Mapping[str, str]:
    """The lines `key=value` of a body; Refused when it is too large or has other lines."""
    if len(body) > CHANGE_BYTES_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"a change of {len(body)} bytes, the limit is {CHANGE_BYTES_MAX}")
    try:
        lines = bytes(body).decode().splitlines()
    except UnicodeDecodeError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body is not UTF-8: {error}") from error
    found = {}
    for line in map(str.strip, lines):
        if line and not line.startswith(("#", "!")):
            key, equals, value = line.partition("=")
            if not equals:
                raise Refused(ResponseCode.INVALID_PARAMETER, f"{line[:80]!r} is not of the form key=value")
            found[key.strip()] = value.strip()
    return found
