"""One call of an operation, as it is recorded."""

from typing import NamedTuple

from athena.core.scope import Kind, Scope

HOOK_SURFACE = "hook"  # the surface of session hooks


class Call(NamedTuple):
    """Who called what, where. Argument values are never part of it."""

    operation: str
    surface: str
    scope: Scope
    started: float
    key: str | None = None  # a repeated call with the same key happens once
    arguments_digest: str = (
        ""  # the digest of its arguments, where it has a key: another call must not pass for this one
    )
    run: str | None = None  # the program's run that it belongs to

    def with_kind(self, kind: Kind) -> "Call":
        """Return the same call, about things of another kind."""
        return self._replace(scope=self.scope.with_kind(kind))
