"""A client id has one owner."""

from __future__ import annotations

from mqtt_proxy.sessions import owners as ownership
from mqtt_proxy.sessions.owners import REVISED_PER_TURN_MAX, Owners
from remoting.protocol.bodies.session_body import SessionFenced, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.unit.mqtt_proxy.rig import running, settle


class Owner:
    """Remembers what it was told."""

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.told: list[object] = []

    def evict(self, reason: str, *, fenced: bool) -> None:
        self.told.append(("evict", fenced))

    def fence(self, epoch: int, *, hand_over: bool = False) -> None:
        self.told.append(epoch)

    def rules_changed(self) -> None:
        self.told.append("rules")

    def revise(self) -> None:
        self.told.append("revise")

    def reopen(self) -> None:
        self.told.append("reopen")


async def test_the_last_one_owns() -> None:
    """Taking evicts; a late release of the old one changes nothing; a fence reaches the owner."""
    async with running() as rig:
        owners, first, second = Owners(rig.link, rig.metrics), Owner(), Owner()
        owners.take("a", first)
        owners.take("a", first)
        owners.take("a", second)
        owners.release("a", first)
        assert (list(owners), first.told) == ([second], [("evict", False)])
        for client_id in ("a", "unknown"):
            owners._fenced(Command(RequestCode.SESSION_FENCED, body=encode(SessionFenced(client_id, 7))))
        assert second.told == [7]
        owners._reopen()
        owners._reopen()
        assert second.told == [7, "reopen"]
        owners.release("a", second)
        assert len(owners) == 0


async def test_whose_connection_it_is() -> None:
    """Another user must not end it; everybody hears of new rules."""
    async with running() as rig:
        owners, ann, nobody = Owners(rig.link, rig.metrics), Owner("ann"), Owner()
        owners.take("a", ann)
        owners.take("n", nobody)
        asked = [
            owners.foreign(one, who)
            for one, who in (("a", "ann"), ("a", "bob"), ("a", None), ("n", None), ("n", "ann"))
        ]
        assert asked == [False, True, True, False, True]
        assert not owners.foreign("unknown", "bob")
        owners.rules_changed()
        assert (ann.told, nobody.told) == (["rules", "revise"], ["rules", "revise"])


async def test_a_large_fleet_is_revised_in_slices() -> None:
    """Everybody forgets at once, subscriptions follow turn by turn; a further change begins again with everybody."""
    async with running() as rig:
        owners, fleet = Owners(rig.link, rig.metrics), [Owner() for _ in range(REVISED_PER_TURN_MAX + 50)]
        for number, owner in enumerate(fleet):
            owners.take(str(number), owner)
        owners.rules_changed()
        assert all(owner.told[0] == "rules" for owner in fleet)
        assert sum("revise" in owner.told for owner in fleet) == REVISED_PER_TURN_MAX
        owners.rules_changed()
        await settle()
        assert [owner.told.count("revise") for owner in fleet] == [2] * REVISED_PER_TURN_MAX + [1] * 50


async def test_of_those_who_left_while_the_broker_was_away_a_bounded_number_is_remembered(monkeypatch) -> None:
    monkeypatch.setattr(ownership, "CLOSED_LATER_MAX", 2)
    async with running() as rig:
        owners, left = Owners(rig.link, rig.metrics), [Owner() for _ in range(3)]
        owners._reopen()
        for owner in left:
            owners.close_later(owner)
        assert rig.count("wills_failed_total{leave_unsaid}") == 1
        owners._reopen()
        owners._reopen()
        assert [owner.told for owner in left] == [[], ["reopen"], ["reopen"]], "each once"
