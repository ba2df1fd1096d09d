"""Whether a replica stands in for its group's master: decided from what name servers list, and from nothing else.

    lists of the live members (901) --┐
    "the smallest id is another" (905)├--> StandIn.verdict(now)     the first of `RULES` that holds
    a master's stream, own role ------┘

Each name server's last list counts for `lease_ms` from the moment it was asked for. A name server keeps a broker in its
lists for longer than that after the broker's last sign of life, and a broker sends one before it asks. A broker that a
name server has begun to list stands in only one lease later: a larger id's last list without it has expired by then.
So of two brokers that one name server lists, never both stand in at the same time, whatever messages are lost or late;
with several name servers all lists that count must agree. A message that another id is the smallest can only end the
part, and so can a master that is heard; beginning it takes a list.

Invariant: no list that counts has a master, or a smaller id than this broker's, while it stands in. Pure: the caller
passes the time and acts on the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

MASTER_ID = 0

Place = tuple[int, str]
"""(broker id, address for clients)."""


class ActingVerdict(Enum):
    """Whether a broker stands in; if not, why."""

    OFF = "it is the master, or has no id yet"
    MASTER_HEARD = "its master sends to it"
    UNSEEN = "no name server has answered lately"
    MASTER_LISTED = "a name server lists a master"
    UNLISTED = "a name server does not list this broker"
    SMALLER_LISTED = "a name server lists a smaller id"
    SETTLING = "a name server has not listed it for long enough"
    ACTS = "it has the smallest id of those that are alive"


@dataclass(frozen=True, slots=True)
class ActingSituation:
    """What the rules judge."""

    place: Place | None
    """This broker as replica; None while it is none."""
    master_heard: bool
    lists: Sequence[Mapping[int, str]]
    """Broker id -> address, as name servers gave them; only those that count."""
    settled: bool
    """Whether each of those name servers has listed this broker for a whole lease."""


def _others(situation: ActingSituation) -> bool:
    assert situation.place is not None
    number, address = situation.place
    return any(each.get(number) != address for each in situation.lists)


def _smaller(situation: ActingSituation) -> bool:
    assert situation.place is not None
    return any(min(each) < situation.place[0] for each in situation.lists)


RULES: tuple[tuple[ActingVerdict, Callable[[ActingSituation], bool]], ...] = (
    (ActingVerdict.OFF, lambda situation: situation.place is None),
    (ActingVerdict.MASTER_HEARD, lambda situation: situation.master_heard),
    (ActingVerdict.UNSEEN, lambda situation: not situation.lists),
    (ActingVerdict.MASTER_LISTED, lambda situation: any(MASTER_ID in each for each in situation.lists)),
    (ActingVerdict.UNLISTED, _others),
    (ActingVerdict.SMALLER_LISTED, _smaller),
    (ActingVerdict.SETTLING, lambda situation: not situation.settled),
    (ActingVerdict.ACTS, lambda _situation: True),
)
"""The first that holds is the verdict."""


def judge(situation: ActingSituation) -> ActingVerdict:
    """The verdict on a situation."""
    return next(verdict for verdict, holds in RULES if holds(situation))


@dataclass(frozen=True, slots=True)
class _MemberList:
    asked_ms: int
    members: Mapping[int, str]
    since_ms: int
    """When the first answer came of those since which this broker was listed without a gap."""


class StandIn:
    """One broker's part in standing in for its master."""

    def __init__(self, lease_ms: int) -> None:
        """`lease_ms`: how long a list counts; below the time for which name servers list a broker that is silent."""
        self.place: Place | None = None
        self.lease_ms = lease_ms
        self._lists: dict[str, _MemberList] = {}
        self._from_ms = 0
        """What was asked for before does not count."""

    def become(self, place: Place | None, now_ms: int) -> None:
        """Be a replica with this id and address from now on; None: the master, or nothing yet."""
        if place != self.place:
            self.place = place
            self.forget(now_ms)

    def listed(self, name_server: str, members: Mapping[int, str], asked_ms: int, now_ms: int) -> None:
        """A name server's answer to what it was asked at `asked_ms`."""
        known = self._lists.get(name_server)
        if asked_ms < self._from_ms or (known is not None and known.asked_ms > asked_ms):
            return
        # While the list before counts, the name server cannot have dropped this broker from its lists in between.
        is_gap = known is None or now_ms >= known.asked_ms + self.lease_ms or not self._is_in(known.members)
        since_ms = now_ms if is_gap or known is None else known.since_ms
        self._lists[name_server] = _MemberList(asked_ms, dict(members), since_ms)

    def smallest_changed(self, smallest_id: int, now_ms: int) -> None:
        """A name server says that another id is the smallest now, or this broker's."""
        if self.place is None or smallest_id != self.place[0]:
            self.forget(now_ms)

    def forget(self, now_ms: int) -> None:
        """Cease to stand in until a name server that is asked from now on lists it so."""
        self._lists.clear()
        self._from_ms = now_ms

    def others(self, now_ms: int) -> set[str]:
        """Addresses of the other replicas in the lists that count."""
        counting = [each.members for each in self._lists.values() if now_ms < each.asked_ms + self.lease_ms]
        found = {address for members in counting for number, address in members.items() if number != MASTER_ID}
        return found - {self.place[1]} if self.place is not None else found

    def verdict(self, now_ms: int, *, master_heard: bool) -> ActingVerdict:
        """Whether this broker stands in now."""
        counting = [each for each in self._lists.values() if now_ms < each.asked_ms + self.lease_ms]
        settled = all(now_ms >= each.since_ms + self.lease_ms for each in counting)
        return judge(ActingSituation(self.place, master_heard, [each.members for each in counting], settled))

    def _is_in(self, members: Mapping[int, str]) -> bool:
        return self.place is not None and members.get(self.place[0]) == self.place[1]
