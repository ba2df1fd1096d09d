"""What holds for every test.

Servers that tests start reserve little disk, in this process and in children, and hear Ctrl-C. Properties are judged by
what they say and never by how long an example takes, which a busy machine decides.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

SEGMENT_SIZE_BYTES = 32 * 1024 * 1024
"""A log file of the default size for each of some hundred short-lived servers would fill a disk."""
RESERVED = {
    "LIGHTMQ_BROKER__STORE__SEGMENT_SIZE_BYTES": SEGMENT_SIZE_BYTES,
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""And Spark's JVMs live too shortly for the optimising compiler: without it the same tests take a third less time."""

for _name, _value in RESERVED.items():
    os.environ.setdefault(_name, str(_value))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is for what a shell runs in the background, and children inherit that; many tests end one by this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("lightmq", settings.default, deadline=None, suppress_health_check=[
    HealthCheck.too_slow,
])  # fmt: skip
settings.load_profile("lightmq")
