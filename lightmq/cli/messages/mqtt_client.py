"""What ``pub`` and ``sub`` share: a connected paho-mqtt client and its errors in words.

Invariant: a connection that this side has not closed is never taken for an orderly end, whatever code the server gave.
Thread rule: paho's callbacks run on its network thread and only set events or put into queues.

The properties of an MQTT 5 message: options of ``pub``, and how ``sub --json`` shows it.
"""

from __future__ import annotations

import getpass
import os
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lightmq.cli.defaults import ProfileName
from lightmq.cli.outcome import CommandFailed, CommandMisused, payload_fields
from lightmq.cli.times import seconds

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode


CONNECT_TIMEOUT_S = 10.0
IN_FLIGHT_MAX = 1_000
VERSIONS = ("3.1.1", "5")
SESSION_EXPIRY_S = 0xFFFF_FFFF
"""With MQTT 5 and --persistent: as long as the server keeps sessions."""
SERVER_UNAVAILABLE = 0x88
"""Code 3 of a CONNACK of MQTT 3.1.1, as paho names it."""
NO_SUBSCRIPTION = "lightmq/no/subscription"
"""A filter without a subscription on this connection."""
USER_VARIABLE = "LIGHTMQ_USER"
PASSWORD_VARIABLE = "LIGHTMQ_PASSWORD"  # noqa: S105  # a name, not a password


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MqttTarget:
    """The server and the credentials of a connection."""

    host: Annotated[str, Parameter(name=["--host"], env_var="LIGHTMQ_MQTT_HOST", help="MQTT host.")] = "127.0.0.1"
    port: Annotated[int, Parameter(name=["--port", "-p"], env_var="LIGHTMQ_MQTT_PORT", help="MQTT port.")] = 1883
    profile: ProfileName = ""
    user: Annotated[
        str | None,
        Parameter(name=["--user", "-u"], env_var=USER_VARIABLE, help=f"User; password: ${PASSWORD_VARIABLE} or asked."),
    ] = None
    password: Annotated[str, Parameter(env_var=PASSWORD_VARIABLE, show=False)] = field(default="", repr=False)
    client_id: Annotated[
        str, Parameter(name=["--client-id"], help="MQTT client id; empty: assigned by the server.")
    ] = ""
    mqtt_version: Annotated[str, Parameter(name=["--mqtt-version", "-V"], help="3.1.1 or 5.")] = "3.1.1"
    tls: Annotated[bool, Parameter(name=["--tls"], negative=(), help="Use TLS and verify the server.")] = False
    cafile: Annotated[Path | None, Parameter(name=["--cafile"], help="Trust these certificates (PEM); means TLS.")] = (
        None
    )
    cert: Annotated[Path | None, Parameter(name=["--cert"], help="Show this certificate (PEM); means TLS.")] = None
    key: Annotated[Path | None, Parameter(name=["--key"], help="Key of --cert.")] = None

    @property
    def is_v5(self) -> bool:
        """Whether MQTT 5 is spoken."""
        return self.mqtt_version == "5"

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.tls or self.cafile is not None or self.cert is not None


