"""What an acknowledgement of this configuration means, in one sentence, and whether the configuration can keep it.

Invariant: the sentence never says more than the rule of `acknowledge` and the flush of the log give. Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.replication.acknowledge import ALL, ASYNC, COUNT

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


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised, and why that cannot be kept or is less than it seems; empty when it can."""

    text: str
    warning: str = ""


def promise(rule: DurabilityRule, brokers: int | None = None) -> Promise:
    """What the rule promises in a group of so many brokers, learners not counted; None: how many is not known."""
    if not rule.in_group:
        return _alone(rule)
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
