"""A controller and the brokers behind it on one loopback port: requests of the cluster commands, and their changes."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from remoting.protocol.bodies.controller_body import (
    BrokerData,
    CleanBrokerData,
    ClusterInfo,
    ControllerMetadata,
    ElectMasterHeader,
    EpochCache,
    EpochRange,
    GroupState,
    MasterHeader,
    ReplicaState,
    SyncStateData,
    encode_body,
    from_fields,
    to_fields,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import Router
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Peer


class FakeController:
    """Group broker-a: broker 1 is master, 2 in sync, 3 is neither in sync nor alive."""

    def __init__(self) -> None:
        self.leads = True
        self.other = "h:1"
        """Address of the other controller; nobody is there."""
        self.leader: str | None = None
        """Address it names when it does not lead."""
        self.is_controller = True
        self.in_sync, self.behind = [1, 2], [3]
        self.alive = {1, 2}
        self.master: int | None = 1
        self.elections: list[ElectMasterHeader] = []
        self.removals: list[CleanBrokerData] = []
        self.refusal = 0
        self.tells_epochs = True
        self.settings = "store.flush=sync\nreplication.enabled=False"
        self.lone: list[str] = []
        """Names of brokers that are in no group."""
        self.mqtt_group = ""
        self.proxies: list[str] = []
        """Names of proxies that are connected to every broker."""
        self.away: list[str] = []
        """Names of groups of which no broker is registered."""
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        handlers = {
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._states,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CLEAN_BROKER_DATA: self._clean,
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epochs,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.FORGET_GROUP: self._forget,
            RequestCode.MOVE_MQTT: self._move_mqtt,
            RequestCode.PROXY_LIST: self._list_proxies,
        }
        self._server = RemotingServer(Router(handlers))
        self.port = self._loop.run_until_complete(self._server.start("127.0.0.1", 0))
        started.set()
        self._loop.run_forever()
        self._loop.close()

    def _metadata(self, _: Peer, command: Command) -> Command:
        if not self.is_controller:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no such request")
        leader = self.address if self.leads else self.leader
        header = ControllerMetadata(
            "g", "n1" if leader else None, leader, self.leads, f"n1-{self.address};n2-{self.other}"
        )
        return command.reply(fields=to_fields(header))

    def _states(self, _: Peer, command: Command) -> Command:
        if not self.leads:
            return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, "somebody else leads")

        def replicas(ids: list[int]) -> list[ReplicaState]:
            return [ReplicaState("broker-a", each, self.address, each in self.alive) for each in ids]

        address = self.address if self.master is not None else None
        state = GroupState(self.master, address, 7, 9, replicas(self.in_sync), replicas(self.behind))
        names = msgspec.json.decode(command.body, type=list[str])
        table = {"broker-a": state} if not names or "broker-a" in names else {}
        return command.reply(body=msgspec.json.encode(SyncStateData(table)))

    def _elect(self, _: Peer, command: Command) -> Command:
        self.elections.append(from_fields(command.fields, ElectMasterHeader))
        if self.refusal:
            return command.reply(self.refusal, "no")
        return command.reply(fields=to_fields(MasterHeader(8, 10, 2, "host:2")))

    def _cluster(self, _: Peer, command: Command) -> Command:
        addresses = {} if "broker-a" in self.away else {0: self.address}
        data = BrokerData(cluster="plant", broker_name="broker-a", broker_addrs=addresses)
        alone = {
            name: BrokerData(cluster="plant", broker_name=name, broker_addrs={0: self.address}) for name in self.lone
        }
        away = {name: BrokerData(cluster="plant", broker_name=name, broker_addrs={}) for name in self.away}
        table = {"broker-a": data, **alone, **away}
        return command.reply(body=encode_body(ClusterInfo(table, mqtt_group=self.mqtt_group)))

    def _move_mqtt(self, _: Peer, command: Command) -> Command:
        assert command.fields["heldName"] == self.mqtt_group
        self.mqtt_group = command.fields["brokerName"]
        return command.reply()

    def _list_proxies(self, _: Peer, command: Command) -> Command:
        return command.reply(body=msgspec.json.encode({"proxies": self.proxies}))

    def _forget(self, _: Peer, command: Command) -> Command:
        self.away.remove(command.fields["brokerName"])
        return command.reply()

    def _config(self, _: Peer, command: Command) -> Command:
        return command.reply(body=self.settings.encode())

    def _clean(self, _: Peer, command: Command) -> Command:
        self.removals.append(from_fields(command.fields, CleanBrokerData))
        return command.reply()

    def _epochs(self, _: Peer, command: Command) -> Command:
        if not self.tells_epochs:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no such request")
        cache = EpochCache("c", "broker-a", 1, [EpochRange(5, 0, 100), EpochRange(7, 100, 160)], 160)
        return command.reply(body=msgspec.json.encode(cache))
