"""The same calls on the reference memory server and on Athena produce the same graph and the same answers.

Where Athena differs, on purpose:

- Within one call, the same entity, observation or relation given twice is kept once; the reference keeps both, though
  it refuses the second in a call of its own. So sequences here do not repeat a thing within a call.
- Empty names and observations are refused; nothing could find them again.
- `search_nodes` adds entities close by words and meaning if it is asked to.
- Secrets in texts are replaced, NUL is removed, names have at most 1,000 characters; unknown fields are refused.
- A relation may say when it held true, in fields that the reference does not have.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_server import Reference, Refused

from athena import testing
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import NotFound
from conftest import MODEL, Engine, rounds
from reference_tools import open_reference

NAMES = st.sampled_from(["Ann", "ann", "Bob", "Acme Ltd", "Zoë", " padded ", "100%_\"'!", "数据", "line\nbreak"])
TYPES = st.sampled_from(["person", "Company", "", "ort"])
TEXTS = st.sampled_from(["likes tea", "Likes Tea", "tea", "lives in ÅLESUND", "50%", "a_b", "plays chess\nwell", "Ann"])
KINDS = st.sampled_from(["knows", "works at", ""])
QUERIES = st.sampled_from(["tea", "TEA", "ann", "ålesund", "%", "_", "", "person", "zzz", "\n", "数"])


def short_lists(items: st.SearchStrategy[Any], by: Any = None) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=3, unique_by=by or (lambda one: one))


ENTITIES = short_lists(
    st.fixed_dictionaries({"name": NAMES, "entityType": TYPES, "observations": short_lists(TEXTS)}), lambda e: e["name"]
)
RELATIONS = short_lists(
    st.fixed_dictionaries({"from": NAMES, "to": NAMES, "relationType": KINDS}),
    lambda r: (r["from"], r["to"], r["relationType"]),
)
CALLS: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("create_entities"), st.fixed_dictionaries({"entities": ENTITIES})),
    st.tuples(st.just("create_relations"), st.fixed_dictionaries({"relations": RELATIONS})),
    st.tuples(
        st.just("add_observations"),
        st.fixed_dictionaries(
            {
                "observations": short_lists(
                    st.fixed_dictionaries({"entityName": NAMES, "contents": short_lists(TEXTS)}), str
                )
            }
        ),
    ),
    st.tuples(st.just("delete_entities"), st.fixed_dictionaries({"entityNames": short_lists(NAMES)})),
    st.tuples(
        st.just("delete_observations"),
        st.fixed_dictionaries(
            {
                "deletions": short_lists(
                    st.fixed_dictionaries({"entityName": NAMES, "observations": short_lists(TEXTS)}), str
                )
            }
        ),
    ),
    st.tuples(st.just("delete_relations"), st.fixed_dictionaries({"relations": RELATIONS})),
    st.tuples(st.just("read_graph"), st.just({})),
    st.tuples(st.just("search_nodes"), st.fixed_dictionaries({"query": QUERIES})),
    st.tuples(st.just("open_nodes"), st.fixed_dictionaries({"names": short_lists(NAMES)})),
)
EVERYBODY = {
    "entities": [
        {"name": "Ann", "entityType": "person", "observations": ["likes tea"]},
        {"name": "Bob", "entityType": "person", "observations": []},
        {"name": "Zoë", "entityType": "ort", "observations": ["tea", "50%"]},
    ]
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Generator[Reference]:
    with open_reference(tmp_path_factory.mktemp("reference")) as server:
        yield server


@pytest.mark.both_engines
@pytest.mark.timeout(1800)
def test_same_calls_give_same_graph(reference: Reference, engine: Engine, tmp_path: Path) -> None:
    share = rounds(50, 1000) if engine.kind == "sqlite" else rounds(10, 200)
    with testing.isolated(MODEL, database=engine.in_memory()) as app:
        number = 0

        @settings(max_examples=share, deadline=None, suppress_health_check=list(HealthCheck))
        @given(filled=st.booleans(), calls=st.lists(CALLS, min_size=3, max_size=15))
        def compare(filled: bool, calls: list[tuple[str, dict[str, Any]]]) -> None:
            nonlocal number
            number += 1
            reference.empty()
            for name, arguments in [*([("create_entities", EVERYBODY)] if filled else []), *calls, ("read_graph", {})]:
                theirs = _call_reference(reference, name, arguments)
                assert _call_athena(app, f"sequence {number}", name, arguments) == theirs

        compare()
        assert run_sync(app.catalog.get_operation("verify")(app.create_context("p", "python"))).ok


def _call_reference(reference: Reference, name: str, arguments: dict[str, Any]) -> Any:
    try:
        return reference.call(name, arguments)
    except Refused as error:
        return str(error)


def _call_athena(app: App, project: str, name: str, arguments: dict[str, Any]) -> Any:
    try:
        return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python"), **arguments))
    except NotFound as error:
        return str(error)


def test_reference_duplicates_are_stored_once(reference: Reference, app: App) -> None:
    """Check the differences that the sequences above avoid, so that a change on either side is noticed."""
    reference.empty()
    twice = [{"name": "Ann", "entityType": "person", "observations": ["x", "x"]}] * 2
    assert len(reference.call("create_entities", {"entities": twice})) == 2
    assert _call_athena(app, "p", "create_entities", {"entities": twice}) == [{**twice[0], "observations": ["x"]}]
    more = {"observations": [{"entityName": "Ann", "contents": ["y", "y"]}]}
    assert reference.call("add_observations", more)[0]["addedObservations"] == ["y", "y"]
    assert _call_athena(app, "p", "add_observations", more)[0]["addedObservations"] == ["y"]
