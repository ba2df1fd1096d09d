"""The page of metrics has every metric a running installation declares, with kind and labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_proxy.config import ProxyConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "metrics.md"
ROW = re.compile(r"^\| `(rocketmq_\w+)` \| (counter|gauge|histogram) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


async def test_the_page_has_exactly_the_declared_metrics(tmp_path: Path) -> None:
    """Controller, broker and proxy share one registry in `lightmq up`."""
    up = UpConfig(data_directory=tmp_path / "data", remoting_port=0, admin_port=0)
    installation = AllInOne(Configuration(up=up, proxy=ProxyConfig(port=0)))
    await installation.start()
    declared = {each.name: (each.kind, each.labels) for each in installation._registry.metrics()}
    await installation.stop()
    rows = ROW.findall(PAGE.read_text())
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    assert len(documented) == len(rows)
    assert documented == declared
