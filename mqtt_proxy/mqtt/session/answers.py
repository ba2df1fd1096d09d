"""The part of a session that answers requests: CONNACK, acknowledgements, SUBACK, UNSUBACK, AUTH, DISCONNECT.

The owner always uses the reason codes of MQTT 5; codes that 3.1.1 does not have are translated or left out here.
Invariant: calls after the end are ignored, as the two may cross; a call in a status where it makes no sense is
LocalMisuse. Loop rule: one event loop, no locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.encode import (
    PUBREL_WORD,
    acknowledgements,
    auth5,
    connack,
    connack5,
    reason_properties,
    suback,
    suback5,
    unsuback,
    unsuback5,
)
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
from mqtt_proxy.mqtt.session.session_state import SessionState, Status
from remoting.protocol.errors import LocalMisuse

REFUSAL_REASON_BYTES_MAX = 100
"""Longest reason string of a refused publish, in UTF-8; longer ones are cut."""

User = Sequence[tuple[bytes, bytes]]

_CONNECTED = Status.CONNECTED  # looking up a member of an enumeration is slow


class Answers:
    """Answers to the client of one session."""

    __slots__ = ("_session",)

    def __init__(self, session: SessionState) -> None:
        self._session = session

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
        `session_expiry_s`: the granted value when it differs from the requested one. `server_keep_alive_s` replaces the
        client's keep-alive; 3.1.1 has no field for it.
        """
        session = self._session
        if not session.expects(Status.DECIDING):
            return
        if session_present and session.terms.clean:
            raise LocalMisuse("a clean session has nothing present [MQTT-3.2.2-1]")
        released = session.outgoing.restore(inflight)
        session.incoming.restore(received_ids)
        if session.terms.level == LEVEL_5:
            found = self._granted(session_expiry_s)
            if server_keep_alive_s is not None and server_keep_alive_s != session.terms.keep_alive_s:
                found[props.SERVER_KEEP_ALIVE] = server_keep_alive_s
            if response_information is not None:
                found[props.RESPONSE_INFORMATION] = response_information.encode()
            found |= self._auth_properties(auth_data)
            packet = connack5(session_present, 0, found | reason_properties(reason_string, user))
            if len(packet) > session.terms.packet_size_out_max:
                packet = connack5(session_present, 0, found)
            if len(packet) > session.terms.packet_size_out_max:
                # Its limit forbids the packet with what it must know [MQTT-3.1.2-24].
                session.say_why(ReasonCode.PACKET_TOO_LARGE, "")
                session.close(Reason.REFUSED)
                return
            session.out.append(packet)
        else:
            session.out.append(connack(session_present, ConnectCode.ACCEPTED))
        if server_keep_alive_s is not None:
            session.terms.keep_alive_s = server_keep_alive_s
        session.challenged = False
        session.status = _CONNECTED
        if released:
            session.out.append(acknowledgements([PUBREL_WORD | packet_id for packet_id in released]))

    def _granted(self, session_expiry_s: int | None) -> Properties:
        """The server's properties and limits; the standard's defaults are left out."""
        session = self._session
        limits = session.limits
        found: Properties = {
            props.RECEIVE_MAXIMUM: limits.receive_maximum,
            props.MAXIMUM_PACKET_SIZE: limits.packet_size_bytes_max,
            props.TOPIC_ALIAS_MAXIMUM: limits.topic_alias_maximum,
        }
        if session_expiry_s is not None and session_expiry_s != session.terms.session_expiry_s:
            found[props.SESSION_EXPIRY] = session.terms.session_expiry_s = session_expiry_s
        if session.terms.client_id_assigned:
            found[props.ASSIGNED_CLIENT_ID] = session.terms.client_id.encode()
        return found

    def refuse(self, code: int, *, reason_string: str = "", server_reference: str = "") -> None:
        """CONNACK with a `ReasonCode`; the connection must be closed after `take_bytes`."""
        session = self._session
        if not session.expects(Status.DECIDING):
            return
        if code < FAILURE_MIN:
            raise LocalMisuse(f"a refusal needs a reason code from {FAILURE_MIN:#x} on, not {code:#x}")
        if session.terms.level == LEVEL_3:
            session.out.append(connack(False, CONNECT_CODES.get(code, ConnectCode.SERVER_UNAVAILABLE)))
        else:
            session.say_why(code, reason_string, _reference(server_reference))
        session.close(Reason.REFUSED)

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def acknowledge(self, packet_ids: Iterable[int]) -> None:
        """These publishes are durable: PUBACK or PUBREC, in the order of receipt. Once the session is closed only
        `received_ids` is updated.
        """
        session = self._session
        if session.status is _CONNECTED:
            ready = session.incoming.acknowledge(packet_ids)
            if ready:
                session.out.append(ready)
        elif session.incoming.pending:
            session.incoming.acknowledge(packet_ids)

    def say_unwanted(self, packet_ids: Iterable[int]) -> None:
        """The acknowledgements of these will carry 0x10 (no matching subscribers): `acknowledge` follows. LocalMisuse
        at level 4, which has no such code."""
        session = self._session
        if session.terms.level == LEVEL_3:
            raise LocalMisuse("MQTT 3.1.1 has no code for missing subscribers")
        session.incoming.say(packet_ids, bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,)))

    def refuse_publishes(self, packet_ids: Iterable[int], code: int, reason_string: str = "") -> None:
        """PUBACK or PUBREC with a failure code, in the order of receipt. LocalMisuse at level 4, which has no such
        answer."""
        session = self._session
        if session.terms.level == LEVEL_3:
            raise LocalMisuse("MQTT 3.1.1 cannot refuse a publish; close the connection")
        if session.status is not _CONNECTED:
            return
        reason = reason_string.encode()[:REFUSAL_REASON_BYTES_MAX].decode(errors="ignore")
        explained = session.explained(reason)
        refusal = bytes((code,)) + (props.encode(explained) if explained else b"")
        if len(refusal) + 4 > session.terms.packet_size_out_max:
            refusal = bytes((code,))
        ready = session.incoming.acknowledge(packet_ids, refusal)
        if ready:
            session.out.append(ready)

    def complete(self, packet_ids: Iterable[int]) -> None:
        """PUBCOMP for ids from Released: they are forgotten durably."""
        session = self._session
        if session.status is _CONNECTED:
            session.out.append(session.incoming.complete(packet_ids))

    def received_ids(self) -> list[int]:
        """QoS 2 ids whose message is durable and whose exchange is not complete: for `accept` of the next
        connection.
        """
        return self._session.incoming.confirmed()

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def grant(self, packet_id: int, codes: Sequence[int], reason_string: str = "") -> None:
        """SUBACK: per filter the granted QoS or a `ReasonCode` of refusal."""
        session = self._session
        if session.status is not _CONNECTED:
            return
        if session.terms.level == LEVEL_3:
            session.out.append(suback(packet_id, list(map(suback_code_of_3, codes))))
            return
        packet = suback5(packet_id, codes, session.explained(reason_string))
        fits = len(packet) <= session.terms.packet_size_out_max
        session.out.append(packet if fits else suback5(packet_id, codes))

    def unsubscribed(self, packet_id: int, codes: Sequence[int] = (), reason_string: str = "") -> None:
        """UNSUBACK: per filter SUCCESS, NO_SUBSCRIPTION_EXISTED or a code of refusal; 3.1.1 has no codes."""
        session = self._session
        if session.status is not _CONNECTED:
            return
        if session.terms.level == LEVEL_3:
            session.out.append(unsuback(packet_id))
            return
        packet = unsuback5(packet_id, codes, session.explained(reason_string))
        fits = len(packet) <= session.terms.packet_size_out_max
        session.out.append(packet if fits else unsuback5(packet_id, codes))

    # -- authentication in steps, and the end --------------------------------------------------------------------------

    def challenge(self, data: bytes | None) -> None:
        """AUTH "continue authentication": the client must answer with one of its own (AuthReceived)."""
        session = self._session
        if not session.expects(Status.DECIDING, _CONNECTED):
            return
        if session.terms.auth_method is None:
            raise LocalMisuse("a client without an Authentication Method cannot be challenged [MQTT-4.12.0-6]")
        session.out.append(auth5(ReasonCode.CONTINUE_AUTHENTICATION, self._auth_properties(data)))
        session.challenged = True
        if session.status is Status.DECIDING:
            session.status = Status.AUTHENTICATING

    def reauthenticated(self, data: bytes | None) -> None:
        """AUTH "success": the client has authenticated again."""
        session = self._session
        if session.expects(_CONNECTED):
            session.challenged = False
            session.out.append(auth5(ReasonCode.SUCCESS, self._auth_properties(data)))

    def _auth_properties(self, data: bytes | None) -> Properties:
        session = self._session
        found: Properties = {}
        if session.terms.auth_method is not None:
            found[props.AUTH_METHOD] = session.terms.auth_method.encode()
            if data is not None:
                found[props.AUTH_DATA] = data
        return found

    def disconnect(self, code: int, reason_string: str = "", server_reference: str = "") -> None:
        """DISCONNECT with a `ReasonCode` (MQTT 5), and the end; the connection must be closed after `take_bytes`."""
        session = self._session
        if session.status is _CONNECTED and session.terms.level == LEVEL_5:
            session.say_why(code, reason_string, _reference(server_reference))
        session.close(Reason.ENDED)


def _reference(server_reference: str) -> Properties | None:
    return {props.SERVER_REFERENCE: server_reference.encode()} if server_reference else None
