"""The compiled twin replaces the pure one where it was built."""

from tests.unit.broker.store.conftest import twin

__all__ = ["twin"]
