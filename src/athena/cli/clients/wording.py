"""A set-up that is said to the client's own command, which then writes its own file."""

from collections.abc import Sequence
from typing import NamedTuple

from athena.cli.clients import files
from athena.cli.clients.files import BackupRecord, Change
from athena.cli.clients.setup import FileEdit, SetupTarget, Told, parse_config, run_client_command


class CommandStep(NamedTuple):
    """What to say, and the same as an edit: it tells whether that is so already, and helps where it was not done."""

    target: SetupTarget
    add_commands: list[list[str]]
    remove_commands: list[list[str]]
    edit: FileEdit

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change | Told]:
        changes = self.edit.plan_changes(record, remove)
        if not changes or self._must_edit_file(record, remove):
            return changes
        return [Told(words, self.edit.path) for words in (self.remove_commands if remove else self.add_commands)]

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change | Told]:
        if self._must_edit_file(record, remove):
            return self.edit.apply_changes(record, remove)
        planned = self.plan_changes(record, remove)
        if not planned:
            return []
        path, before = self.edit.path, files.read_config(self.edit.path)
        wanted = self.edit.plan_changes(record, remove)[0].after
        if not remove:
            record.save_original(path, self.edit.remove_entries(record, before), None)
        for told in planned:
            assert isinstance(told, Told)
            run_client_command(told.argv, self.target)
        now = files.read_config(path)
        if remove:
            # Its command took ours out; where it says the same as before, the bytes shall be the same too.
            if self._is_same_config(now, wanted):
                files.write_change(Change(path, now, wanted))
                record.forget_file(path)
                return planned
            return [*planned, *self.edit.apply_changes(record, remove)]
        if now != wanted and self._is_same_config(now, wanted):
            files.write_change(Change(path, now, wanted))  # commands tidy up what others wrote, too
            now = wanted
        record.save_original(path, record.original_text(path), now)
        # Some commands only hand it to a window that is open, or have nobody to hand it to.
        return [*planned, *(self.edit.apply_changes(record, remove) if self.edit.plan_changes(record, remove) else [])]

    def is_modified(self) -> bool:
        return self.edit.is_modified()

    def _must_edit_file(self, record: BackupRecord, remove: bool) -> bool:
        """Tell whether we change the file: there is no command for it, or it would undo somebody's changes."""
        return (
            bool(not self.remove_commands or self.edit.find_preexisting(record)) if remove else self.edit.is_modified()
        )

    def _is_same_config(self, one: str | None, other: str | None) -> bool:
        return bool(parse_config(one, self.edit.text_format.parse) == parse_config(other, self.edit.text_format.parse))
