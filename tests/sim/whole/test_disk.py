"""The simulated disk by itself."""

from __future__ import annotations

import pytest

from runtime.files import atomic_replace, make_directory
from tests.sim.whole.disk import Disks, PowerCut
from tests.sim.whole.loop import Host, World


def test_a_power_cut_keeps_what_was_flushed_and_may_lose_the_rest(tmp_path):
    """Bytes and names alike, and a cut in the middle of a replacement leaves one content or the other."""
    outcomes = set()
    for seed in range(60):
        world = World(seed)
        disks = Disks(world, tmp_path / str(seed))
        host = Host(world, "h", "10.0.0.1")
        directory = disks.add(host)
        with pytest.MonkeyPatch.context() as patch:
            disks.patch(patch)
            make_directory(directory / "data")
            atomic_replace(directory / "data" / "kept", b"first")
            (directory / "data" / "named").write_bytes(b"never flushed")
            if seed % 2:
                disks.cut_after(host, 1 + seed % 3)
                with pytest.raises(PowerCut):
                    atomic_replace(directory / "data" / "kept", b"second")
                assert disks.is_cut(host)
            disks.power_cut(host)
        kept = (directory / "data" / "kept").read_bytes()
        named = directory / "data" / "named"
        outcomes.add((kept, named.read_bytes() if named.exists() else None))
    assert {kept for kept, _ in outcomes} <= {b"first", b"second"}
    assert {kept for kept, _ in outcomes} == {b"first", b"second"}
    assert {named for _, named in outcomes} >= {None, b"never flushed"}
