"""Who the controllers are by their log: where each one is, which directory may speak for it, and what may change next.

Every directory has an identity, made at its first start. The leader writes into the log where each member is and which
identity it has, as the members say when they connect; the first leader's identity becomes the group's. From then on a
member is known by its directory: one whose files are gone, which are older than what it showed, or which belong to
another group is refused with what the operator can do. A controller that is added is a learner, votes as soon as it
has everything that is committed, and needs no one's permission but the entry that names its directory: it never voted.

A directory that an operator copied (entries, and no vote) has a new identity, and takes those of the others as they
come: that is how a group goes on after it has lost a majority. Invariant: an identity is written only of a member
that acknowledges entries or was just added, so that an emptied directory never becomes the known one by itself. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from controller.consensus.members import MEMBERS_MAX
from controller.raft.core import Raft
from controller.raft.membership import MemberPlace, Membership
from remoting.protocol.errors import LocalMisuse

RETIRED_MAX = 64
"""Identities that are remembered so that they do not come back."""
COMMAND = "lightmq cluster controllers"


class Introduction(msgspec.Struct, array_like=True, frozen=True):
    """What a controller says of itself when it is connected."""

    identity: str
    group: str
    voter: bool
    term: int
    host: str
    port: int
    raft_port: int


class MemberSeen(msgspec.Struct, frozen=True):
    """One member as another one sees it."""

    place: MemberPlace
    role: str
    """`leader`, `voter` or `learner`."""
    is_connected: bool | None = None
    """Whether the leader hears of it; None where only the leader knows."""
    behind: int | None = None
    """Entries that the leader has and it does not."""


class Roster:
    """The members, seen by one of them."""

    def __init__(self, raft: Raft, own: MemberPlace, configured: Mapping[str, MemberPlace], *, copied: bool) -> None:
        """`copied`: this directory was put together by an operator, so the identities in its log are no longer so."""
        self._raft = raft
        self._own = own
        self._configured = configured
        self._copied = copied
        self.group = ""
        """The group's identity once it is committed, also if this controller learned that before it was restarted."""
        self._heard: dict[str, Introduction] = {}
        """Of those that are connected."""
        self._terms: dict[str, tuple[str, int]] = {}
        """The highest term each has shown, and with which identity."""

    @property
    def places(self) -> dict[str, MemberPlace]:
        """Every member: as the log says, and as configured where it does not say yet."""
        current = self._raft.members.current
        known = {**self._configured, **{each.node_id: each for each in current.places}}
        return {each: known[each] for each in current.members if each in known}

    @property
    def agreed(self) -> Membership:
        """The members that are committed: nobody is turned away because of a change that may be cut again."""
        return self._raft.members.at(self._raft.log.committed)

    @property
    def introduction(self) -> Introduction:
        """What this controller says to the others."""
        own, raft = self._own, self._raft
        return Introduction(own.identity, self.group, raft.admitted, raft.hard.term, own.host, own.port, own.raft_port)

    @property
    def is_named(self) -> bool:
        """Whether the log names this controller with this directory."""
        return bool(self._own.identity) and self._identity(self._own.node_id) == self._own.identity

    def introduced(self, peer: str, said: Introduction) -> str:
        """Take in who is connected; why it must not be, else empty."""
        if said.group and self.group and said.group != self.group:
            return f"{peer} belongs to another group of controllers: correct controller.peers, or empty its directory"
        reason = self.stranger(peer, said.identity)
        if reason:
            return reason
        if said.voter and self._differs(peer, said):
            return self._another_directory(peer)
        identity, term = self._terms.get(peer, ("", 0))
        if said.identity and said.identity == identity and said.term < term:
            return (
                f"the files of {peer} are older than what it has shown (term {said.term} after {term}): stop it, empty "
                f"its directory, start it and run: {COMMAND} replace {peer}"
            )
        self._heard[peer], self._terms[peer] = said, (said.identity, said.term)
        return ""

    def stranger(self, peer: str, identity: str = "") -> str:
        """Why a peer is none of this group; empty when it is, or when this controller cannot know."""
        current, agreed, said = self._raft.members.current, self.agreed, self._heard.get(peer)
        identity = identity or (said.identity if said is not None else "")
        if identity and identity in agreed.retired:
            return f"the directory of {peer} was replaced or removed: empty it before this controller is added again"
        if peer in current.members or peer in agreed.members or self._raft.leader is None or not self._raft.admitted:
            return ""
        return f"{peer} is no member: run {COMMAND} add {peer}@HOST:PORT@RAFTPORT"

    def showed(self, peer: str, term: int) -> None:
        """A message of a peer carried this term, which is on its disk."""
        identity, known = self._terms.get(peer, ("", 0))
        self._terms[peer] = identity, max(term, known)

    def left(self, peer: str) -> None:
        """Its connection is over."""
        self._heard.pop(peer, None)

    def refusal(self, peer: str) -> str:
        """Why a peer that asks to be admitted never will be with its directory; empty: it may be."""
        said = self._heard.get(peer)
        return self._another_directory(peer) if said is not None and self._differs(peer, said) else ""

    def seen(self, heard_since: float) -> list[MemberSeen]:
        """All members; `is_connected` by whom the leader heard since then."""
        raft, found = self._raft, []
        for node_id, place in sorted(self.places.items()):
            progress = raft.leading.progress.get(node_id) if raft.leading is not None else None
            role = "learner" if node_id in raft.members.current.learners else "voter"
            if node_id == raft.leader:
                found.append(MemberSeen(place, "leader", is_connected=True, behind=0))
            elif progress is None:
                found.append(MemberSeen(place, role))
            else:
                heard = progress.last_contact >= heard_since and node_id in self._heard
                found.append(MemberSeen(place, role, heard, raft.log.last_index - progress.match))
        return found

    # ---- what the leader changes

    def due(self) -> Membership | None:
        """What the leader has to write about the members: who they are, or that a learner votes now."""
        raft, current = self._raft, self._raft.members.current
        if raft.leading is None or not self._own.identity or not self.idle:
            return None
        places = tuple(map(self._learned, self.places.values()))
        named = {each.node_id for each in places if each.identity}
        ready = [each for each in current.learners if each in named and raft.leading.caught_up(each)]
        voters = (*current.voters, *ready[:1])
        learners = tuple(each for each in current.learners if each not in voters)
        wanted = Membership(voters, learners, places, current.group or self._own.identity, current.retired)
        return wanted if wanted != current else None

    @property
    def idle(self) -> bool:
        """Whether the leader could change the members at this moment."""
        leading = self._raft.leading
        began = max(leading.began, self._raft.members.index) if leading is not None else 0
        return leading is not None and not leading.heir and self._raft.log.committed >= began

    def added(self, place: MemberPlace) -> Membership:
        """The members with another one, which learns first. Raises LocalMisuse."""
        current = self._raft.members.current
        if place.node_id in current.members:
            raise LocalMisuse(f"{place.node_id} is a member already")
        if current.learners:
            raise LocalMisuse(f"{current.learners[0]} is being added: one at a time")
        if len(current.members) >= MEMBERS_MAX:
            raise LocalMisuse(
                f"there are {MEMBERS_MAX} controllers already; more make every decision slower, none safer"
            )
        here = [each.node_id for each in self.places.values() if (each.host, each.raft_port) == _at(place)]
        if here:
            raise LocalMisuse(f"{here[0]} has this address already")
        return replace(
            current,
            learners=(*current.learners, place.node_id),
            places=(*self.places.values(), replace(place, identity="")),
        )

    def removed(self, node_id: str, heard_since: float) -> Membership:
        """The members without one. Raises LocalMisuse when the others could not go on, by whom was heard since then."""
        current, leading = self._raft.members.current, self._raft.leading
        assert leading is not None
        if node_id not in current.members:
            raise LocalMisuse(f"{node_id} is no member; they are {', '.join(sorted(current.members))}")
        voters = tuple(each for each in current.voters if each != node_id)
        if not voters:
            raise LocalMisuse("the last controller cannot be removed")
        progress = leading.progress.items()  # only one that votes acknowledges entries
        here = {each for each, one in progress if one.last_contact >= heard_since and one.match} & set(self._heard)
        away = [each for each in voters if each != leading.own and each not in here]
        if 2 * (len(voters) - len(away)) <= len(voters):
            raise LocalMisuse(f"without {node_id} too few would run: start {', '.join(away)} first")
        identity = self._identity(node_id)
        return replace(
            current,
            voters=voters,
            learners=tuple(each for each in current.learners if each != node_id),
            places=tuple(each for each in self.places.values() if each.node_id != node_id),
            retired=(*current.retired, identity)[-RETIRED_MAX:] if identity else current.retired,
        )

    # ---- identities

    def _identity(self, node_id: str) -> str:
        places = self._raft.members.current.places
        return next((each.identity for each in places if each.node_id == node_id), "")

    def _differs(self, peer: str, said: Introduction) -> bool:
        known = self._identity(peer)
        return bool(known and said.identity and known != said.identity) and not self._copied

    def _another_directory(self, peer: str) -> str:
        return (
            f"the directory of {peer} is not the one it had: if its files are lost, empty it, start it and run: "
            f"{COMMAND} replace {peer}"
        )

    def _learned(self, place: MemberPlace) -> MemberPlace:
        """What the log should say of a member, by what it says itself."""
        leading = self._raft.leading
        assert leading is not None
        if place.node_id == self._own.node_id:
            return self._own
        said, progress = self._heard.get(place.node_id), leading.progress.get(place.node_id)
        if said is None or progress is None or not said.identity:
            return place
        added = place.node_id in self._raft.members.current.learners and not place.identity
        unknown = not place.identity or self._copied
        if said.identity != place.identity and not (added or (unknown and progress.match)):
            return place
        return MemberPlace(place.node_id, said.host, said.port, said.raft_port, said.identity)


def _at(place: MemberPlace) -> tuple[str, int]:
    return place.host, place.raft_port
