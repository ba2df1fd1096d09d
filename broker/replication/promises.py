"""What an acknowledgement means, as a sentence: of one broker, of a group, in every mode.

    acknowledged = on disk at 2 of 3 brokers, and at every other broker in sync; one may die and messages ...

It is logged at the start, shown by `lightmq cluster status` and printed by tools. Invariant: a sentence never promises
more than the rule and the flush of the log give, and a rule that a group cannot keep, or that gives less than it seems,
comes with a warning that says why. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.replication.leader import ALL, ASYNC, COUNT
from broker.replication.majority import majority_of

SYNC_FLUSH = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class DurabilityRule:
    """The settings that decide what an acknowledgement means."""

    flush: str
    """`store.flush`: sync or async."""
    in_group: bool = False
    """Whether the broker is a member of a group; without it the other settings mean nothing."""
    acknowledge: str = ALL
    count: int = 2
    in_sync_min: int = 2
    elects_itself: bool = False
    """Whether the group has no controllers: a majority of its members counts, and `count` is how many there are."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised, and why that cannot be kept or is less than it seems; empty when it can."""

    text: str
    warning: str = ""


def promise(rule: DurabilityRule, brokers: int | None = None) -> Promise:
    """What the rule promises in a group of so many brokers, learners not counted; None: how many is not known."""
    if not rule.in_group:
        return _alone(rule)
    if rule.elects_itself:
        return _majority(rule, brokers or rule.count)
    if rule.acknowledge == ASYNC:
        return _master_alone(rule)
    return _counted(rule, brokers) if rule.acknowledge == COUNT else _all_in_sync(rule, brokers)


def _alone(rule: DurabilityRule) -> Promise:
    if rule.flush == SYNC_FLUSH:
        return Promise("acknowledged = on one disk; a crash or a power cut loses nothing, the loss of the disk does")
    return Promise("acknowledged = in the memory of one machine; a crash of the process loses nothing, a power cut may")


def _master_alone(rule: DurabilityRule) -> Promise:
    where = "on the disk" if rule.flush == SYNC_FLUSH else "in the memory"
    return Promise(
        f"acknowledged = {where} of the master alone",
        'the newest acknowledged messages are lost with the master: acknowledge = "all" keeps them',
    )


def _majority(rule: DurabilityRule, brokers: int) -> Promise:
    copies = majority_of(brokers)
    text = f"acknowledged = {_where(rule, copies, brokers)}"
    spare = brokers - copies
    if not spare:
        alone = "the group has one broker: no other one can take its place"
        both = "a majority of two is both: while one is away nothing is accepted; three survive the loss of one"
        return Promise(text, alone if brokers == 1 else both)
    text = f"{text}; {_number(spare)} may die and messages are still accepted"
    if brokers % 2 == 0:
        return Promise(text, f"{brokers} brokers survive the loss of no more brokers than {brokers - 1} do")
    return Promise(text)


def _counted(rule: DurabilityRule, brokers: int | None) -> Promise:
    text = f"acknowledged = {_where(rule, rule.count, brokers)}"
    if brokers is not None and brokers < rule.count:
        return Promise(text, _too_few(f"in_sync_replicas is {rule.count}", brokers))
    return Promise(
        text,
        'a replica that lacks the newest acknowledged messages may become master: acknowledge = "all" keeps them',
    )


def _all_in_sync(rule: DurabilityRule, brokers: int | None) -> Promise:
    least = rule.in_sync_min
    text = f"acknowledged = {_where(rule, least, brokers)}, and at every other broker in sync"
    if brokers is None:
        return Promise(f"{text}; with fewer than {least} in sync messages are refused")
    if brokers < least:
        return Promise(text, _too_few(f"in_sync_min is {least}", brokers))
    spare = brokers - least
    if not spare:
        if brokers == 1:
            return Promise(text, "the group has one broker: no other one can take its place")
        return Promise(
            f"{text}; while one is away messages are refused",
            f"a group of {brokers} with in_sync_min = {least} takes no messages while one broker is away: "
            f"add a broker to keep writing",
        )
    text = f"{text}; {_number(spare)} may die and messages are still accepted"
    if least == 1:
        return Promise(
            text,
            "after the loss of a broker acknowledged messages may be on one disk alone: "
            "three brokers with in_sync_min = 2 keep two copies",
        )
    return Promise(text)


def _where(rule: DurabilityRule, copies: int, brokers: int | None) -> str:
    place = "on disk at" if rule.flush == SYNC_FLUSH else "in memory, not yet flushed, at"
    known = brokers is not None and brokers >= copies
    return f"{place} {copies} of {brokers} brokers" if known else f"{place} {copies} brokers at least"


def _too_few(setting: str, brokers: int) -> str:
    have = "one broker" if brokers == 1 else f"{brokers} brokers"
    return f"messages are refused: {setting} and the group has {have}"


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)
