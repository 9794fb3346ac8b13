"""Answer a hook in its own process, without the model."""

import os
import time
from collections.abc import Callable

from athena.app.compose import open_app
from athena.app.settings import Settings, create_hook_rules
from athena.core.home.paths import DEFAULT_PROJECT
from athena.core.threads import run_sync
from athena.core.values import HOOK_SURFACE
from athena.hooks import events
from athena.memory.savings import record_hook


def answer_event(event: str, payload: bytes, settings: Settings, on_malformed: Callable[[str], None]) -> bytes:
    """Open the store, answer, and close it."""
    started_at = time.monotonic()
    app = open_app(settings)
    try:
        context = app.create_context(DEFAULT_PROJECT, HOOK_SURFACE)
        project = os.environ.get("ATHENA_PROJECT", "").strip() or None
        rules, key = create_hook_rules(settings), os.environ.get(events.HOOK_ID_VARIABLE)
        answer = events.answer_event(
            event, payload, context, rules, without_model=True, project=project, key=key, on_malformed=on_malformed
        )
        output = run_sync(answer)
        record_hook(app.store, context.scope, event, "process", time.monotonic() - started_at)
        return output
    finally:
        app.close()
