"""A person who decides on a paused program sees what it can reach of earlier programs, also where it hides the name."""

import pytest

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync

EARLIER = "def helper():\n    return memory.remember(content='evil')\npayload = 'text'"
WAYS = ("globals()", "(lambda: 0).__globals__", "__import__('sys')._getframe().f_globals")


def run(app: App, code: str) -> str:
    context = app.create_context("p", "python")
    result = run_sync(invoke(app.catalog, "execute_code", {"code": code, "engine": "python"}, context))
    assert result.status in ("done", "needs_approval"), result.error
    return str(result.run_id)


@pytest.mark.sqlite_only("what is shown does not depend on the store")
@pytest.mark.parametrize("way", WAYS)
def test_hidden_names_are_shown(app: App, way: str) -> None:
    run(app, EARLIER)
    names = f"names = {way}\nmemory.purge(expect=0)\nnames['hel' + 'per']()\nnames['pay' + 'load']"
    review = run_sync(app.programs.review_run(app.create_context("p", "cli"), run(app, names)))
    assert set(review.definitions) == {"helper"}
    assert review.variables == {"payload": "text"}
