"""The words in which handlers ask who may do what: the actions they name, and the hook they ask.

What each action means, and which request code needs which, is in `remoting.access.rights`. No state.
"""

from remoting.access.rights import ADMIN, CONSUME, INSPECT, LOCATE, PUBLISH, SESSION
from remoting.server.authorizer import ANONYMOUS, IDENTITY_ATTRIBUTE, TRUSTED_ATTRIBUTE, Authorizer, Policy

__all__ = [
    "ADMIN", "ANONYMOUS", "CONSUME", "IDENTITY_ATTRIBUTE", "INSPECT", "LOCATE", "PUBLISH", "SESSION",
    "TRUSTED_ATTRIBUTE", "Authorizer", "Policy",
]  # fmt: skip
