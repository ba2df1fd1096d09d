"""A Spark pipeline from broker to broker for an hour, its memory sampled: does any part of it grow?

    python -m tests.processes.spark_soak --minutes 60 --master 'local[2]'

Samples are of anonymous memory (RssAnon): the driver's Python, all Python processes of Spark below it (planners of
source and sink, workers), the JVM, the two brokers. The median of the last third is compared with that of the middle
one (a process that forks counts twice for a moment); the first third is for warming up. The JVM is shown but not
judged: its heap fills up to its limit before it is collected. At the end every row is accounted for, as in
`spark_kills`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.processes.spark_pipeline import Pipeline

SAMPLE_INTERVAL_S = 10.0
GROWTH_KB_MAX = 16_000
GROWTH_SHARE_MAX = 0.05
"""A part may grow by this much (a table that doubles once) or this share of what it had, whichever is more."""
NOT_JUDGED = "JVM"


def rss_kb(pid: int) -> int:
    """Anonymous memory of a process, 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int((status.partition("RssAnon:")[2].split() or ["0"])[0])


def sample(pipeline: Pipeline) -> dict[str, int]:
    """KB by part."""
    assert pipeline.driver is not None
    found = {"driver": rss_kb(pipeline.driver.pid), NOT_JUDGED: 0, "Python of Spark": 0}
    for process in pipeline.family():
        found[NOT_JUDGED if "java" in process.info["name"] else "Python of Spark"] += rss_kb(process.pid)
    return found | {"source broker": pipeline.source.rss_kb(), "sink broker": pipeline.sink.rss_kb()}


def growth(samples: Sequence[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    """Part → (median of the middle third, median of the last third), in KB."""
    third = len(samples) // 3
    assert third, "too short for a result"
    middle, last = samples[third : 2 * third], samples[-third:]
    return {
        part: (int(median(one[part] for one in middle)), int(median(one[part] for one in last))) for part in samples[0]
    }


def grows(before_kb: int, after_kb: int) -> bool:
    """Whether the memory of a part is not flat."""
    return after_kb - before_kb > max(GROWTH_KB_MAX, GROWTH_SHARE_MAX * before_kb)


def run(pipeline: Pipeline, minutes: float) -> list[dict[str, int]]:
    """Keep the pipeline running and sample its memory."""
    end, samples = time.monotonic() + 60 * minutes, []
    while (now := time.monotonic()) < end:
        # Rows must arrive between two samples; then the rest of the interval passes.
        pipeline.flows(1)
        due = now + min(SAMPLE_INTERVAL_S, 20 * minutes)
        pipeline.until(lambda due=due: time.monotonic() >= due)
        samples.append(sample(pipeline))
        said = ", ".join(f"{part} {size // 1024}" for part, size in samples[-1].items())
        print(f"{len(pipeline.device.taken):>9} rows; MB: {said}", flush=True)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.spark_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-soak-", dir=options.folder) as folder:
        pipeline = Pipeline(Path(folder), options.master)
        try:
            pipeline.start()
            samples = run(pipeline, options.minutes)
            total, repeated = pipeline.account()
        finally:
            pipeline.close()
    print(f"{total} rows, each stored once at either end and taken once; QoS 1 repeated {repeated}")
    growing = []
    for part, (before_kb, after_kb) in growth(samples).items():
        wrong = part != NOT_JUDGED and grows(before_kb, after_kb)
        growing += [part] if wrong else []
        print(f"{part:16} {before_kb / 1024:8.1f} → {after_kb / 1024:8.1f} MB{'  GROWS' if wrong else ''}")
    return 1 if growing or pipeline.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
