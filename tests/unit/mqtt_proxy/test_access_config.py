"""Settings that would admit clients by mistake are refused when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_proxy.config import AccessConfig

GOOD = ["https://auth.example/mqtt", "http://127.0.0.1:8080/a", "http://localhost/", "http://[::1]:9/x"]
BAD = {
    "http://auth.example/": "must be https",
    "http://10.0.0.7/": "must be https",
    "http://127.0.0.1.example/": "must be https",
    "ftp://auth.example/": "https://host/path",
    "https://": "https://host/path",
    "auth.example": "https://host/path",
    "https://me:secret@auth.example/": "must hold no password",
}


@pytest.mark.parametrize("url", GOOD)
def test_endpoints_that_may_get_passwords(url: str) -> None:
    """Those where no third party can read them."""
    assert AccessConfig(http_url=url).http_url == url


@pytest.mark.parametrize("url", BAD)
def test_endpoints_that_may_not_get_passwords(url: str) -> None:
    """The reason reveals no secret."""
    with pytest.raises(ValueError, match=BAD[url]) as caught:
        AccessConfig(http_url=url)
    assert "secret@" not in str(caught.value)


def test_methods_and_algorithms() -> None:
    """Known ones, each once, and at least one that can be satisfied."""
    assert AccessConfig(methods=("http", "jwt")).methods == ("http", "jwt")
    for methods in (("passwords",), ("jwt", "jwt")):
        with pytest.raises(ValueError, match="methods are"):
            AccessConfig(methods=methods)
    for algorithms in (("none",), ("RS256", "MD5")):
        with pytest.raises(ValueError, match="jwt_algorithms knows"):
            AccessConfig(jwt_algorithms=algorithms)
    with pytest.raises(ValueError, match="empty"):
        AccessConfig(jwt_algorithms=(), jwt_keys_file=Path("keys"))
