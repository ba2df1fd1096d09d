"""Imported once by the process that `warm.py` forks from: everything a server imports."""

from __future__ import annotations

import gc
import importlib

MODULES = """
    aiohttp.web encodings.idna uvloop
    broker.app broker.roles.member controller.app controller.consensus.raft_engine mqtt_bridge.app mqtt_proxy.app
    lightmq.__main__ lightmq.servers.all_in_one lightmq.cli.servers lightmq.servers.parts
"""

for _name in MODULES.split():
    importlib.import_module(_name)
gc.collect()
gc.freeze()  # objects common to all forks are neither collected nor copied by them
