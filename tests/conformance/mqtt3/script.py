"""Reads scenario scripts and turns the words of a line into packets; the language is in the README beside this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mqtt_proxy.mqtt import packets

HERE = Path(__file__).parent
ANY_ID = -1
STEP_NAMES = {"connect", "send", "dribble", "expect", "ack", "quiet", "closed", "drop", "silence"}


@dataclass
class Scenario:
    """One script: the statements it shows and its steps."""

    statements: list[str]
    title: str
    needs_server: bool
    where: str
    steps: list[tuple[int, list[str]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name for the test report."""
        return f"{self.statements[0]}-{self.title.replace(' ', '_')}"


def load_scenarios(folder: Path = HERE) -> list[Scenario]:
    """Every scenario of the folder."""
    found: list[Scenario] = []
    for path in sorted((folder / "scenarios").glob("*.txt")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            text = line.partition("  #")[0].strip()
            if text.startswith("=="):
                head, _, title = text[2:].partition(":")
                words = head.split()
                statements = [word for word in words if word != "@server"]
                found.append(Scenario(statements, title.strip(), "@server" in words, path.name))
            elif text and not text.startswith("#"):
                found[-1].steps.append((number, text.split()))
    return found


def fields_of(words: list[str]) -> dict[str, list[str]]:
    """key=value words; a word without = is a flag; a key may come several times."""
    fields: dict[str, list[str]] = {}
    for word in words:
        key, separator, value = word.partition("=")
        fields.setdefault(key, []).append(value if separator else "1")
    return fields


class Fields:
    """The fields of one packet, taken one by one; what is left over is a mistake of the script."""

    def __init__(self, words: list[str]) -> None:
        self.fields = fields_of(words)

    def text(self, key: str, default: str = "") -> str:
        return self.fields.pop(key, [default])[0]

    def optional(self, key: str) -> str | None:
        return self.fields.pop(key, [None])[0]  # type: ignore[list-item]

    def number(self, key: str, default: int = 0) -> int:
        value = self.text(key, str(default))
        return ANY_ID if value == "?" else int(value)

    def flag(self, key: str) -> bool:
        return self.text(key, "0") == "1"

    def many(self, key: str) -> list[str]:
        return self.fields.pop(key, [])


def packet_of(words: list[str]) -> packets.Packet:
    """The packet a line describes."""
    fields = Fields(words[1:])
    packet = MAKERS[words[0]](fields)
    assert not fields.fields, f"unknown fields {list(fields.fields)} of {words[0]}"
    return packet


def _connect(fields: Fields) -> packets.Packet:
    will = fields.optional("will")
    password = fields.optional("password")
    made = None
    if will is not None:
        topic = fields.text("will_topic").encode()
        made = packets.Will(topic, will.encode(), fields.number("will_qos"), fields.flag("will_retain"))
    return packets.Connect(
        fields.text("id"),
        fields.text("clean", "1") == "1",
        fields.number("keepalive", 60),
        username=fields.optional("user"),
        password=None if password is None else password.encode(),
        will=made,
    )


def _publish(fields: Fields) -> packets.Packet:
    payload = fields.text("payload").encode()
    return packets.Publish(
        fields.text("topic").encode(),
        payload * fields.number("times", 1),
        fields.number("qos"),
        fields.flag("retain"),
        fields.flag("dup"),
        fields.number("id"),
    )


def _subscribe(fields: Fields) -> packets.Packet:
    filters = [tuple(word.rsplit(":", 1)) for word in fields.many("filter")]
    return packets.Subscribe(fields.number("id"), [(name, int(qos)) for name, qos in filters])


MAKERS = {
    "connect": _connect,
    "connack": lambda fields: packets.Connack(fields.flag("present"), fields.number("code")),
    "publish": _publish,
    "puback": lambda fields: packets.Puback(fields.number("id")),
    "pubrec": lambda fields: packets.Pubrec(fields.number("id")),
    "pubrel": lambda fields: packets.Pubrel(fields.number("id")),
    "pubcomp": lambda fields: packets.Pubcomp(fields.number("id")),
    "unsuback": lambda fields: packets.Unsuback(fields.number("id")),
    "subscribe": _subscribe,
    "suback": lambda fields: packets.Suback(fields.number("id"), [int(c) for c in fields.text("codes").split(",")]),
    "unsubscribe": lambda fields: packets.Unsubscribe(fields.number("id"), fields.many("filter")),
    "pingreq": lambda _: packets.Pingreq(),
    "pingresp": lambda _: packets.Pingresp(),
    "disconnect": lambda _: packets.Disconnect(),
}