class MqttLink:
    """One connection; ``lost`` is set when the other side ends it, and ``why_lost`` has the reason."""

    def __init__(self, target: MqttTarget, *, persistent: bool = False) -> None:
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        from mqtt_bridge.paho_client import CheckedClient

        if target.mqtt_version not in VERSIONS:
            raise CommandMisused(f"-V must be {' or '.join(VERSIONS)}, not {target.mqtt_version}")
        if persistent and not target.client_id:
            raise CommandMisused("--persistent needs --client-id: the session belongs to that id")
        self.target = target
        self._persistent = persistent
        self.client = CheckedClient(
            CallbackAPIVersion.VERSION2,
            client_id=target.client_id,
            clean_session=None if target.is_v5 else not persistent,
            protocol=MQTTProtocolVersion.MQTTv5 if target.is_v5 else MQTTProtocolVersion.MQTTv311,
            manual_ack=True,  # a message is acknowledged when it is printed, not when it is received
        )
        self.client.max_inflight_messages_set(IN_FLIGHT_MAX)
        self.client.max_queued_messages_set(0)
        self.client.reconnect_delay_set(1, 30)
        if target.uses_tls:
            self._trust(target)
        if target.user is not None:
            self.client.username_pw_set(target.user, target.password or _password(target.user))
        self.session_present = False
        self.lost = threading.Event()
        self.why_lost = ""
        self._closing = False
        self._answered = threading.Event()
        self._refusal = ""
        self.on_lost: Callable[[], None] = lambda: None
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect

    def open(self) -> None:
        """Connect and wait for the server's answer. Raises CommandFailed, OSError."""
        where = f"{self.target.host}:{self.target.port}"
        try:
            self._connect()
        except ConnectionRefusedError:
            raise CommandFailed(f"nothing listens on {where}; start it with: lightmq up") from None
        except ssl.SSLCertVerificationError as error:
            reason = f"TLS certificate verification failed for {where}: {error.verify_message}"
            raise CommandFailed(f"{reason}; see --cafile") from error
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).lower().replace("_", " ")
            raise CommandFailed(f"no TLS connection to {where}: {reason}; is it an MQTT port with TLS?") from error
        except OSError as error:
            raise CommandFailed(f"cannot connect to {where}: {error.strerror or error}") from error
        self.client.loop_start()
        if not self._answered.wait(CONNECT_TIMEOUT_S):
            self.close()
            raise CommandFailed(f"{where} did not answer CONNECT within {CONNECT_TIMEOUT_S:.0f} s; is it an MQTT port?")
        if self._refusal:
            self.close()
            raise CommandFailed(f"{where} refused the connection: {self._refusal}")

    def close(self) -> None:
        """Say DISCONNECT and end the network thread."""
        self._closing = True
        self.client.disconnect()
        self.client.loop_stop()

    def await_reading(self, timeout_s: float) -> None:
        """Wait until the server has read all that was sent before. Raises CommandFailed when it ended the connection.

        A server takes packets in their order, so its answer to this UNSUBSCRIBE comes after those; what is sent with
        QoS 0 has no answer of its own.
        """
        done = threading.Event()
        self.client.on_unsubscribe = lambda *_: done.set()
        self.on_lost = done.set
        self.client.unsubscribe(NO_SUBSCRIPTION)
        if not self.lost.is_set() and not done.wait(timeout_s):
            raise CommandFailed(f"the server did not answer UNSUBSCRIBE within {timeout_s:g} s")
        if self.lost.is_set():
            raise CommandFailed(f"{self.why_lost}; not all that was sent may have been accepted")

    def _connect(self) -> None:
        if not self.target.is_v5:
            self.client.connect(self.target.host, self.target.port)
            return
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        if self._persistent:
            properties.SessionExpiryInterval = SESSION_EXPIRY_S
        self.client.connect(self.target.host, self.target.port, clean_start=not self._persistent, properties=properties)

    def _trust(self, target: MqttTarget) -> None:
        def name(file: Path | None) -> str | None:
            if file is not None and not file.is_file():
                raise CommandFailed(f"there is no file {file}")
            return None if file is None else str(file)

        try:
            self.client.tls_set(name(target.cafile), name(target.cert), name(target.key))
        except (OSError, ValueError) as error:
            raise CommandFailed(f"cannot use --cafile, --cert or --key: {error}") from error

    def _on_connect(
        self, _client: Client, _data: Any, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        from mqtt_bridge.paho_client import CAUSES_OF_3_1_1_UNAVAILABLE, in_words

        self.session_present = bool(flags.session_present)
        if reason.is_failure:
            self._refusal = in_words(reason, properties)
            if not self.target.is_v5 and reason.value == SERVER_UNAVAILABLE:
                self._refusal += f"; {CAUSES_OF_3_1_1_UNAVAILABLE}"
        self._answered.set()

    def _on_disconnect(
        self, _client: Client, _data: Any, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        from mqtt_bridge.paho_client import why_ended

        if self._closing or self.lost.is_set():
            return
        if not self._answered.is_set():
            hint = "" if self.target.uses_tls else " A port with TLS needs --tls or --cafile"
            self._refusal = f"the connection ended before the server answered CONNECT; is it an MQTT port?{hint}"
            self._answered.set()
        self.why_lost = why_ended(flags, reason, properties, is_v5=self.target.is_v5)
        self.lost.set()
        self.on_lost()


def _password(user: str) -> str:
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    if not sys.stdin.isatty():
        raise CommandFailed(f"no terminal to ask for the password of {user}; set {PASSWORD_VARIABLE}")
    return getpass.getpass(f"Password of {user}: ")


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
class PublishProperties:
    """Properties of the messages to publish; each needs ``-V 5``."""

    user_properties: Annotated[
        list[str], Parameter(name=["--property", "-P"], negative=(), help="User property KEY=VALUE; repeatable (-V 5).")
    ] = field(default_factory=list)
    content_type: Annotated[str | None, Parameter(help="Content type (-V 5).")] = None
    response_topic: Annotated[str | None, Parameter(help="Response topic (-V 5).")] = None
    correlation: Annotated[str | None, Parameter(help="Correlation data of a response (-V 5).")] = None
    expiry: Annotated[
        float | None, Parameter(converter=seconds, help="How long until the message expires: 90s, 2h (-V 5).")
    ] = None

    def properties(self, *, is_v5: bool) -> Properties | None:
        """In paho's form; None when there are none. Raises CommandFailed."""
        if self == NO_PROPERTIES:
            return None
        if not is_v5:
            raise CommandMisused("properties of a message need MQTT 5: add -V 5")
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if self.expiry is not None and not 0 <= self.expiry <= EXPIRY_S_MAX:
            raise CommandMisused(f"--expiry must be 0 to {EXPIRY_S_MAX}, not {self.expiry:g}")
        pairs = [pair.partition("=") for pair in self.user_properties]
        if not all(separator and key for key, separator, _ in pairs):
            raise CommandMisused("write a property as KEY=VALUE, for example --property unit=celsius")
        values = {
            "UserProperty": [(key, value) for key, _, value in pairs] or None,
            "ContentType": self.content_type,
            "ResponseTopic": self.response_topic,
            "CorrelationData": None if self.correlation is None else self.correlation.encode(),
            "MessageExpiryInterval": None if self.expiry is None else round(self.expiry),
        }
        for name, value in values.items():
            if value is not None:
                setattr(properties, name, value)
        return properties


NO_PROPERTIES = PublishProperties()


def shown(properties: Properties | None) -> dict[str, Any]:
    """The properties of a received message for JSON; absent ones are left out."""
    if properties is None:
        return {}
    found = {shown_as: getattr(properties, name) for name, shown_as in NAMES.items() if hasattr(properties, name)}
    if hasattr(properties, "CorrelationData"):
        for name, text in payload_fields(properties.CorrelationData).items():
            found[name.replace("payload", "correlation")] = text
    return found
