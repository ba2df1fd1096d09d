"""Keeps a replica known to the name servers, and asks them who else of its group is alive (103, 904, 901, 104, 905).

Once an interval each connected name server gets a light heartbeat and the question for the group's members, in this
order over one connection; a registration takes the heartbeat's place where the name server does not know this broker. A
registration has no topics, those are the master's to define, until this broker stands in: a name server that is new
knows none. A push (905) is a reason to ask at once.

A replica that may not stand in is present as one that only reads: the routes name it, since nobody else would, and it
asks for no list. The replicas of a group with controllers are named by these, which hear their heartbeats anyway.

Invariant: what `StandIn` is given was asked for after this broker's last sign of life. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.acting.view import ActingVerdict, Place, StandIn
from remoting import background, clock
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import (
    READS_ONLY_FIELD,
    DataVersion,
    MemberGroupBody,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    encode_body,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

if TYPE_CHECKING:
    from broker.config import BrokerConfig

LIFETIMES = 10
"""A name server counts this broker as dead after missing this many heartbeats; see `lease_ms`."""
LEASE_MS_MAX = 2_000
"""Longest time for which a list counts; name servers list a broker whose connection broke for longer
(`controller.broker_lost_grace_ms`)."""


def lease_ms(config: BrokerConfig) -> int:
    """How long a list of members counts: no longer than a name server lists a broker that has fallen silent."""
    return min(LEASE_MS_MAX, config.replication.heartbeat_timeout_ms)


class GroupPresence:
    """One replica at the name servers."""

    def __init__(
        self,
        config: BrokerConfig,
        controllers: Controllers,
        *,
        epoch: Callable[[], int],
        topics: Callable[[], dict[str, TopicConfig]],
        master_heard: Callable[[], bool],
        log: Any,
    ) -> None:
        """`controllers`: connections to them, which others use too.

        `epoch`: the newest master epoch known. `topics`: those that the log has.
        """
        self.verdict = ActingVerdict.OFF
        """As it was logged last."""
        self._config, self._controllers, self._log = config, controllers, log
        self._epoch, self._topics, self._master_heard = epoch, topics, master_heard
        self._may_act = config.replication.acting_master
        self._stand_in = StandIn(lease_ms(config))
        self._is_known = False
        self.begun = 0
        """How often this broker began to stand in: the version of its topics."""
        self._started_ms = clock.now_ms()
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        controllers.on_up(lambda _address, _connection: self._register_again())
        controllers.on_push(self._pushed)

    def acts(self) -> bool:
        """Whether this broker stands in for the master at this moment."""
        if not self._may_act:
            return False
        verdict = self._stand_in.verdict(_now_ms(), master_heard=self._master_heard())
        if verdict is not self.verdict:
            acted, self.verdict = self.verdict is ActingVerdict.ACTS, verdict
            if verdict is ActingVerdict.ACTS:
                self._log.warning("acts_for_the_master", epoch=self._epoch())
                self.begun += 1
                self._register_again()
            elif acted:
                self._log.warning("acts_no_longer", reason=verdict.value)
        return verdict is ActingVerdict.ACTS

    def others(self) -> set[str]:
        """Addresses of the group's other replicas that a name server lists now."""
        return self._stand_in.others(_now_ms())

    def start(self) -> None:
        """Begin to send heartbeats, as soon as there is a place to be at."""
        self._task = background.task(self._run(), "sends the heartbeats of an acting replica")

    async def stop(self) -> None:
        """Leave the lists of the name servers; waits for their answers, if they answer in time."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        place = self._stand_in.place
        self.become(None)
        if place is not None:
            await self._leave(place)

    def become(self, place: Place | None) -> None:
        """Be a replica at this place; None: the master, which registers by itself."""
        if place != self._stand_in.place:
            self._stand_in.become(place, _now_ms())
            self.acts()
            self._register_again()

    # -- the name servers ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        interval_s = self._config.replication.heartbeat_interval_ms / 1_000
        while True:
            self._due.clear()
            place = self._stand_in.place
            if place is not None:
                self._show(place)
                if self._may_act:
                    self._ask()
            self.acts()  # a list may have expired
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._due.wait()

    def _register_again(self) -> None:
        self._is_known = False
        self._due.set()

    def _show(self, place: Place) -> None:
        make = self._heartbeat if self._is_known else self._registration
        self._is_known = True
        self._call(partial(make, place), self._shown)

    def _shown(self, address: str, answer: Command | None) -> None:
        if answer is not None and answer.code != 0:
            self._is_known = False
            self._log.info("presence_refused", controller=address, code=answer.code, remark=answer.remark)

    def _ask(self) -> None:
        config = self._config
        fields = {"clusterName": config.cluster_name, "brokerName": config.broker_name}

        def question() -> Command:
            return Command(RequestCode.GET_BROKER_MEMBER_GROUP, fields=dict(fields))

        self._call(question, partial(self._listed, _now_ms()))

    def _listed(self, asked_ms: int, address: str, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            return
        try:
            group = decode_body(answer.body, MemberGroupBody).broker_member_group
        except LightMQError as error:
            self._log.info("member_list_unreadable", controller=address, error=str(error))
            return
        self._stand_in.listed(address, group.broker_addrs if group is not None else {}, asked_ms, _now_ms())
        self.acts()

    def _pushed(self, command: Command) -> None:
        if command.code != RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE:
            return
        fields = command.fields
        smallest = fields.get("minBrokerId", "")
        if fields.get("brokerName") == self._config.broker_name and smallest.isascii() and smallest.isdigit():
            self._stand_in.smallest_changed(int(smallest[:19]), _now_ms())
            self.acts()
            self._due.set()

    async def _leave(self, place: Place) -> None:
        waiting = asyncio.Event()
        count = 0

        def make() -> Command:
            nonlocal count
            count += 1
            return Command(RequestCode.UNREGISTER_BROKER, fields=self._identity(place))

        def answered(_address: str, _answer: Command | None) -> None:
            waiting.set()

        self._call(make, answered)
        if count and self._controllers.reachable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.replication.request_timeout_ms / 1_000):
                    await waiting.wait()

    def _call(self, make: Callable[[], Command], answered: Callable[[str, Command | None], None]) -> None:
        try:
            self._controllers.call_all(make, answered)
        except LightMQError as error:
            self._log.info("presence_not_sent", error=str(error))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _identity(self, place: Place) -> dict[str, str]:
        config = self._config
        return {
            "clusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": place[1],
            "brokerId": str(place[0]),
        }

    def _registration(self, place: Place) -> Command:
        topics = self._topics() if self.verdict is ActingVerdict.ACTS else {}
        body = RegisterBrokerBody(TopicConfigTable(topics, DataVersion(self._epoch(), self._started_ms, self.begun)))
        command = Command(RequestCode.REGISTER_BROKER, fields=self._identity(place), body=encode_body(body))
        command.fields |= {
            "haServerAddr": "",
            "compressed": "false",
            "bodyCrc32": "0",
            "enableActingMaster": str(self._may_act).lower(),
            READS_ONLY_FIELD: str(not self._may_act).lower(),
            "heartbeatTimeoutMillis": str(self._timeout_ms),
        }
        return command

    def _heartbeat(self, place: Place) -> Command:
        # Without the id: the controllers count other heartbeats (`ReplicasManager`).
        config = self._config
        fields = {"clusterName": config.cluster_name, "brokerName": config.broker_name, "brokerAddr": place[1]}
        fields["heartbeatTimeoutMills"] = str(self._timeout_ms)  # RocketMQ's own spelling in this request
        return Command(RequestCode.BROKER_HEARTBEAT, fields=fields)

    @property
    def _timeout_ms(self) -> int:
        settings = self._config.replication
        return max(settings.heartbeat_interval_ms * LIFETIMES, settings.heartbeat_timeout_ms)


def _now_ms() -> int:
    return clock.monotonic_ns() // 1_000_000
