"""The Spark program of the test with two broker groups: numbered rows for one topic, written under one version.

Runs as a process of its own, which the test kills with everything below it; run again with the same arguments it writes
the same rows under the same name. Its progress is on its standard output.
"""

from __future__ import annotations

import argparse
import sys

from lightmq.spark import session


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--version", required=True)
    options = parser.parse_args()
    spark = session("two-groups", master="local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(0, options.rows, 1, 2).selectExpr("rpad(cast(id AS string), 200, ' ') AS body")
    print("writing", flush=True)
    writer = rows.write.format("rocketmq").mode("append").options(nameServer=options.server, topic="orders")
    writer.options(txnAppId="app", txnVersion=options.version).save()
    print("written", flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
