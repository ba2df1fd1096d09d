"""What the stories share: server, devices, Spark, live view, claims and picture, around each one's own part.

An example is one script: a simulator, a pipeline, claims and a picture, handed to `run(Example(...))`. Its process runs
the devices and the view; Spark runs in a child, the same script started with `--driver`, so that either can be killed.

    script ── lightmq up ── Gateways (paho-mqtt) ── the log ── child: lightmq.spark.session + the example's queries
       └── view, claims, picture  <── Parquet that Spark committed

Invariant: claims are computed from what the devices sent and what lies on disk, never from the view's own counters.
Examples may be copied with this folder beside them; only `lightmq[examples]` has to be installed.
"""

from kit import extras

extras.require()

from kit.claims import Claim, equal, holds, read_rows
from kit.devices import Gateways, Inbox, Living, Reporting
from kit.replay import Disturbances, Replay, bodies
from kit.run import run
from kit.stage import Example, Queries, Run, Simulation, Stage

from lightmq.demo.picture import Picture

__all__ = [
    "Claim",
    "Disturbances",
    "Example",
    "Gateways",
    "Inbox",
    "Living",
    "Picture",
    "Queries",
    "Replay",
    "Reporting",
    "Run",
    "Simulation",
    "Stage",
    "bodies",
    "equal",
    "holds",
    "read_rows",
    "run",
]
