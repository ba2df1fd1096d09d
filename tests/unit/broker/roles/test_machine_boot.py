"""The id of the machine's present start."""

from __future__ import annotations

from pathlib import Path

from broker.roles.identity_file import machine_boot


def test_the_same_while_the_machine_runs(tmp_path: Path) -> None:
    """Asked twice; where the kernel says nothing it is empty."""
    source = tmp_path / "boot_id"
    assert machine_boot(source) == ""
    source.write_text("5c1a\n")
    assert machine_boot(source) == "5c1a"
    assert machine_boot() == machine_boot()
