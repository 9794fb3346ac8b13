"""The ignore rules of a folder: `.gitignore` in it, below it and, up to the repository's root, above it."""

import os

from pathspec import GitIgnoreSpec

from athena.core.files import open_beneath

RULES_NAME = ".gitignore"
MAX_RULES_BYTES = 1_000_000
MAX_RULES = 10_000


class IgnoreRules:
    """Decides which paths beneath a folder are ignored, as git does."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._specs: dict[str, GitIgnoreSpec | None] = {}
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
            spec = self._get_spec(folder)
            if spec is not None:
                relative_path = os.path.relpath(path, folder) if folder else path
                include = spec.check_file(relative_path + "/" * is_folder).include
                if include is not None:
                    return include
            if not folder:
                return False
            folder = os.path.dirname(folder)

    def _get_spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            self._specs[folder] = self._read_spec(os.path.join(folder, RULES_NAME))
        return self._specs[folder]

    def _read_spec(self, path: str) -> GitIgnoreSpec | None:
        try:
            file = open_beneath(self._root, path)
        except OSError:
            return None
        with open(file, "rb") as stream:
            lines = stream.read(MAX_RULES_BYTES).decode("utf-8", "replace").splitlines()[:MAX_RULES]
        try:
            return GitIgnoreSpec.from_lines(lines)
        except ValueError:  # one line is no rule
            return GitIgnoreSpec.from_lines(line for line in lines if _is_rule(line))


def _is_rule(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


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
