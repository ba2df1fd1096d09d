"""Every reason that the pages of metrics and errors name has words; what is unknown is shown as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtime.reasons import OF_COUNTER, REFUSALS, WORDS, in_words, refusal

DOCS = Path(__file__).parents[3] / "docs"
ACTIONS = {"publish", "will", "subscribe", "deliver"}


def names_in(text: str) -> set[str]:
    """What is in backquotes and no part of a remark in parentheses."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return set(re.findall(r"`((?!rocketmq_)[a-z][a-z0-9_]+)`", re.sub(r"\([^()]*\)", "", text)))


def documented() -> set[str]:
    """The reasons of the counters of refusals, of what sessions miss, and of connections that end."""
    found: set[str] = set()
    for line in (DOCS / "howto" / "metrics.md").read_text().splitlines():
        cells = line.strip("| ").split(" | ")
        counters = re.findall(r"`(rocketmq_\w+)`", cells[0]) if line.startswith("| ") else []
        if any(one.startswith((*REFUSALS, "rocketmq_mqtt_messages_skipped")) for one in counters):
            found |= names_in(cells[-1])
    section = (DOCS / "howto" / "metrics.md").read_text().partition("Reasons of `rocketmq_broker_drops_total`:")[2]
    found |= names_in(section.partition("\n## ")[0])
    section = (DOCS / "errors.md").read_text().partition("## MQTT: connections that end")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            found |= names_in(line.strip("| ").split(" | ")[0])
    return found


def test_every_documented_reason_has_words() -> None:
    found = documented()
    assert {"keep_alive_timeout", "deny_rule", "shared_settle_late", "not_in_flight", "too_large_for_client"} <= found
    assert found - WORDS.keys() - ACTIONS == set()


def test_words_are_no_identifiers() -> None:
    words = [*WORDS.values(), *REFUSALS.values(), *(word for table in OF_COUNTER.values() for word in table.values())]
    assert [word for word in words if "_" in word or not word] == []


@pytest.mark.parametrize(
    ("counter", "what", "reason"),
    [
        ("rocketmq_mqtt_denials_total{will,deny_rule}", "Denied to MQTT clients", "will: a rule denies it"),
        ("rocketmq_mqtt_connects_refused_total{left}", "MQTT CONNECTs", "disconnected before the password was checked"),
        ("rocketmq_unsupported_requests_total{1007}", "Requests that are not offered", "request code 1007"),
        ("rocketmq_remoting_read_cut_slow_total", "Remoting connections cut", "sent a request too slowly"),
        ("rocketmq_console_streams_refused_total", "Live pages of the console", ""),
        (
            "rocketmq_console_refused_total{too_many}",
            "Requests to the console",
            "too many failed sign-ins of one address",
        ),
        ("rocketmq_new_refused_total{not_known_yet}", "new refused", "not known yet"),
    ],
)
def test_a_counter_of_refusals(counter: str, what: str, reason: str) -> None:
    assert refusal(counter) == (what, reason)


def test_the_detail_of_a_reason_stays() -> None:
    assert in_words("kicked: disconnected by an operator") == "disconnected by an operator: disconnected by an operator"
    assert in_words("") == ""
