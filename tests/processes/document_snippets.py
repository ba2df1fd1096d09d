"""Runs Python blocks of the documents in one Spark session; the parent process sends them as JSON on its input.

Changed for the run: the addresses 127.0.0.1:9876 and ("127.0.0.1", 1883) become the server's, the first of them also
where a block relies on it as the default.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any


def prepared(text: str, server: str, mqtt_port: int) -> str:
    """The block with the server's addresses."""
    text = text.replace('"127.0.0.1", 1883', f'"127.0.0.1", {mqtt_port}')
    if "nameServer" not in text and "bootstrap.servers" not in text:
        text = text.replace('.format("rocketmq")', f'.format("rocketmq").option("nameServer", "{server}")')
    return text.replace("127.0.0.1:9876", server)


def main() -> int:
    """Run every block, those of one document in one namespace; returns the exit status."""
    given = json.loads(sys.stdin.read())
    from lightmq.spark import session

    spark = session("documents", master="local[2]")
    names: dict[str, dict[str, Any]] = {}
    failed = 0
    for document, text in given["snippets"]:
        try:
            code = compile(prepared(text, given["server"], given["mqtt_port"]), document, "exec")
            exec(code, names.setdefault(document, {"__name__": "__main__"}))
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        except Exception:  # whatever a reader could meet
            traceback.print_exc(file=sys.stdout)
            print(f"in {document}:\n{text}")
            failed += 1
    spark.stop()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
