"""The file of profiles: what is written is read again, what is wrong is named, what others may read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightmq.profiles import Profile, ProfileFile
from remoting.protocol.errors import LocalMisuse

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "profiles.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


@given(name=TEXT.filter(bool), server=TEXT, key=TEXT, tls=st.booleans())
def test_what_is_saved_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, name: str, server: str, key: str, tls: bool
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "lightmq" / "profiles.toml"
    found = ProfileFile(path)
    found.profiles[name] = Profile(server=server, key=key, tls=tls)
    found.chosen = name
    found.save()
    again = ProfileFile(path)
    assert (again.profiles, again.chosen) == (found.profiles, name)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[profiles.plant]\nservr = 'a:1'\n", "profiles.plant.servr; did you mean profiles.plant.server?"),
        ("[profile.plant]\nserver = 'a:1'\n", "did you mean profiles?"),
        ("[profiles.plant]\ntls = 'yes'\n", "profiles.plant.tls must be true or false"),
        ("[profiles.plant]\nserver = 1\n", "profiles.plant.server must be text"),
        ("[profiles]\nplant = 1\n", "profiles.plant must be a section"),
        ("use = 1\n", "use must be the name"),
        ("use = \n", "line 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(LocalMisuse, match=complaint.replace("?", r"\?")):
        ProfileFile(written(tmp_path, text))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_open_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    with pytest.raises(LocalMisuse, match="chmod 600"):
        ProfileFile(written(tmp_path, "[profiles.plant]\nkey = 'a:secret'\n", mode))


def test_the_nearest_profile_is_named(tmp_path: Path) -> None:
    found = ProfileFile(written(tmp_path, "[profiles.plant]\nserver = 'a:1'\n"))
    with pytest.raises(LocalMisuse, match=r"did you mean plant\?"):
        found.named("plnt")
    with pytest.raises(LocalMisuse, match="lightmq profile add office"):
        ProfileFile(tmp_path / "none").named("office")


def test_secrets_are_in_no_representation() -> None:
    assert "hidden" not in repr(Profile(key="a:hidden", password="hidden"))
