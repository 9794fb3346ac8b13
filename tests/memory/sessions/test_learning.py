"""What learning stored can be confirmed, corrected, dropped and ruled out, and stays so."""

from pathlib import Path
from typing import Any

import pytest

from athena import api
from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.errors import AthenaError, Denied, InvalidInput, NotFound
from athena.memory.sessions import learning
from athena.memory.sessions.learning_rules import is_same_statement, remove_refused
from athena.memory.sessions.values import Candidate
from athena.memory.store import Store
from conftest import Engine

RULES_FILE = Path(__file__).parents[2] / "data/learning_rules.tsv"
BRANCHES = "We decided to name the branches after the tickets."
EXPORT = "Tomorrow we do the invoice export."
QUEUE = "We decided to use Redis for the queue of orders."


def learn(*texts: str, session: str = "s1", project: str | None = None) -> Any:
    messages = [{"role": "user", "text": text} for text in texts]
    return api.call("learn", session_id=session, messages=messages, project=project)


def list_learned(**arguments: Any) -> list[str]:
    return [item["content"] for item in api.call("list_learned", **arguments)]


def find_hash(text: str) -> str:
    return str(next(item["hash"] for item in api.call("list_learned") if item["content"] == text))


def call_as_person(app: App, operation: str, **arguments: Any) -> Any:
    return run_sync(invoke(app.catalog, operation, arguments, app.create_context("test", "cli")))


@pytest.mark.usefixtures("isolated")
def test_learned_tells_kind_session_and_speaker() -> None:
    learn(BRANCHES, session="abc-1")
    learn(QUEUE, session="xyz-2")
    api.store("Deploys run on Fridays")
    newest, oldest = api.call("list_learned")
    assert (newest["content"], newest["kind"], newest["role"], newest["session_id"]) == (
        QUEUE, "decision", "user", "xyz-2",
    )  # fmt: skip
    assert oldest["session_id"] == "abc-1"
    assert list_learned(session_id="abc") == [BRANCHES]
    assert list_learned(limit=1, offset=1) == [BRANCHES]


def test_kept_memory_counts_as_persons(isolated: App) -> None:
    learn(QUEUE)
    before = api.call("get_memory", memory_id=find_hash(QUEUE))
    kept = call_as_person(isolated, "keep_learned", memory_id=find_hash(QUEUE))
    assert ("auto" in before["tags"], "auto" in kept.tags) == (True, False)
    assert kept.importance > before["importance"]
    assert kept.author == "person"
    assert list_learned() == []
    assert learn(QUEUE, session="s2")["learned"] == []
    with pytest.raises(InvalidInput, match="by somebody"):
        api.call("drop_learned", memory_ids=[kept.hash])
    api.call("undo", anyone=True)
    assert list_learned() == [QUEUE]


@pytest.mark.both_engines
@pytest.mark.usefixtures("isolated")
def test_dropped_statement_is_not_learned_again() -> None:
    learn(QUEUE)
    assert [item["content"] for item in api.call("drop_learned", memory_ids=[find_hash(QUEUE)])] == [QUEUE]
    for text in (
        QUEUE,
        "we decided to use Redis for the queue of orders",
        "We have decided to use Redis for the order queue.",
    ):
        lesson = learn(text, session="s2")
        assert (lesson["learned"], lesson["refused"]) == ([], 1), text
    assert list_learned() == []
    other = "We decided to use Kafka for the queue of orders."
    assert [item["content"] for item in learn(other, session="s3")["learned"]] == [other]
    assert "Redis" not in str(api.call("recall_events", event_type="episode", session_id="s2"))


@pytest.mark.usefixtures("isolated")
def test_dropped_statement_leaves_its_episode() -> None:
    learn(QUEUE, EXPORT)
    [episode] = api.call("recall_events", event_type="episode")
    assert episode["content"] == f"Next: {EXPORT}"
    api.call("drop_learned", memory_ids=[find_hash(EXPORT)])
    assert api.call("recall_events", event_type="episode")[0]["content"] == "nothing was done"
    api.call("undo")
    assert EXPORT in api.call("recall_events", event_type="episode")[0]["content"]
    assert len(list_learned()) == 2


