"""A set-up that is said to the client's own command, which then writes its own file."""

from collections.abc import Sequence
from typing import NamedTuple

from athena.cli.clients import files
from athena.cli.clients.files import Change, Record
from athena.cli.clients.setup import Edited, Place, Told, parsed, tell


class Words(NamedTuple):
    """What to say, and the same as an edit: it tells whether that is so already, and helps where it was not done."""

    place: Place
    add: list[list[str]]
    remove: list[list[str]]
    edit: Edited

    def plan(self, record: Record, remove: bool) -> Sequence[Change | Told]:
        changes = self.edit.plan(record, remove)
        if not changes or self._without_words(record, remove):
            return changes
        return [Told(words, self.edit.path) for words in (self.remove if remove else self.add)]

    def run(self, record: Record, remove: bool) -> Sequence[Change | Told]:
        if self._without_words(record, remove):
            return self.edit.run(record, remove)
        planned = self.plan(record, remove)
        if not planned:
            return []
        path, before = self.edit.path, files.read(self.edit.path)
        wanted = self.edit.plan(record, remove)[0].after
        if not remove:
            record.keep(path, self.edit.without(record, before), None)
        for told in planned:
            assert isinstance(told, Told)
            tell(told.words, self.place)
        now = files.read(path)
        if remove:
            # Its command took ours out; where it says the same as before, the bytes shall be the same too.
            if self._same(now, wanted):
                files.write(Change(path, now, wanted))
                record.forget(path)
                return planned
            return [*planned, *self.edit.run(record, remove)]
        if now != wanted and self._same(now, wanted):
            files.write(Change(path, now, wanted))  # commands tidy up what others wrote, too
            now = wanted
        record.keep(path, record.before(path), now)
        # Some commands only hand it to a window that is open, or have nobody to hand it to.
        return [*planned, *(self.edit.run(record, remove) if self.edit.plan(record, remove) else [])]

    def differs(self) -> bool:
        return self.edit.differs()

    def _without_words(self, record: Record, remove: bool) -> bool:
        """Tell whether we change the file: there is no command for it, or it would undo somebody's changes."""
        return bool(not self.remove or self.edit.known(record)) if remove else self.edit.differs()

    def _same(self, one: str | None, other: str | None) -> bool:
        return bool(parsed(one, self.edit.form.parse) == parsed(other, self.edit.form.parse))
