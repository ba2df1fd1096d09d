"""What all clients of one proxy share, put together: the one place that knows the order in which parts are made.

Invariant: owners come before the notifier and the puller, so that after a reconnection sessions are taken again before
they read. Loop rule: made and used on one event loop.
"""

from __future__ import annotations

from mqtt_proxy.access.contract import AccessControl
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.delivery.delivery_tools import DeliveryTools
from mqtt_proxy.delivery.notify import Notifier
from mqtt_proxy.delivery.offsets import OffsetCommitter
from mqtt_proxy.delivery.pull import Puller
from mqtt_proxy.delivery.pump import Pump
from mqtt_proxy.delivery.record_cache import RecordCache
from mqtt_proxy.link.link import Link
from mqtt_proxy.listening.counters import FrontCounters
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.publishing.publisher import Publisher
from mqtt_proxy.quotas.quotas import Quotas
from mqtt_proxy.sessions.owners import Owners
from mqtt_proxy.sessions.qos2 import Qos2Flows
from mqtt_proxy.sessions.services import Services
from mqtt_proxy.shared.hub import SharedHub
from mqtt_proxy.sys_topics.tree import SysTree
from mqtt_proxy.sys_topics.values import SysValues
from mqtt_proxy.wills.wills import WillJudge
from runtime.clock import Clock


def make_services(
    config: ProxyConfig,
    *,
    link: Link,
    access: AccessControl,
    quotas: Quotas,
    clock: Clock,
    metrics: ProxyMetrics,
    counters: FrontCounters,
) -> Services:
    """The parts that clients of a proxy on this link share."""
    owners = Owners(link, metrics)
    values = SysValues(metrics, counters, clock, lambda: len(owners))
    services = Services(
        config=config,
        metrics=metrics,
        link=link,
        owners=owners,
        tools=_delivery_tools(config, link, clock, metrics),
        publisher=Publisher(link, config, clock, metrics),
        access=access,
        clock=clock,
        quotas=quotas,
        exact=Qos2Flows(link, metrics),
        sys_tree=SysTree(values, link, interval_s=config.sys_interval_s),
    )
    WillJudge(link, access, metrics, send_publishes=services.publisher.hurry, keep=services.keep)
    return services


def _delivery_tools(config: ProxyConfig, link: Link, clock: Clock, metrics: ProxyMetrics) -> DeliveryTools:
    cache = RecordCache(config.cache_bytes_max)
    return DeliveryTools(
        cache,
        Notifier(link, cache),
        Puller(link, cache, config, metrics),
        Pump(),
        OffsetCommitter(link, interval_ms=config.offsets_commit_interval_ms),
        metrics,
        clock,
        SharedHub(link, metrics),
    )
