"""The session's half that answers requests: CONNACK, acknowledgements, SUBACK, UNSUBACK, AUTH, DISCONNECT.

The owner always speaks the reason codes of MQTT 5; what 3.1.1 has no words for is translated or left out here.
Invariant: calls after the end are ignored, they cross with it; a call in a state where it makes no sense is
LocalMisuse. Loop rule: one event loop, no locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqtt_proxy.mqtt.codec import encode5
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.encode import PUBREL_WORD, acknowledgements, connack, suback, unsuback
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, LEVEL_5
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.reason_codes import (
    CONNECT_CODES,
    FAILURE_MIN,
    ConnectCode,
    Reason,
    ReasonCode,
    suback_code_of_3,
)
from mqtt_proxy.mqtt.session.deliveries import Deliveries
from mqtt_proxy.mqtt.session.states import State
from remoting.protocol.errors import LocalMisuse

REFUSAL_REASON_BYTES_MAX = 100
"""Longest reason string behind a refused publish, in UTF-8; it is cut there."""

User = Sequence[tuple[bytes, bytes]]

_CONNECTED = State.CONNECTED  # a member of an enumeration is looked up slowly


class Answers(Deliveries):
    """Answers to the client."""

    __slots__ = ()

    def accept(
        self,
        session_present: bool,
        inflight: Sequence[tuple[int, object, int]] = (),
        received_ids: Iterable[int] = (),
        *,
        session_expiry_s: int | None = None,
        server_keep_alive_s: int | None = None,
        response_information: str | None = None,
        reason_string: str = "",
        auth_data: bytes | None = None,
        user: User = (),
    ) -> None:
        """CONNACK 0. `inflight` = (packet id, token, phase) of the deliveries of the resumed session not yet
        acknowledged, in order of sending: those in PHASE_PUBREL are sent again here, call `redeliver` for each other.
        `received_ids` = QoS 2 ids its previous connection had taken (`received_ids()` of that session).
        `session_expiry_s`: what is granted when it is not what was asked. `server_keep_alive_s` takes the place of the
        client's keep-alive; a client of 3.1.1 cannot be told.
        """
        if not self.answers(State.DECIDING):
            return
        if session_present and self.clean:
            raise LocalMisuse("a clean session has nothing present [MQTT-3.2.2-1]")
        released = self.outgoing.restore(inflight)
        self.incoming.restore(received_ids)
        if self.level == LEVEL_5:
            found = self._granted(session_expiry_s)
            if server_keep_alive_s is not None and server_keep_alive_s != self.keep_alive_s:
                found[props.SERVER_KEEP_ALIVE] = server_keep_alive_s
            if response_information is not None:
                found[props.RESPONSE_INFORMATION] = response_information.encode()
            found |= self._auth_properties(auth_data)
            packet = encode5.connack(session_present, 0, found | encode5.reason_properties(reason_string, user))
            if len(packet) > self.packet_size_out_max:
                packet = encode5.connack(session_present, 0, found)
            if len(packet) > self.packet_size_out_max:
                # It cannot be told what it must know, and may be sent nothing larger [MQTT-3.1.2-24].
                self.say_why(ReasonCode.PACKET_TOO_LARGE, "")
                self.close(Reason.REFUSED)
                return
            self.out.append(packet)
        else:
            self.out.append(connack(session_present, ConnectCode.ACCEPTED))
        if server_keep_alive_s is not None:
            self.keep_alive_s = server_keep_alive_s
        self.challenged = False
        self.state = _CONNECTED
        if released:
            self.out.append(acknowledgements([PUBREL_WORD | packet_id for packet_id in released]))

    def _granted(self, session_expiry_s: int | None) -> Properties:
        """What this server is and allows; what is the standard's default is left out."""
        limits = self.limits
        found: Properties = {
            props.RECEIVE_MAXIMUM: limits.receive_maximum,
            props.MAXIMUM_PACKET_SIZE: limits.packet_size_bytes_max,
            props.TOPIC_ALIAS_MAXIMUM: limits.topic_alias_maximum,
        }
        if session_expiry_s is not None and session_expiry_s != self.session_expiry_s:
            found[props.SESSION_EXPIRY] = self.session_expiry_s = session_expiry_s
        if self.client_id_assigned:
            found[props.ASSIGNED_CLIENT_ID] = self.client_id.encode()
        return found

    def refuse(self, code: int, *, reason_string: str = "", server_reference: str = "") -> None:
        """CONNACK with a `ReasonCode`; the connection must be closed after `take_bytes`."""
        if not self.answers(State.DECIDING):
            return
        if code < FAILURE_MIN:
            raise LocalMisuse(f"a refusal needs a reason code from {FAILURE_MIN:#x} on, not {code:#x}")
        if self.level == LEVEL_3:
            self.out.append(connack(False, CONNECT_CODES.get(code, ConnectCode.SERVER_UNAVAILABLE)))
        else:
            self.say_why(code, reason_string, _reference(server_reference))
        self.close(Reason.REFUSED)

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def acknowledge(self, packet_ids: Iterable[int]) -> None:
        """These publishes are durable: PUBACK or PUBREC, in the order of receipt. Once the session is closed only
        `received_ids` learns of it.
        """
        if self.state is _CONNECTED:
            ready = self.incoming.acknowledge(packet_ids)
            if ready:
                self.out.append(ready)
        elif self.incoming.pending:
            self.incoming.acknowledge(packet_ids)

    def say_unwanted(self, packet_ids: Iterable[int]) -> None:
        """The acknowledgements of these will say 0x10 (no matching subscribers): `acknowledge` follows. LocalMisuse at
        level 4, which has no such answer."""
        if self.level == LEVEL_3:
            raise LocalMisuse("MQTT 3.1.1 cannot say that nobody has subscribed")
        self.incoming.say(packet_ids, bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,)))

    def refuse_publishes(self, packet_ids: Iterable[int], code: int, reason_string: str = "") -> None:
        """PUBACK or PUBREC that say no, in the order of receipt. LocalMisuse at level 4, which has no such answer."""
        if self.level == LEVEL_3:
            raise LocalMisuse("MQTT 3.1.1 cannot refuse a publish; close the connection")
        if self.state is not _CONNECTED:
            return
        reason = reason_string.encode()[:REFUSAL_REASON_BYTES_MAX].decode(errors="ignore")
        explained = self.explained(reason)
        refusal = bytes((code,)) + (props.encode(explained) if explained else b"")
        if len(refusal) + 4 > self.packet_size_out_max:
            refusal = bytes((code,))
        ready = self.incoming.acknowledge(packet_ids, refusal)
        if ready:
            self.out.append(ready)

    def complete(self, packet_ids: Iterable[int]) -> None:
        """PUBCOMP for ids that came in Released: they are forgotten durably."""
        if self.state is _CONNECTED:
            self.out.append(self.incoming.complete(packet_ids))

    def received_ids(self) -> list[int]:
        """QoS 2 ids whose message is durable and whose exchange is not complete: for `accept` of the next
        connection.
        """
        return self.incoming.confirmed()

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def grant(self, packet_id: int, codes: Sequence[int], reason_string: str = "") -> None:
        """SUBACK: per filter the granted QoS or a `ReasonCode` that says no."""
        if self.state is not _CONNECTED:
            return
        if self.level == LEVEL_3:
            self.out.append(suback(packet_id, list(map(suback_code_of_3, codes))))
            return
        packet = encode5.suback(packet_id, codes, self.explained(reason_string))
        fits = len(packet) <= self.packet_size_out_max
        self.out.append(packet if fits else encode5.suback(packet_id, codes))

    def unsubscribed(self, packet_id: int, codes: Sequence[int] = (), reason_string: str = "") -> None:
        """UNSUBACK: per filter SUCCESS, NO_SUBSCRIPTION_EXISTED or a code that says no; 3.1.1 has no codes."""
        if self.state is not _CONNECTED:
            return
        if self.level == LEVEL_3:
            self.out.append(unsuback(packet_id))
            return
        packet = encode5.unsuback(packet_id, codes, self.explained(reason_string))
        fits = len(packet) <= self.packet_size_out_max
        self.out.append(packet if fits else encode5.unsuback(packet_id, codes))

    # -- authentication in steps, and the end --------------------------------------------------------------------------

    def challenge(self, data: bytes | None) -> None:
        """AUTH "continue authentication": the client must answer with one of its own (AuthReceived)."""
        if not self.answers(State.DECIDING, _CONNECTED):
            return
        if self.auth_method is None:
            raise LocalMisuse("a client without an Authentication Method cannot be challenged [MQTT-4.12.0-6]")
        self.out.append(encode5.auth(ReasonCode.CONTINUE_AUTHENTICATION, self._auth_properties(data)))
        self.challenged = True
        if self.state is State.DECIDING:
            self.state = State.AUTHENTICATING

    def reauthenticated(self, data: bytes | None) -> None:
        """AUTH "success": the client is still who it says."""
        if self.answers(_CONNECTED):
            self.challenged = False
            self.out.append(encode5.auth(ReasonCode.SUCCESS, self._auth_properties(data)))

    def _auth_properties(self, data: bytes | None) -> Properties:
        found: Properties = {}
        if self.auth_method is not None:
            found[props.AUTH_METHOD] = self.auth_method.encode()
            if data is not None:
                found[props.AUTH_DATA] = data
        return found

    def disconnect(self, code: int, reason_string: str = "", server_reference: str = "") -> None:
        """DISCONNECT with a `ReasonCode` (MQTT 5), and the end; the connection must be closed after `take_bytes`."""
        if self.state is _CONNECTED and self.level == LEVEL_5:
            self.say_why(code, reason_string, _reference(server_reference))
        self.close(Reason.ENDED)


def _reference(server_reference: str) -> Properties | None:
    return {props.SERVER_REFERENCE: server_reference.encode()} if server_reference else None