@pytest.mark.usefixtures("isolated")
def test_undo_of_drop_lets_it_be_learned() -> None:
    learn(QUEUE)
    api.call("drop_learned", memory_ids=[find_hash(QUEUE)])
    api.call("undo")
    assert list_learned() == [QUEUE]
    assert api.call("list_learning_rules", with_dropped=True) == []
    api.call("forget", memory_id=find_hash(QUEUE))
    assert learn(QUEUE, session="s2")["refused"] == 0


@pytest.mark.usefixtures("isolated")
def test_dropped_in_one_project_is_learned_in_another() -> None:
    learn(QUEUE)
    api.call("drop_learned", memory_ids=[find_hash(QUEUE)])
    assert len(learn(QUEUE, project="other")["learned"]) == 1


@pytest.mark.both_engines
def test_corrected_statement_stays_corrected(isolated: App) -> None:
    learn(QUEUE)
    text = "We decided to use Redis for the queue of orders; mails stay in the database."
    stored = call_as_person(isolated, "edit_learned", memory_id=find_hash(QUEUE), content=text)
    assert (stored.content, stored.author, "auto" in stored.tags) == (text, "person", False)
    assert learn(QUEUE, session="s2")["learned"] == []
    with pytest.raises(InvalidInput, match="not by learning alone"):
        api.call("edit_learned", memory_id=stored.hash, content=text)
    api.call("undo", anyone=True)
    assert list_learned() == [QUEUE]
    assert api.call("list_learning_rules", with_dropped=True) == []


@pytest.mark.usefixtures("isolated")
def test_never_refuses_what_is_alike() -> None:
    learn(BRANCHES, QUEUE)
    rule = api.call("refuse_learned", memory_id=find_hash(BRANCHES))
    assert (rule["kind"], rule["example"], rule["everywhere"]) == ("decision", BRANCHES, False)
    assert list_learned() == [QUEUE]
    alike = "We agreed to call the branches like the tickets."
    lesson = learn(alike, "We decided to keep the retries in the client.", session="s2")
    assert lesson["refused"] == 1
    assert [item["content"] for item in lesson["learned"]] == ["We decided to keep the retries in the client."]
    assert len(learn(alike, project="other")["learned"]) == 1
    assert [one["number"] for one in api.call("list_learning_rules")] == [rule["number"]]
    assert api.call("remove_learning_rule", number=rule["number"])
    assert api.call("list_learning_rules") == []
    assert len(learn(alike, session="s3")["learned"]) == 1
    with pytest.raises(NotFound, match="no rule"):
        api.call("remove_learning_rule", number=rule["number"])


@pytest.mark.usefixtures("isolated")
def test_never_everywhere_holds_in_other_projects() -> None:
    learn(BRANCHES)
    rule = api.call("refuse_learned", memory_id=find_hash(BRANCHES), everywhere=True)
    assert rule["everywhere"]
    assert learn(BRANCHES, project="other")["refused"] == 1
    assert [one["number"] for one in api.call("list_learning_rules", project="other")] == [rule["number"]]
    api.call("undo")
    assert list_learned() == [BRANCHES]
    assert len(learn(BRANCHES, session="s2", project="other")["learned"]) == 1


@pytest.mark.usefixtures("isolated")
def test_topic_refuses_its_words_of_same_kind() -> None:
    learn(BRANCHES)
    rule = api.call("refuse_learned", memory_id=find_hash(BRANCHES), topic="standup meeting")
    assert rule["topic"] == "standup meeting"
    assert learn("We agreed to hold the standup meetings in the Berlin office.", session="s2")["refused"] == 1
    assert learn("We agreed to hold the interviews in the Berlin office.", session="s2")["refused"] == 0
    fact = "The standup meeting service runs on Kubernetes in Frankfurt."
    assert [item["memory_type"] for item in learn(fact, session="s2")["learned"]] == ["fact"]


