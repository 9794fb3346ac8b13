"""The store against a plain dictionary: after any sequence of operations both agree."""

import re
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from athena import testing
from athena.core.hashing import hash_text
from athena.core.threads import run_sync
from conftest import MODEL, rounds

WORDS = st.sampled_from(["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "数据", "naïve"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
TAGS = st.lists(st.sampled_from(["red", "Blue", "green"]), max_size=3)


class StoreAgainstDictionary(RuleBasedStateMachine):
    numbers: Bundle[int] = Bundle("numbers")

    @initialize()
    def open(self) -> None:
        self.isolated = testing.isolated(MODEL)
        self.app = self.isolated.__enter__()
        self.live: dict[int, dict[str, Any]] = {}
        self.gone: dict[int, dict[str, Any]] = {}
        self.undoable: list[Any] = []

    def teardown(self) -> None:
        if hasattr(self, "isolated"):
            self.isolated.__exit__(None, None, None)

    def call(self, name: str, **arguments: Any) -> Any:
        return run_sync(self.app.catalog.get_operation(name)(self.app.create_context("p", "python"), **arguments))

    @rule(target=numbers, content=TEXTS, tags=TAGS)
    def remember(self, content: str, tags: list[str]) -> Any:
        stored = self.call("remember", content=content, tags=tags)
        known = next((n for n, m in (self.live | self.gone).items() if m["content"] == content), None)
        assert (stored.outcome, known) in (("new", None), ("known", stored.id), ("revived", stored.id))
        before = self.live.pop(stored.id, None) or self.gone.pop(stored.id, {"tags": []})
        merged = {tag.casefold() for tag in [*before["tags"], *tags]}
        self.live[stored.id] = {"content": content, "tags": merged}
        assert {tag.casefold() for tag in stored.tags} == merged
        return stored.id if known is None else multiple()

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        assert self.call("forget", memory_id=number) is (number in self.live)
        if number in self.live:
            self.gone[number] = self.live.pop(number)

    @rule(number=numbers)
    def restore(self, number: int) -> None:
        if number in self.live or number in self.gone:
            assert self.call("restore_memory", memory_id=number) is (number in self.gone)
            if number in self.gone:
                self.live[number] = self.gone.pop(number)

    @rule(number=numbers, content=TEXTS)
    def update(self, number: int, content: str) -> None:
        taken = {m["content"] for n, m in (self.live | self.gone).items() if n != number}
        if number in self.live and content not in taken:
            self.call("update_memory", memory_id=number, content=content)
            self.live[number]["content"] = content

    @rule(number=numbers)
    def forget_and_undo(self, number: int) -> None:
        if number in self.live:
            self.call("forget", memory_id=number)
            self.call("undo")

    @rule(number=consumes(numbers))
    def purge(self, number: int) -> None:
        if number in self.live or number in self.gone:
            self.call("purge", memory_ids=[number], expect=1)
            self.live.pop(number, None)
            self.gone.pop(number, None)

    @rule(word=WORDS)
    def search_finds_exactly_what_holds_the_word(self, word: str) -> None:
        pattern = re.compile(rf"(?<!\w){word}(?!\w)")
        holding = {n for n, m in self.live.items() if pattern.search(m["content"])}
        hits = self.call("recall", query=word, k=1000)
        assert holding <= {hit.id for hit in hits}, "the floor hides no memory that holds the word"
        everything = self.call("recall", query=word, k=1000, min_score=0)
        assert {hit.id for hit in everything} == set(self.live), "meaning ranks everything that is there"
        assert all(0 <= hit.score <= 1 for hit in hits)

    @rule(tag=st.sampled_from(["RED", "blue", "green"]))
    def tags_find_what_has_them(self, tag: str) -> None:
        hits = self.call("search_by_tag", tags=tag, k=1000)
        assert {memory.id for memory in hits} == {n for n, m in self.live.items() if tag.casefold() in m["tags"]}

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "app"):
            return
        listed = {memory.id: memory for memory in self.call("list_memories", k=1000)}
        assert {n: m.content for n, m in listed.items()} == {n: m["content"] for n, m in self.live.items()}
        assert all(hash_text(memory.content).startswith(memory.hash) for memory in listed.values())
        tags = Counter(tag for memory in self.live.values() for tag in memory["tags"])
        assert {count.tag.casefold(): count.count for count in self.call("list_tags")} == tags
        stats = self.call("stats")
        assert stats["memories"] == len(self.live)
        assert stats["characters"] == sum(len(memory["content"]) for memory in self.live.values())
        assert stats["most_used_tags"] == dict(tags)
        verdict = self.call("verify")
        assert verdict.ok, verdict.problems


TestStoreAgainstDictionary = StoreAgainstDictionary.TestCase
TestStoreAgainstDictionary.settings = settings(max_examples=rounds(8, 300), stateful_step_count=25, deadline=None)
