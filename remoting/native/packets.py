"""Chooses the twin that turns records into PUBLISH packets: the compiled one if it was built from the present sources,
else the reference.

Callers write `packets.core.write_run`, so that tests can replace `core`. LIGHTMQ_PURE=1 chooses the reference.
`write_run` takes plain records only (no properties but topic and client id, QoS 0 and 1) and stops before any other,
which the caller sends by the general path. So no property or option is ever lost here; new ones are merely slower.
Invariant: both twins give the same bytes, numbers and changes; sizes in a blob are checked before a pointer relies on
them. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from remoting.native.choice import Choice, choose
from remoting.native.contracts import PacketCore
from remoting.native.reference import packets as reference


def pure_core() -> PacketCore:
    """Return the reference, in plain Python."""
    return PacketCore("pure", reference.starts_of, reference.split, reference.pick, reference.write_run)


def compiled_core() -> PacketCore:
    """Return the compiled twin. Raises ImportError if it was not built."""
    from remoting.native.compiled import packets as compiled

    return PacketCore("compiled", compiled.starts_of, compiled.split, compiled.pick, compiled.write_run)


choice: Choice[PacketCore] = choose(compiled_core, pure_core)
"""The twin in use, and the reason."""
core: PacketCore = choice.core