def test_rule_holds_without_model(isolated: App) -> None:
    learn(BRANCHES)
    api.call("refuse_learned", memory_id=find_hash(BRANCHES))
    store = isolated.store._replace(encoder=isolated.store.encoder.without_model())
    alike, other = (
        Candidate(text, "decision", "user") for text in ("We agreed to name branches after tickets.", QUEUE)
    )
    scope = isolated.create_context("test", "hook").scope
    assert run_sync(remove_refused(store, scope, [alike, other])) == [other]


@pytest.mark.parametrize("surface", ["mcp", "program", "hook"])
def test_only_people_review(isolated: App, surface: str) -> None:
    learn(BRANCHES)
    memory_id = find_hash(BRANCHES)
    rule = api.call("refuse_learned", memory_id=memory_id)
    context = isolated.create_context("test", surface)
    calls: dict[str, dict[str, Any]] = {
        "list_learned": {},
        "keep_learned": {"memory_id": memory_id},
        "edit_learned": {"memory_id": memory_id, "content": "x"},
        "drop_learned": {"memory_ids": [memory_id]},
        "refuse_learned": {"memory_id": memory_id},
        "list_learning_rules": {},
        "remove_learning_rule": {"number": rule["number"]},
    }
    refused = []
    for name, arguments in calls.items():
        with pytest.raises(Denied):
            run_sync(invoke(isolated.catalog, name, arguments, context))
        refused.append(name)
    assert refused == list(calls)


def test_model_reaches_no_rule_by_other_means(isolated: App) -> None:
    learn(BRANCHES)
    rule = api.call("refuse_learned", memory_id=find_hash(BRANCHES))
    context = isolated.create_context("test", "mcp")
    calls: dict[str, dict[str, object]] = {
        "get_memory": {"memory_id": rule["number"]},
        "forget": {"memory_id": rule["number"]},
        "forget_batch": {"memory_ids": [rule["number"]]},
        "restore_memory": {"memory_id": rule["number"], "kind": "rule"},
        "recall": {"query": BRANCHES, "kinds": ["rule"]},
        "update_memory": {"memory_id": rule["number"], "content": "x"},
    }
    for name, arguments in calls.items():
        try:
            result = run_sync(invoke(isolated.catalog, name, arguments, context))
        except AthenaError:
            continue
        assert result in (False, 0), name
    assert [hit["content"] for hit in api.call("recall", query=BRANCHES)] == []
    assert len(api.call("list_learning_rules")) == 1


@pytest.mark.both_engines
def test_named_purge_takes_rule_along(engine: Engine, tmp_path: Path) -> None:
    learn("We decided to name the branches after the Quokka tickets.")
    [item] = api.call("list_learned")
    api.call("refuse_learned", memory_id=item["hash"])
    api.call("purge", expect=1)  # all that is forgotten: the rule is not
    assert len(api.call("list_learning_rules")) == 1
    learn("We decided to use Zebrano 3 for the queue of mails.", session="s2")
    [item] = api.call("list_learned")
    api.call("refuse_learned", memory_id=item["hash"])
    assert api.call("purge", memory_ids=[item["id"]], dry_run=True) == 2
    api.call("purge", memory_ids=[item["id"]], expect=2)
    assert [rule["example"] for rule in api.call("list_learning_rules")] == [
        "We decided to name the branches after the Quokka tickets."
    ]
    assert b"Zebrano" not in engine.read_all_bytes(tmp_path / "home")


def test_purge_takes_dropped_statement_along(engine: Engine, tmp_path: Path) -> None:
    learn("We decided to use Zebrano 3 for the queue of mails.")
    [item] = api.call("list_learned")
    api.call("drop_learned", memory_ids=[item["hash"]])
    api.call("purge", expect=2)  # the rule quotes it
    assert api.call("list_learning_rules", with_dropped=True) == []
    api.close()
    assert b"Zebrano" not in engine.read_all_bytes(tmp_path / "home")


