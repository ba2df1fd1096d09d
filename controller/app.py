"""The composition root of a controller: builds every part, joins them, starts and stops them. No decisions.

With `listen=False` it opens no port: the all-in-one takes `handlers`, answers them on its own, and its broker records
what operators do.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from controller.acts import ControllerActs
from controller.api import handlers
from controller.authority import guarded, judge_unserved
from controller.config import ControllerConfig
from controller.consensus.wire import COMMANDS_KNOWN
from controller.control_plane.control_plane import ControlPlane
from controller.name_server.name_server import MetadataFile, NameServer
from remoting import background
from remoting.access.key_policy import KeyPolicy
from remoting.client.connection import signing_dial
from remoting.client.tls import ClientTls
from remoting.server.authorizer import Authorizer
from remoting.server.router import Access, Router, parse_access_keys
from remoting.server.server import RemotingServer
from remoting.transport.certificates import ServerTls
from remoting.transport.contracts import Dial, Handler
from runtime.clock import Clock, SystemClock
from runtime.files import DirectoryLock, WatchedFile, make_directory
from runtime.format_file import check_format
from runtime.logs import get_logger
from runtime.metrics import Registry, RequestTimes, UnsupportedRequests, declare_port_metrics

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, never bound to
"""Wildcard addresses to listen on, and the address that reaches them on this machine."""

FORMAT_KIND, LAYOUT = "lightmq-controller", 1
"""What FORMAT says of a controller's directory, with COMMANDS_KNOWN: no decision that is not known is passed over."""


class ControllerApp:
    """One controller. `start` raises when its directory, its file or its port cannot be had."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        clock: Clock | None = None,
        registry: Registry | None = None,
        listen: bool = True,
        dial_broker: Dial | None = None,
        policy: KeyPolicy | None = None,
    ) -> None:
        """`policy`: the rules of a broker in this process, which keeps them current; without it those of the
        configuration."""
        self.config = config
        self.port = 0
        self.handlers: dict[int, Handler] = {}
        """Request code -> handler; filled by `start`."""
        self._clock = clock or SystemClock()
        self._registry = registry
        self._listen = listen
        self._log = get_logger("controller")
        self._lock: DirectoryLock | None = None
        self._dial_broker = dial_broker or signing_dial(config.access_key_file, ClientTls.of(config.dial_tls))
        self._watched = None
        if policy is None and config.access_list is not None:
            policy = self._watched = KeyPolicy(config.access_list, self._log, WatchedFile)
        self.authorizer = Authorizer(policy)
        """Who may do what."""
        self._name_server: NameServer | None = None
        self._plane: ControlPlane | None = None
        self._acts: ControllerActs | None = None
        self._server: RemotingServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """Once started: the ticks, and perhaps the watch on the access list."""

    @property
    def access(self) -> Access:
        """Who may send requests, as configured."""
        config, policy = self.config, self.authorizer.policy
        return Access(
            parse_access_keys(config.access_keys),
            open_to_all=config.open_to_all,
            keys_count=config.access_list is not None,
            bound_only=config.bound_signatures_only,
            created=policy.secrets if isinstance(policy, KeyPolicy) else None,
        )

    @property
    def name_server(self) -> NameServer:
        """The running name server."""
        assert self._name_server is not None, "the controller is not started"
        return self._name_server

    @property
    def plane(self) -> ControlPlane:
        """The running control plane."""
        assert self._plane is not None, "the controller is not started"
        return self._plane

    async def start(self) -> None:
        """Restore the metadata, then answer requests."""
        config = self.config
        make_directory(config.data_directory)
        self._lock = DirectoryLock(config.data_directory)
        try:
            check_format(config.data_directory, FORMAT_KIND, LAYOUT, COMMANDS_KNOWN, is_used=False)
            self._name_server = NameServer(config, self._clock, MetadataFile(config.data_directory))
            use_users = None if self._watched is None else self._watched.use
            self._plane = ControlPlane(config, self._clock, self._name_server, self._dial_broker, use_users)
            self.handlers = handlers(self._name_server, self._plane, self.authorizer)
            await self._plane.start()
            if self._listen:
                self._acts = self._record_acts()
                self._server = self._make_server()
                if self._registry is not None:
                    declare_port_metrics(self._registry, self._server)
                self.announce(config.host, await self._server.start(config.host, config.port))
            await self._name_server.persister.start()
        except BaseException:
            if self._plane is not None:
                await self._plane.stop()
            self._lock.close()
            raise
        self._tasks.append(background.task(self._tick(), "forgets dead brokers"))
        if self._watched is not None:
            self._tasks.append(background.task(self._watched.keep_current(), "watches the access list"))
        if self._registry is not None:
            declare_metrics(self._registry, self)

    def announce(self, host: str, port: int) -> None:
        """The address at which clients reach this controller; given by the caller when it does not listen itself."""
        self.port = port
        self.plane.announce(ANYWHERE.get(host, host), port)

    async def stop(self) -> None:
        """Stop answering, write what is not written, free the directory."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._plane is not None:
            self._plane.masters.stopping = True
        if self._server is not None:
            await self._server.stop()
        if self._plane is not None:
            await self._plane.stop()
        if self._acts is not None:
            await self._acts.stop()
        if self._name_server is not None:
            await self._name_server.persister.stop()
        if self._lock is not None:
            self._lock.close()

    def reload(self) -> None:
        """Read the certificate again; what is wrong is logged and the old one stays."""
        if self._server is not None:
            self._server.reload()

    def ready(self) -> bool:
        """Whether it answers requests and a leading controller is known."""
        return bool(self._tasks) and not self._tasks[0].done() and self.plane.ready()

    def unready_reason(self) -> str:
        """Why it is not ready; empty when it is."""
        if not self._tasks or self.plane.ready():
            return ""
        return self.plane.engine.obstacle or "it knows no leader or has not caught up yet: a majority must run"

    async def until_failed(self) -> Exception:
        """Wait until it cannot write its journal any more; return why."""
        return await self.plane.engine.until_failed()

    def status(self) -> dict[str, object]:
        """A picture for the administration page."""
        metadata = self.name_server.metadata
        return {
            "port": self.port,
            "brokers": {name: sorted(group.members) for name, group in metadata.groups.items()},
            "topics": len(metadata.topics),
            "connections": len(self._server.peers) if self._server is not None else 0,
            "metadata_write_failures": self.name_server.persister.failures,
            "control_plane": self.plane.status(),
        }

    def _record_acts(self) -> ControllerActs:
        """Have the acts among the requests recorded, and listed."""
        acts = ControllerActs(
            self.config.data_directory, self.config.audit_retention_ms, self.config.node_id, clock=self._clock,
            log=self._log, authorizer=self.authorizer, registry=self._registry,
        )  # fmt: skip
        listing = guarded(acts.handlers(), self.authorizer, self.name_server.state.member_of)
        self.handlers = {**acts.watching(self.handlers), **listing}
        return acts

    def _make_server(self) -> RemotingServer:
        config, access = self.config, self.access
        registry = self._registry or Registry()
        not_offered = UnsupportedRequests(registry, self._clock, self._log).record
        return RemotingServer(
            Router(
                self.handlers,
                access=access,
                not_offered=not_offered,
                judge_unserved=partial(judge_unserved, self.authorizer),
                took=RequestTimes(registry),
            ),
            frame_size_bytes_max=config.frame_size_bytes_max,
            output_bytes_max=config.connection_output_bytes_max,
            connections_max=config.connections_max,
            tls=ServerTls.of(config.tls),
            access=access,
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.liveness_scan_ms / 1000)
            try:
                self.name_server.tick()
            except Exception as error:  # noqa: BLE001 - the next tick may go well, silent brokers must not stay for ever
                self._log.error("tick_failed", exc_info=error)


