"""A package, because a client library among the development requirements installs a `tests` of its own, which would
otherwise be found first."""