@pytest.mark.usefixtures("isolated")
def test_dry_run_stores_nothing() -> None:
    lesson = api.call(
        "learn", session_id="s1", messages=[{"role": "user", "text": QUEUE}], happened=1_700_000_000.0, dry_run=True
    )
    assert [item["content"] for item in lesson["learned"]] == [QUEUE]
    assert lesson["episode"] is None
    assert list_learned() == []
    assert api.call("recall_events") == []


@pytest.mark.both_engines
@pytest.mark.usefixtures("isolated")
def test_past_session_has_its_own_time() -> None:
    moment = 1_700_000_000.0
    api.call("learn", session_id="s1", messages=[{"role": "user", "text": QUEUE}], happened=moment)
    [item] = api.call("list_learned")
    assert item["created"] == moment
    assert [event["happened"] for event in api.call("recall_events", event_type="episode")] == [moment]
    assert api.call("list_memories", since="2023-11-14", until="2023-11-15")[0]["content"] == QUEUE


def test_notice_counts_once(isolated: App) -> None:
    store, scope = isolated.store, isolated.create_context("test", "hook").scope

    def take() -> int:
        return run_sync(learning.take_notice(store, scope)).kept

    assert take() == 0
    learn(BRANCHES, QUEUE)
    api.store("Deploys run on Fridays")
    assert [take(), take()] == [2, 0]
    learn("We decided to keep the retries in the client.", session="s2")
    past = [{"role": "user", "text": "We decided to use Kafka for the events."}]
    api.call("learn", session_id="s3", messages=past, happened=1_700_000_000.0)
    assert [take(), take()] == [1, 0]
    api.store("One more", tags="auto", project="other")
    assert take() == 0


def test_same_statement_means_same_values() -> None:
    text = "The API allows 100 requests per second."
    assert is_same_statement(text, "the api allows 100 requests per second")
    assert is_same_statement(text, "So the API allows 100 requests per second!")
    for other in (
        "The API allows 200 requests per second.",
        "The API does not allow 100 requests per second.",
        "The importer allows 100 requests per second.",
        "The importer runs at night.",
    ):
        assert not is_same_statement(text, other), other


def read_examples(half: str) -> list[tuple[str, str, list[str], list[str]]]:
    """Return the rules of one half: kind, example, statements that are alike, statements that are not."""
    examples: list[tuple[str, str, list[str], list[str]]] = []
    for line in RULES_FILE.read_text("utf-8").splitlines():
        part, kind, role, text = line.split("\t")
        if part != half:
            continue
        if role == "rule":
            examples.append((kind, text, [], []))
        else:
            _, _, likes, unlikes = examples[-1]
            (likes if role == "like" else unlikes).append(text)
    return examples


def count_refused(store: Store, scope: Any, kind: str, texts: list[str]) -> int:
    candidates = [Candidate(text, kind, "user") for text in texts]
    return len(texts) - len(run_sync(remove_refused(store, scope, candidates)))


@pytest.mark.sqlite_only("what is compared, not how it is stored")
@pytest.mark.parametrize("half", ["fit", "held"])
def test_rules_refuse_alike_and_spare_the_rest(isolated: App, half: str) -> None:
    examples = read_examples(half)
    assert len(examples) >= 10
    alike = spared = refused_alike = refused_others = 0
    for i, (kind, example, likes, unlikes) in enumerate(examples):
        project = f"p{i}"
        api.store(example, ["auto", kind], kind, project=project)
        [item] = api.call("list_learned", project=project)
        api.call("refuse_learned", memory_id=item["id"], project=project)
        scope = isolated.create_context(project, "hook").scope
        refused_alike += count_refused(isolated.store, scope, kind, likes)
        refused_others += count_refused(isolated.store, scope, kind, unlikes)
        alike, spared = alike + len(likes), spared + len(unlikes)
    assert refused_alike / alike >= 0.8
    assert refused_others / spared <= 0.12
