"""WILL_WATCH, WILL_DUE, WILL_VERDICT (9015, 9017, 9018): a will that is due becomes a message, once.

    due -> WILL_DUE to one proxy -> WILL_VERDICT -> message and removal in one append -> the proxy's reply

A proxy registers with WILL_WATCH as a judge of wills. The proxy of the will's client is the first to get WILL_DUE,
because it may still be sending what that client published before; without a verdict in `will_verdict_ms` the next proxy
is tried. While there is no proxy, or the disk is full, a will stays due. A denied or impossible will is counted and
logged. Invariant: no will is published without a verdict, none twice. Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.requests.tools import Feature, RequestTools
from broker.store.errors import StoreError
from broker.store.placed import Placed
from broker.wills.wills import StoredWill, Wills
from remoting.access.rights import SESSION
from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.session_body import WillDue, WillVerdict
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from broker.wills.wills import Wills
    from runtime.clock import Clock

ASKED_PER_RUN_MAX = 1_024
"""Wills sent to proxies in one run; the others follow after `RUN_PAUSE_MS`, so that many do not block the loop."""
RUN_PAUSE_MS = 10


class WillVerdicts:
    """Sends wills that are due to proxies for a verdict."""

    def __init__(self, wills: Wills, clock: Clock, *, verdict_ms: int) -> None:
        """`verdict_ms`: how long a proxy may take before another one is tried."""
        self._wills = wills
        self._clock = clock
        self._verdict_ms = verdict_ms
        self._judges: dict[Peer, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def watch(self, peer: Peer) -> None:
        """Register a proxy as a judge until its connection ends."""
        if peer not in self._judges:
            self._judges[peer] = None
            peer.on_close(lambda _reason: self._judges.pop(peer, None))
            self.run()

    def run(self) -> None:
        """Request verdicts for the wills that are due now, and run again when the next one is."""
        wills = self._wills
        if wills.next_due_ms() is None or not self._judges:
            return
        now_ms = self._clock.now_ms()
        for asked, will in enumerate(wills.due(now_ms), 1):
            self._ask(will)
            wills.later(will, now_ms + self._verdict_ms)
            if asked >= ASKED_PER_RUN_MAX:
                break
        due_ms = wills.next_due_ms()
        if due_ms is not None:
            self._come_back(max(due_ms, now_ms + RUN_PAUSE_MS), now_ms)

    def _ask(self, will: StoredWill) -> None:
        spec = will.record().spec
        judge = will.proxy if will.proxy in self._judges else next(iter(self._judges))
        will.proxy = None  # a proxy that does not answer is not tried first again
        self._judges[judge] = self._judges.pop(judge)
        body = encode(WillDue(will.client_id, will.epoch, spec.topic, spec.qos, spec.retain, spec.author))
        judge.send(Command(Code.WILL_DUE, flag=FLAG_ONEWAY, body=body))

    def _come_back(self, at_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1_000, self._awake)

    def _awake(self) -> None:
        self._timer = None
        self.run()

    def stop(self) -> None:
        """Send nothing more."""
        self._judges.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WillFeature(Feature):
    """Wills of connections, from SESSION_OPEN to their message."""

    def __init__(self, tools: RequestTools, wills: Wills, *, appender: Appender, placement: Placement) -> None:
        self.table = wills
        self.verdicts = WillVerdicts(wills, tools.clock, verdict_ms=tools.config.will_verdict_ms)
        self._tools = tools
        self._appender = appender
        self._placement = placement

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: WILL_WATCH, WILL_VERDICT."""
        return {Code.WILL_WATCH: self.will_watch, Code.WILL_VERDICT: self.will_verdict}

    def stop(self) -> None:
        """Send wills to no proxy any more."""
        self.verdicts.stop()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Request verdicts for wills that became due with the end of their sessions."""
        del now_ms
        self.verdicts.run()
        return {}

    def will_watch(self, peer: Peer, command: Command) -> Command:
        """WILL_WATCH: register a proxy as a judge of wills."""
        self._tools.authorizer.authorize(peer, command, SESSION, "wills")
        self.verdicts.watch(peer)
        return command.reply()

    def will_verdict(self, peer: Peer, command: Command) -> None:
        """WILL_VERDICT: publish or drop a will; a verdict about one that no longer exists changes nothing."""
        verdict = decode(WillVerdict, command.body)
        self._tools.authorizer.authorize(peer, command, SESSION, verdict.client_id)
        will = self.table.get(verdict.client_id, verdict.epoch)
        if will is not None and will.is_asked:
            self._appender.flush()
            if verdict.allowed:
                self._publish(will)
            else:
                self._drop(will, "denied", verdict.reason)
        self._tools.answers.reply_at(self._tools.store.end_position, peer, command.reply())

    def _publish(self, will: StoredWill) -> None:
        try:
            message = self._message(will)
        except StoreError:
            raise
        except LightMQError as error:
            self._drop(will, "refused", str(error))
            return
        wills = self.table
        removal = wills.remove(will)
        try:
            self._tools.store.append(message, changes=[removal])
        except LocalMisuse as error:
            wills.keep(will)
            self._drop(will, "refused", str(error))
        except StoreError:
            wills.keep(will)
            raise
        else:
            self._tools.metrics.messages_in.value += 1
            self._tools.metrics.wills.child("published").value += 1

    def _drop(self, will: StoredWill, outcome: str, reason: str) -> None:
        self._tools.store.append_state([self.table.remove(will)])
        self._tools.metrics.wills.child(outcome).value += 1
        self._tools.log.warning("will_not_published", client_id=will.client_id, outcome=outcome, reason=reason)

    def _message(self, will: StoredWill) -> Placed:
        """The will as a placed publish of its client. Raises Refused or LocalMisuse when that is not possible."""
        spec = will.record().spec
        image = encode_image(
            flags=spec.qos | FLAG_MQTT | (FLAG_RETAIN if spec.retain else 0),
            born_ms=self._tools.clock.now_ms(),
            topic=parent_topic(spec.topic),
            properties=[(MQTT_TOPIC_KEY, spec.topic), (CLIENT_ID_KEY, will.client_id.encode()), *spec.properties],
            body=spec.payload,
        )
        return self._placement.placed(image)
