"""Chooses the twin that makes PUBLISH packets of records: the compiled one where it was built from the sources here,
else the reference.

Callers say `packets.core.write_run`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the reference.
`write_run` takes plain records only (no properties but topic and client id, QoS 0 and 1) and stops in front of any
other: the caller sends that one by the long way. So a new property or option is never lost here, at worst slow.
Invariant: both twins give the same bytes, numbers and changes; sizes of a blob are checked before a pointer follows
them. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from remoting.native.choice import Choice, choose
from remoting.native.contracts import PacketCore
from remoting.native.reference import packets as reference


def pure_core() -> PacketCore:
    """Return the reference."""
    return PacketCore("pure", reference.starts_of, reference.split, reference.pick, reference.write_run)


def compiled_core() -> PacketCore:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import packets as compiled

    return PacketCore("compiled", compiled.starts_of, compiled.split, compiled.pick, compiled.write_run)


choice: Choice[PacketCore] = choose(compiled_core, pure_core)
"""Which twin is in use, and why."""
core: PacketCore = choice.core
