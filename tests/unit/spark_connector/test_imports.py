"""Imports of the processes in which Spark plans reads and writes; each is a new one, on a machine that may be busy."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNWANTED = (
    "asyncio", "ssl", "numpy", "pyarrow", "pandas", "aiohttp", "lz4", "zstandard", "cryptography", "google.protobuf",
)  # fmt: skip
"""ssl is for connections with TLS alone."""
PROBE = """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
import {module}
print(*(name for name in {heavy} if name in set(sys.modules) - before))
print(len([name for name in set(sys.modules) - before if name.split(".")[0] in ("spark_connector", "remoting")]))
"""
OWN_MODULES_MAX = 80
"""Of the connector and of remoting, for a stream's source; each is a file to find and to read."""


@pytest.mark.parametrize(
    "module",
    [
        "pyspark_rocketmq",
        "spark_connector.source",
        "spark_connector.reading.stream_reader",
        "spark_connector.writing.writer",
    ],
)
def test_planning_stays_light(module: str) -> None:
    program = PROBE.format(module=module, heavy=UNWANTED)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy, own = done.stdout.split("\n")[:2]
    assert heavy == ""
    assert int(own) <= OWN_MODULES_MAX


def test_the_source_s_process_connects_before_it_imports_the_source() -> None:
    """Spark waits ten seconds for the connection, so no import of LightMQ is part of that wait."""
    program = "import sys, pyspark.sql.streaming.python_streaming_source_runner; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"spark_connector", "pyspark_rocketmq", "remoting", "lightmq"}


def test_columns_do_not_import_pandas() -> None:
    """`pa.array` and `pa.scalar` do, the first time: a second of CPU before the first rows of each Python worker."""
    program = """
import sys
import numpy as np
import pyarrow as pa
from spark_connector.columns.layout import numbers, one
pa.repeat(one(7, pa.int32()), 3), pa.repeat(one("sensor", pa.string()), 3), one(None, pa.binary())
numbers(np.arange(3)), numbers(np.array([True, False]), np.array([False, True]))
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_writer_does_not_import_pandas() -> None:
    """From the columns of a batch to the request body, with every part that a stream's sink writes."""
    program = """
import sys
import numpy as np
import pyarrow as pa
from spark_connector.columns.layout import byte_strings, numbers
from spark_connector.writing.row_encoder import Defaults, encode_rows
text = byte_strings([b"machines/1/commands", b"machines/2/commands"])
pairs = pa.MapArray.from_arrays(numbers(np.array([0, 1, 2], np.int32)), text, text)
delay = numbers(np.array([0, 5], np.int64))
columns = {"mqttTopic": text.cast(pa.string()), "key": text, "body": text, "delay": delay, "properties": pairs}
print(len(encode_rows(columns, 2, Defaults(qos=1, retain=False, born_ms=1))))
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