def declare_metrics(registry: Registry, app: ControllerApp) -> None:
    """What a controller shows on the metrics page."""
    name_server = app.name_server
    counter, gauge = registry.counter, registry.gauge
    gauge("rocketmq_controller_brokers", "Broker addresses in the routes", function=lambda: len(name_server.liveness))
    gauge("rocketmq_controller_topics", "Topics in the routes", function=lambda: len(name_server.metadata.topics))
    counter(
        "rocketmq_controller_metadata_write_failures_total",
        "Writes of the metadata file that failed since the start",
        function=lambda: name_server.persister.failures,
    )
    declare_plane_metrics(registry, app.plane)


def declare_plane_metrics(registry: Registry, plane: ControlPlane) -> None:
    """What controller mode shows on the metrics page."""
    counter, gauge = registry.counter, registry.gauge
    counters, groups = plane.masters.counters, plane.machine

    def total(name: str) -> float:
        return float(str(plane.engine.status().get(name, 0)))

    gauge(
        "rocketmq_controller_leading", "1 on the controller that leads", function=lambda: float(plane.engine.is_leader)
    )
    gauge("rocketmq_controller_term", "Term of the controllers' consensus", function=lambda: total("term"))
    gauge("rocketmq_controller_log_entries", "Entries in the journal", function=lambda: total("log_entries"))
    gauge("rocketmq_controller_groups", "Broker groups in controller mode", function=lambda: len(groups.groups))
    gauge(
        "rocketmq_controller_groups_without_master",
        "Broker groups that had a master and have none",
        function=lambda: sum(each.master is None and each.master_epoch > 0 for each in groups.groups.values()),
    )
    gauge(
        "rocketmq_controller_sync_state_set_size_min",
        "Replicas in the smallest SyncStateSet",
        function=lambda: min((len(each.in_sync) for each in groups.groups.values()), default=0),
    )
    counter("rocketmq_controller_elections_won_total", "Masters chosen since the start", function=lambda: counters.won)
    counter(
        "rocketmq_controller_elections_failed_total", "Elections without a winner", function=lambda: counters.failed
    )
    counter("rocketmq_controller_role_pushes_total", "Roles pushed to brokers", function=lambda: plane.roles.pushed)
    counter(
        "rocketmq_controller_route_pushes_total", "Routes pushed to subscribers", function=lambda: plane.routes.pushed
    )
    gauge("rocketmq_controller_route_subscribers", "Subscribers of routes", function=lambda: len(plane.routes))
