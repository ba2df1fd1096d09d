"""What MQTT 5 lets a message say about itself: options of ``pub``, and how ``sub --json`` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lightmq.cli.outcome import CommandFailed

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties

EXPIRY_S_MAX = 0xFFFF_FFFF
NAMES = {
    "ContentType": "content_type",
    "ResponseTopic": "response_topic",
    "MessageExpiryInterval": "expiry_s",
    "PayloadFormatIndicator": "payload_format",
    "UserProperty": "user_properties",
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Said:
    """Properties of the messages to publish; each needs ``-V 5``."""

    user_properties: Annotated[
        list[str], Parameter(name=["--property", "-P"], negative=(), help="User property KEY=VALUE; repeatable (-V 5).")
    ] = field(default_factory=list)
    content_type: Annotated[str | None, Parameter(help="Content type (-V 5).")] = None
    response_topic: Annotated[str | None, Parameter(help="Where an answer goes (-V 5).")] = None
    correlation: Annotated[str | None, Parameter(help="What an answer refers to (-V 5).")] = None
    expiry: Annotated[int | None, Parameter(help="Seconds after which nobody needs the message (-V 5).")] = None

    def properties(self, *, is_v5: bool) -> Properties | None:
        """As paho takes them; None when nothing is said. Raises CommandFailed."""
        if self == NOTHING_SAID:
            return None
        if not is_v5:
            raise CommandFailed("properties of a message need MQTT 5: add -V 5")
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        said = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if self.expiry is not None and not 0 <= self.expiry <= EXPIRY_S_MAX:
            raise CommandFailed(f"--expiry must be 0 to {EXPIRY_S_MAX}, not {self.expiry}")
        pairs = [pair.partition("=") for pair in self.user_properties]
        if not all(separator and key for key, separator, _ in pairs):
            raise CommandFailed("write a property as KEY=VALUE, for example --property unit=celsius")
        values = {
            "UserProperty": [(key, value) for key, _, value in pairs] or None,
            "ContentType": self.content_type,
            "ResponseTopic": self.response_topic,
            "CorrelationData": None if self.correlation is None else self.correlation.encode(),
            "MessageExpiryInterval": self.expiry,
        }
        for name, value in values.items():
            if value is not None:
                setattr(said, name, value)
        return said


NOTHING_SAID = Said()


def shown(said: Properties | None) -> dict[str, Any]:
    """The properties of a received message for JSON; nothing for what it does not say."""
    if said is None:
        return {}
    found = {shown_as: getattr(said, name) for name, shown_as in NAMES.items() if hasattr(said, name)}
    if hasattr(said, "CorrelationData"):
        from lightmq.cli.messages.subscribe import payload_fields

        for name, text in payload_fields(said.CorrelationData).items():
            found[name.replace("payload", "correlation")] = text
    return found
