from athena import api
from athena.app import App
from athena.threads import drive

SAME = (
    "The deploy runs every Friday at three in the afternoon.",
    "The deploy runs every Friday at three in the afternoon!",
    "Maria is allergic to peanuts.",
)


def test_what_says_the_same_becomes_one_and_can_be_taken_back(isolated: App) -> None:
    api.store(SAME[0], tags="old", metadata={"who": "Ann"})
    api.store(SAME[1], tags="new")
    api.store(SAME[2])
    preview = api.consolidate(dry_run=True)
    assert [pattern["type"] for pattern in preview["patterns"]] == ["near_duplicate"]
    assert (preview["merged"], api.health().count) == (0, 3)
    done = api.consolidate()
    assert (done["merged"], api.health().count) == (1, 2)
    kept = api.get(api.search("friday deploy", limit=1).memories[0].hash)
    assert (kept.content, set(kept.tags), kept.metadata) == (SAME[1], {"old", "new"}, {"who": "Ann"})
    assert api.consolidate()["merged"] == 0
    drive(isolated.catalog.find("undo")(isolated.context("test", "test")))
    assert api.health().count == 3


def test_what_differs_in_one_word_is_never_merged(isolated: App) -> None:
    api.store("The deploy runs every Friday at three in the afternoon.")
    api.store("The deploy runs every Thursday at three in the afternoon.")
    done = api.consolidate(strategy="quality")
    assert [(p["type"], p["merged"]) for p in done["patterns"]] == [("near_duplicate", False)]
    assert api.health().count == 2


def test_the_careful_strategy_only_reports(isolated: App) -> None:
    api.store_batch(SAME)
    assert api.consolidate(strategy="minimal")["merged"] == 0
    assert api.health().count == 3


def test_tags_that_come_up_together_are_a_topic(isolated: App) -> None:
    for i in range(4):
        api.store(f"auth login number {i} {'xyz' * i}", tags=["auth", "login"])
        api.store(f"lunch menu number {i} {'abc' * i}", tags=["food"])
    topics = [p for p in api.consolidate(dry_run=True)["patterns"] if p["type"] == "topic"]
    assert [(topic["support"], topic["summary"]) for topic in topics] == [
        (4, "'auth' and 'login' come up together in 4 memories")
    ]
    assert 0 < topics[0]["confidence"] <= 1
