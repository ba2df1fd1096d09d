"""Did readers see more than what the replicas that count had? The judge of the brokers' status pages.

One status page is one moment of a broker's loop: how far readers may look (confirmed), and how much of the log each
replica that counts has said it has. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.judges import Verdict


@dataclass(frozen=True, slots=True)
class Sample:
    """The state that one broker reported at one time."""

    at: float
    broker: str
    epoch: int
    confirmed: int
    flushed: int
    end: int
    acknowledged: dict[int, int] = field(default_factory=dict)
    """At a master: replicas whose word counts -> the log position up to which they have everything."""
    spare: int = 0
    """How many of those, and of the master, may lack what is shown: a minority of an elected group, else none."""


def sample_of(at: float, broker: str, page: dict[str, Any]) -> Sample | None:
    """From a status page; None while the broker has no open log."""
    member = page.get("member", {})
    if "confirmed" not in member:
        return None
    counting = set(member.get("required", ()))
    replicas = {each["id"]: each["acknowledged"] for each in member.get("replicas", ()) if each["id"] in counting}
    # A replica that has just returned has reported nothing of its log yet.
    acknowledged = {name: position for name, position in replicas.items() if position >= 0}
    spare = (len(member["members"]) - 1) // 2 if member.get("mode") == "dledger" else 0
    if spare and member.get("role") == "master":
        acknowledged |= {0: member["flushed"]}
    return Sample(
        at, broker, member["epoch"], member["confirmed"], member["flushed"], member["end"], acknowledged, spare
    )


def visibility(samples: Sequence[Sample], end: int) -> Verdict:
    """Nothing was visible that a counting replica lacked, and everything that ever was is in the log at the end."""
    verdict = Verdict("visible is confirmed", counts={"unconfirmed": 0, "vanished": 0})
    for each in samples:
        verdict.checked += 1
        told = f"{each.broker} showed its log up to {each.confirmed} at {each.at:.3f} s in epoch {each.epoch}"
        lacking = {name: position for name, position in each.acknowledged.items() if position < each.confirmed}
        if len(lacking) > each.spare:
            for replica, position in lacking.items():
                verdict.blame("unconfirmed", f"{told}, and replica {replica} had it up to {position}")
        if each.confirmed > each.end:
            verdict.blame("unconfirmed", f"{told}, which was to end at {each.end}")
        if each.confirmed > end:
            verdict.blame("vanished", f"{told}, in the end the log ends at {end}")
    return verdict
