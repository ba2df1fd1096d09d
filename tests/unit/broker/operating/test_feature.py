"""What the feature adds to its requests: figures for the status page."""

from __future__ import annotations

from broker.operating.feature import OperatingFeature
from remoting.protocol.bodies.operating_body import ProxyPresent, SparkReport, encode
from remoting.protocol.frames.codes import RequestCode as Code
from tests.unit.broker.operating.asking import asked


async def test_proxies_and_queries_are_counted(running) -> None:
    (feature,) = [one for one in running.broker.features if isinstance(one, OperatingFeature)]
    assert feature.status() == {"proxies": 0, "spark_queries": 0}
    await asked(running, Code.PROXY_PRESENT, encode(ProxyPresent("p", "1", 0, {"tcp": 1})))
    await asked(running, Code.SPARK_REPORT, encode(SparkReport("q", "r", "n", "running")))
    status = await asked(running, Code.CLUSTER_STATUS)
    assert (status["proxies"], status["spark_queries"]) == (1, 1)
