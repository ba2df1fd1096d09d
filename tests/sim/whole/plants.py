"""Bugs planted in the shipped code around the rules, each of which the judge must catch.

They are in what no simulation of the rules alone runs: files, what a change of role does, what is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.roles import replicas_manager
from broker.roles.member import GroupMember
from broker.roles.member_log import MemberLog
from broker.store.log.commit_log import Segment
from controller.consensus.journal import Journal
from runtime import files

Patch = Callable[[pytest.MonkeyPatch], None]


def _segments_unsynced(patch: pytest.MonkeyPatch) -> None:
    """The log is called durable without being flushed."""
    patch.setattr(Segment, "sync", lambda _self: None)


def _names_not_durable(patch: pytest.MonkeyPatch) -> None:
    """The directory of a new file is not flushed."""
    patch.setattr(files, "fsync_dir", lambda _directory: None)
    patch.setattr("broker.store.log.commit_log.fsync_dir", lambda _directory: None)


def _identity_unsynced(patch: pytest.MonkeyPatch) -> None:
    """Identity, epoch and vote are replaced without a flush."""

    def replace(path: Path, data: bytes) -> None:
        temporary = path.with_suffix(".unsynced")
        temporary.write_bytes(data)
        temporary.replace(path)

    patch.setattr(replicas_manager, "atomic_replace", replace)


def _journal_unsynced(patch: pytest.MonkeyPatch) -> None:
    """What controllers have promised is not flushed."""
    patch.setattr(Journal, "sync", lambda _self: None)


def _closes_nothing(patch: pytest.MonkeyPatch) -> None:
    """The log is opened in the next role while the former one has it."""

    def close(self: MemberLog) -> None:
        self._standing = self.standing()
        self.store = None

    patch.setattr(MemberLog, "close", close)


def _leaves_streams(patch: pytest.MonkeyPatch) -> None:
    """A role ends, and the replica of the former master goes on copying."""
    real = GroupMember._end_role

    async def end_role(self: GroupMember, *, good_bye: bool) -> None:
        client, self.client = self.client, None
        await real(self, good_bye=good_bye)
        self.client = client

    patch.setattr(GroupMember, "_end_role", end_role)


PLANTS: dict[str, Patch] = {
    "segments-unsynced": _segments_unsynced,
    "names-not-durable": _names_not_durable,
    "identity-unsynced": _identity_unsynced,
    "journal-unsynced": _journal_unsynced,
    "closes-nothing": _closes_nothing,
    "leaves-streams": _leaves_streams,
}
