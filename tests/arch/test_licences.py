"""Third-party notices name every package that an installation brings, under the licence that its metadata states.

The closure is taken over all platforms and Python versions we support; what is installed here is compared with its
metadata. The core must not depend on copyleft: a package offered under several licences counts by the mildest.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROW = re.compile(r"^\| ([a-z0-9-]+) \| ([^|]+) \| (core|optional) \|", re.MULTILINE)
COPYLEFT = re.compile(r"\b(A?L?GPL|GNU|MPL|EPL|EUPL|CDDL|OSL|SSPL|BUSL|CC-BY-SA)", re.IGNORECASE)
PLACES = [
    {"sys_platform": system, "platform_system": name, "os_name": kind, "implementation_name": "cpython",
     "python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0", "platform_python_implementation": "CPython"}
    for system, name, kind in (("linux", "Linux", "posix"), ("darwin", "Darwin", "posix"), ("win32", "Windows", "nt"))
    for minor in (11, 12, 13)
]  # fmt: skip
SPELLINGS = {
    "Apache 2.0": "Apache-2.0", "Apache License 2.0": "Apache-2.0", "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0", "http://www.apache.org/licenses/LICENSE-2.0": "Apache-2.0",
    "MIT License": "MIT", "BSD License": "BSD-3-Clause", "3-Clause BSD License": "BSD-3-Clause", "BSD": "BSD-3-Clause",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
"""What packages without an SPDX expression write instead."""


def needed(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether a requirement of a package installed with `extras` holds on any supported platform."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**place, "extra": extra}) for place in PLACES for extra in extras)


def closure(requirements: Iterable[str]) -> set[str]:
    """Every package below these requirements, as far as they are installed here."""
    found: dict[str, set[str]] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if name == "lightmq" or extras <= found.get(name, set()):
            continue
        found[name] = extras | found.get(name, set())
        try:
            below = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue
        waiting += [one for one in map(Requirement, below) if needed(one, extras)]
    return set(found)


UNSTATED = {"rocketmq-python-client": "Apache-2.0"}
"""Packages whose metadata only have the file of their licence."""


def stated(name: str) -> str:
    """The licence that a package states, as an SPDX expression where it has one."""
    if name in UNSTATED:
        return UNSTATED[name]
    fields = metadata.metadata(name)
    if "License-Expression" in fields:
        return str(fields["License-Expression"])
    text = str(fields.get("License", ""))
    classes = [one.rpartition(" :: ")[2] for one in fields.get_all("Classifier") or [] if one.startswith("License ::")]
    if text and "\n" not in text and len(text) < 60 and len(classes) < 2:
        classes = [text]
    return " OR ".join(sorted({SPELLINGS.get(one, one) for one in classes}))


def mildest_is_copyleft(expression: str) -> bool:
    """Whether every licence that may be chosen is copyleft."""
    return all(COPYLEFT.search(choice) for choice in expression.split(" OR "))


def rows() -> dict[str, tuple[str, str]]:
    """Package -> (licence, core or optional), from the notices."""
    return {name: (text.strip(), kind) for name, text, kind in ROW.findall((ROOT / NOTICES).read_text())}


NOTICES = "THIRD_PARTY_NOTICES.md"
CORE = closure(PROJECT["dependencies"])
OPTIONAL = (
    closure(text for name, texts in PROJECT["optional-dependencies"].items() if name != "dev" for text in texts) - CORE
)


HERE = {canonicalize_name(one.name) for one in metadata.distributions()}
INSTALLED = sorted((CORE | OPTIONAL) & HERE)


def test_every_package_has_a_row_and_every_row_a_package() -> None:
    """Each row says whether it comes with the core. What is not installed here may need packages not seen here."""
    expected = dict.fromkeys(CORE, "core") | dict.fromkeys(OPTIONAL, "optional")
    shown = {name: kind for name, (_, kind) in rows().items() if name in HERE or name in expected}
    assert shown == expected


@pytest.mark.parametrize("name", INSTALLED)
def test_a_row_states_the_licence_of_the_metadata(name: str) -> None:
    """So that a package that changes its licence is seen."""
    assert rows()[name][0] == stated(name)


@pytest.mark.parametrize("name", sorted(CORE))
def test_the_core_has_no_copyleft(name: str) -> None:
    """By the notices and, where it is installed, by the package itself."""
    assert not mildest_is_copyleft(rows()[name][0])
    if name in HERE:
        assert not mildest_is_copyleft(stated(name))


def test_copyleft_is_recognised() -> None:
    """Also when it is written out."""
    written_out = "GNU Lesser General Public License v2 or later (LGPLv2+)"
    assert all(map(mildest_is_copyleft, ("LGPL-2.1-or-later", written_out, "MPL-2.0", "AGPL-3.0-only", "EPL-2.0")))
    assert not any(map(mildest_is_copyleft, ("EPL-2.0 OR BSD-3-Clause", "MIT", "Apache-2.0 AND MIT", "PSF-2.0")))


def test_the_notices_are_shipped() -> None:
    """In the metadata of every wheel."""
    assert NOTICES in PROJECT["license-files"]
