"""Users and rules of the cluster, as the masters of broker groups fetch and change them (9074, 9075).

An administrator creates users at a broker; the broker checks what is asked, and proposes the change here. The leader
answers both, 9075 when a majority has the change on disk, so that no controller can come to lead without it.
The first user is refused while a member has not said that it understands such a change: an older release would leave it
out, and have no users when it leads after its upgrade.
Invariant: nothing is taken by a controller that has no access list of its own: it would not apply the rules to the
requests that it answers. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from controller.consensus.engine import COMMAND_BYTES_MAX
from controller.control_plane.masters import GroupMasters
from controller.replicas.group import ChangeUsers, encode
from remoting.access.agreement import EXACT_FIELD, AgreedUsers, UserChange, Version
from remoting.access.users import UserTable
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.errors import NotOffered, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer

ENVELOPE_BYTES_MAX = 1_024
"""Room for what consensus puts around a command."""


class ClusterUserRequests:
    """The users and rules of this controller, for brokers."""

    def __init__(self, masters: GroupMasters, configured: frozenset[str] | None) -> None:
        """`configured`: names of the access keys of the configuration; None: no access list, nothing is taken."""
        self._masters = masters
        self._configured = configured

    async def agreed(self, _peer: Peer, command: Command) -> Command:
        """AGREED_USERS: the table with its secrets, if it is another than that of the version in the body."""
        self._require_list()
        known = decode_body(command.body or b"{}", Version)
        if command.fields.get(EXACT_FIELD) == "true":
            await self._masters.proposer.barrier()
        held = self._masters.machine.users
        table = None if held.version == known else UserTable(held.users, held.entries)
        return command.reply(body=encode_body(AgreedUsers(version=held.version, table=table)))

    async def change(self, _peer: Peer, command: Command) -> Command:
        """CHANGE_USERS: a change made for one version; refused with ACCESS_TABLE_CHANGED when there is a newer one."""
        proposed = ChangeUsers(decode_body(command.body, UserChange))
        self._check(proposed)
        self._require_members()
        outcome = await self._masters.propose(proposed)
        if outcome.code != 0:
            raise Refused(outcome.code, outcome.remark)
        return command.reply(body=encode_body(AgreedUsers(version=proposed.change.version_after)))

    def _check(self, proposed: ChangeUsers) -> None:
        configured, change = self._require_list(), proposed.change
        if not change.origin or not change.states:
            raise Refused(ResponseCode.INVALID_PARAMETER, "a change names its origin and at least one user")
        for state in change.states:
            if state.name in configured:
                remark = f"{state.name!r} is an access key of the controllers' configuration"
                raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        size_bytes = len(encode(proposed))
        if size_bytes > COMMAND_BYTES_MAX - ENVELOPE_BYTES_MAX:
            remark = f"the change has {size_bytes} bytes, controllers take {COMMAND_BYTES_MAX - ENVELOPE_BYTES_MAX}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)

    def _require_members(self) -> None:
        """Refuse the first user while a controller may be too old; later ones are not held up by one that is down."""
        outdated = self._masters.proposer.outdated
        if outdated and not self._masters.machine.users.version.origin:
            remark = (
                f"the controllers {', '.join(sorted(outdated))} are down, or of a release without users by request: "
                "upgrade and start all controllers before the first user is made"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)

    def _require_list(self) -> frozenset[str]:
        if self._configured is None:
            remark = "users and rules by request need an access list of the controllers too: set controller.access_list"
            raise NotOffered(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return self._configured
