"""Who a broker is survives restarts; what is damaged or another group's is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker.roles.identity_file import FILE_NAME, IdentityFile
from remoting.protocol.errors import LocalMisuse


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """And a new one has a check code of its own."""
    file = IdentityFile(tmp_path / "data")
    new = file.load("C", "g")
    assert (new.broker_id, new.is_applied, new.epoch, new.clean, len(new.check_code)) == (None, False, 0, False, 32)
    assert file.load("C", "g").check_code != new.check_code
    known = msgspec.structs.replace(new, broker_id=7, is_applied=True, epoch=12, clean=True)
    file.save(known)
    assert file.load("C", "g") == known
    assert IdentityFile(tmp_path / "data").load("C", "g") == known


@pytest.mark.parametrize(("cluster", "group"), [("D", "g"), ("C", "h")])
def test_the_data_of_another_group_is_refused(tmp_path: Path, cluster: str, group: str) -> None:
    """The remark says whose it is."""
    file = IdentityFile(tmp_path)
    file.save(file.load("C", "g"))
    with pytest.raises(LocalMisuse, match="belongs to broker None of C/g"):
        file.load(cluster, group)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.95])
def test_a_damaged_file_is_refused(tmp_path: Path, at: float) -> None:
    """Whichever byte it is; nothing is guessed."""
    file = IdentityFile(tmp_path)
    file.save(msgspec.structs.replace(file.load("C", "g"), broker_id=1, is_applied=True))
    data = bytearray((tmp_path / FILE_NAME).read_bytes())
    data[int(len(data) * at)] ^= 1
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(LocalMisuse, match="GROUP"):
        file.load("C", "g")
    (tmp_path / FILE_NAME).write_bytes(b"")
    with pytest.raises(LocalMisuse, match="GROUP"):
        file.load("C", "g")
