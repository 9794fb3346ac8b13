"""Undo on the page: it takes back what its notice tells of, and nothing else."""

import re

from test_page_access import ask, open_forms, post

from http_tools import RunningServer


class Forms:
    """A person who sends forms, without a browser."""

    def __init__(self, server: RunningServer) -> None:
        self.server, (self.cookie, token) = server, open_forms(server)
        self.fields = {"form_token": token, "project": "test"}

    def send(self, path: str, **fields: str) -> str:
        """Send a form; return the key of the Undo that the next page offers, or nothing."""
        assert post(self.server, path, self.cookie, **self.fields, **fields).status == 303
        shown = ask(self.server, "GET", "/memories", Cookie=self.cookie).body.decode()
        assert 'class="notice"' in shown
        match = re.search(r'name="key" value="([^"]+)"', shown)
        return match[1] if match else ""

    def undo(self, key: str) -> int:
        return post(self.server, "/undo", self.cookie, **self.fields, key=key).status


def test_what_changed_nothing_offers_no_undo(fresh: RunningServer) -> None:
    forms = Forms(fresh)
    assert forms.send("/memories/remember", content="Deploys run on Fridays")
    assert forms.send("/patterns/look") == ""
    assert forms.send("/memories/remember", content="Deploys run on Fridays") == ""
    assert forms.send("/memories/tag", id="1", tags="deploy")
    assert forms.send("/memories/tag", id="1", tags="deploy") == ""
    assert fresh.count() == 1


def test_undo_takes_back_its_own_change_alone(fresh: RunningServer) -> None:
    forms = Forms(fresh)
    first = forms.send("/memories/remember", content="Deploys run on Fridays")
    second = forms.send("/memories/remember", content="The office closes at six")
    assert forms.undo(first) == 409
    assert fresh.count() == 2
    fresh.call("remember", content="What an agent stores is no change of the page")
    assert forms.undo(second) == 303
    assert [memory["content"] for memory in fresh.call("list_memories")][1:] == ["Deploys run on Fridays"]
    assert forms.undo(second) == 422
    assert fresh.count() == 2


def test_undo_gives_author_back_with_text(fresh: RunningServer) -> None:
    fresh.call("remember", content="Deploys run on Fridays", tags=["deploy"])
    forms = Forms(fresh)
    seen = str(fresh.call("get_memory", memory_id=1)["updated"])
    key = forms.send("/memories/1/edit", content="Deploys run on Mondays", tags="monday", updated=seen)
    assert fresh.call("get_memory", memory_id=1)["author"] == "person"
    assert forms.undo(key) == 303
    memory = fresh.call("get_memory", memory_id=1)
    assert (memory["content"], memory["author"]) == ("Deploys run on Fridays", "agent")
    assert memory["tags"] == ["deploy"]


def test_merge_is_named_and_undone(fresh: RunningServer) -> None:
    fresh.call("remember", content="Deploys run on Fridays", tags=["a"])
    fresh.call("remember", content="We deploy every Friday", tags=["b"])
    forms = Forms(fresh)
    key = forms.send("/memories/merge", keep="1", id="2")
    assert "<strong>Merged</strong>" in ask(fresh, "GET", "/memories/1", Cookie=forms.cookie).body.decode()
    assert forms.undo(key) == 303
    assert fresh.count() == 2
    assert fresh.call("get_memory", memory_id=1)["tags"] == ["a"]
