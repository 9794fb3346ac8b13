"""The ignore rules of a folder: `.gitignore` in it, below it and, up to the repository's root, above it."""

import os

from athena.core.files import open_beneath
from athena.documents.ignore_rule import IgnoreRule, compile_rule

RULES_NAME = ".gitignore"
MAX_RULES_BYTES = 1_000_000
MAX_RULES = 10_000


class IgnoreRules:
    """Decides which paths beneath a folder are ignored, as git does."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._rules: dict[str, list[IgnoreRule]] = {}  # by folder, the last one first
        self._ignored_folders: dict[str, bool] = {"": False}

    def is_ignored(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a path is ignored, by itself or with a folder above it."""
        if path in self._ignored_folders:
            return self._ignored_folders[path]
        ignored = self.is_ignored(os.path.dirname(path), is_folder=True) or self._matches(path, is_folder)
        if is_folder:
            self._ignored_folders[path] = ignored
        return ignored

    def _matches(self, path: str, is_folder: bool) -> bool:
        """Return what the rules nearest to a path say about it."""
        folder = os.path.dirname(path)
        while True:
            relative_path = os.path.relpath(path, folder) if folder else path
            for rule in self._get_rules(folder):
                if (is_folder or not rule.is_for_folders) and rule.regex.fullmatch(relative_path):
                    return rule.ignores
            if not folder:
                return False
            folder = os.path.dirname(folder)

    def _get_rules(self, folder: str) -> list[IgnoreRule]:
        if folder not in self._rules:
            self._rules[folder] = self._read_rules(os.path.join(folder, RULES_NAME))
        return self._rules[folder]

    def _read_rules(self, path: str) -> list[IgnoreRule]:
        try:
            file = open_beneath(self._root, path)
        except OSError:
            return []
        with open(file, "rb") as stream:
            lines = stream.read(MAX_RULES_BYTES).decode("utf-8", "surrogateescape").splitlines()[:MAX_RULES]
        rules = [rule for line in lines if (rule := compile_rule(line)) is not None]
        return rules[::-1]


def find_rules_root(folder: str) -> str:
    """Return the root of the repository that a folder is in, else the folder itself."""
    current = folder
    while True:
        if os.path.lexists(os.path.join(current, ".git")):
            return current
        parent = os.path.dirname(current)
        if parent == current:
            return folder
        current = parent
