"""What was learned, documents, privacy and backups on the page."""

from collections.abc import Callable
from pathlib import Path

from page_tools import Visitor
from playwright.sync_api import expect

from http_tools import RunningServer, run_server

Visit = Callable[..., Visitor]
SAID = (
    "We decided to use PostgreSQL for the ledger, because SQLite locks too long.",
    "I prefer short commit messages.",
    "From now on we always review migrations with two people.",
)
PAIRS = (
    ("backups run at 2 in the night", "the backups run at 4"),
    ("the cache expires after 10 minutes", "the cache expires after 30 minutes"),
    ("reports are archived after 90 days", "monthly reports are archived after 30 days"),
    ("the staging database runs PostgreSQL 15", "the production database runs PostgreSQL 16"),
    ("deploys run on Fridays", "small deploys run on Mondays"),
    ("the nightly job starts at 3", "the weekly job starts at 5"),
)


def learn(server: RunningServer, session: str, *texts: str) -> None:
    server.call("learn", session_id=session, messages=[{"role": "user", "text": text} for text in texts])


def test_person_reviews_what_was_learned(visit: Visit, fresh: RunningServer) -> None:
    """Confirm, correct, drop and rule out; each can be undone."""
    visitor = visit(fresh)
    page = visitor.go("/memories/learned")
    expect(page.get_by_text("Nothing was learned by itself yet")).to_be_visible()
    learn(fresh, "s1", *SAID)
    rows = page.locator(".hit")
    expect(rows).to_have_count(3)  # without reload
    visitor.check_accessible()
    decision = rows.filter(has_text="PostgreSQL")
    decision.get_by_role("button", name="Right").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(3)
    decision.get_by_text("Correct it").click()
    decision.get_by_label("What is true").fill("We decided to use PostgreSQL 17 for the ledger.")
    decision.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Corrected")).to_be_visible()
    assert fresh.call("recall", query="which database has the ledger", k=1)[0]["author"] == "person"
    rows.filter(has_text="commit").get_by_role("button", name="Not true").click()
    expect(rows).to_have_count(1)
    page.keyboard.press("u")
    expect(rows).to_have_count(2)
    refused = rows.filter(has_text="commit")
    refused.get_by_text("Never learn such things").click()
    refused.get_by_label("Also whatever has these words").fill("commit")
    refused.get_by_role("button", name="Never learn it").click()
    expect(page.get_by_role("heading", name="Never learned")).to_be_visible()
    learn(fresh, "s2", "I prefer long commit messages.")
    visitor.go("/memories/learned")
    expect(rows).to_have_count(1)
    visitor.check_accessible()
    page.get_by_role("button", name="Allow again").last.click()
    expect(page.get_by_text("It may be learned again")).to_be_visible()


def test_person_settles_contradiction(visit: Visit, fresh: RunningServer) -> None:
    for older, newer in PAIRS:  # of which the model decides some, and leaves others open
        learn(fresh, "s1", f"Remember that {older}.")
        learn(fresh, "s2", f"Remember that {newer}.")
    visitor = visit(fresh)
    page = visitor.page
    expect(page.get_by_text("contradict each other")).to_be_visible()
    page.reload()  # to look does not use the question up
    page.get_by_text("contradict each other").click()
    assert "Which holds" in fresh.call("briefing", session_id="s3")["text"]
    visitor.check_accessible()
    pairs = page.locator(".question")
    expect(pairs.first).to_be_visible()
    count = pairs.count()
    pairs.first.get_by_role("button", name="This one holds").first.click()
    expect(page.get_by_text("Confirmed")).to_be_visible()
    expect(pairs).to_have_count(count - 1)


def test_person_keeps_documents_and_backups(visit: Visit, fresh: RunningServer, tmp_path: Path) -> None:
    handbook = tmp_path / "handbook"
    handbook.mkdir()
    (handbook / "deploying.md").write_text("# Deploying\n\nRoll back with `make rollback`, then tell the channel.\n")
    visitor = visit(fresh)
    page = visitor.go("/memories/documents")
    expect(page.get_by_text("No documents yet")).to_be_visible()
    page.get_by_text("Read a file or a folder").click()
    page.get_by_label("Path on this machine").fill(str(handbook))
    page.get_by_role("button", name="Read it").click()
    expect(page.get_by_text("Documents: 1 new")).to_be_visible()
    visitor.check_accessible()
    page.get_by_role("link", name="deploying.md").click()
    expect(page.locator(".pieces")).to_contain_text("make rollback")
    visitor.check_accessible()
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_text("No documents yet")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="deploying.md")).to_be_visible()
    visitor.go("/settings/backups")
    expect(page.get_by_text("No backup yet")).to_be_visible()
    page.get_by_role("button", name="Back up now").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    visitor.check_accessible()
    assert len(list((fresh.home / "backups").glob("athena-*.db"))) == 1
    assert fresh.execute("create_backup", {}).status == 404  # for persons alone


def test_privacy_page_shows_no_values(visit: Visit, tmp_path: Path) -> None:
    with run_server(tmp_path, ATHENA_PRIVACY="boundary", ATHENA_VAULT_KEY_FOLDER=str(tmp_path / "keys")) as server:
        server.call("remember", content="Ada's address is ada@example.com, her phone +47 22 33 44 55")
        visitor = visit(server)
        page = visitor.go("/settings/privacy")
        expect(page.get_by_role("cell", name="EMAIL", exact=False).first).to_be_visible()
        assert "ada@example.com" not in page.content()
        visitor.check_accessible()
