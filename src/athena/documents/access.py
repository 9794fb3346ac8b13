"""Which files a caller may ingest, and how they are opened: beneath a root, without following links."""

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from athena.core.files import iter_files_beneath, open_beneath, open_folder_beneath
from athena.documents.ignore import IgnoreRules, find_rules_root
from athena.errors import Denied, InvalidInput, NotFound

IGNORED_FOLDERS = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}
# Files and folders that hold keys or passwords. A walk skips them; only a person or an application can name one.
KEY_NAME_PATTERN = re.compile(
    r""".*(^|[._-])(id_(rsa|dsa|ecdsa|ed25519)(_sk)?|kubeconfig|private[._-]?keys?|credentials?|secrets?|passwords?|tokens?
        |shadow|wallet|htpasswd|service[._-]account|client[._-]secret)([._-].*)?
    | .*\.(pem|key|ppk|p12|pfx|p8|jks|keystore|kdbx?|asc|gpg|ovpn|age|env|tf(state|vars))(\..*)?
    | \.(netrc|pgpass|npmrc|pypirc|dockercfg|boto|s3cfg|my\.cnf|git-credentials|vault-token|envrc)(\..*)?
    | \.(ssh|gnupg|aws|azure|kube|docker|password-store|gem|cargo|config|local|mozilla|[a-z]+_history)""",
    re.IGNORECASE | re.VERBOSE,
)
HEAD_BYTES = 64
PERSON_HINT = "a person can: athena ingest PATH"
ROOTS_HINT = "a person ingests it (athena ingest PATH) or adds its folder to documents.roots in config.toml"

# How copies of the store begin, which hold all projects: a database file, a backup, an export, a note of an export.
STORE_COPY_HEADS = (b"SQLite format 3\0", b"athena backup 1\n", b'{"format":"athena"', b"---\nathena: ")

FileId = tuple[int, int]  # device and inode


class FileAccess(NamedTuple):
    """The files that a caller may ingest: any, or those beneath folders that a person allowed; never Athena's own."""

    data_folder: str | None
    is_confined: bool = True  # a person or an application has the rights of its process; programs and models do not
    roots: tuple[str, ...] = ()  # where a confined caller may read
    own_paths: tuple[str, ...] = ()  # further files and folders of Athena: the vault's keys, the database, backups
    said_path: str = ""  # what the caller wrote, where it is not the path: errors quote it, since it has tokens

    def locate(self, path: str) -> "Location":
        """Return where a path leads, or say why the caller may not read it."""
        _check_path(path)
        own_paths = [path for path in (self.data_folder, *self.own_paths) if path]
        forbidden = frozenset[FileId]().union(*map(_list_file_ids, own_paths))
        if not self.is_confined:
            full_path = os.path.realpath(os.path.expanduser(path))
            folder, name = os.path.split(full_path)
            location = (
                Location(full_path, "", forbidden) if os.path.isdir(full_path) else Location(folder, name, forbidden)
            )
            if not os.path.exists(full_path):
                raise _create_not_found(self.said_path or path)
        else:
            location = Location(*self._find_root(path), forbidden, hides_dotfiles=True)
            if location.path and (reason := location.find_refusal(location.path)):
                quoted = f"{self.said_path or path!r:.200}"
                raise Denied(f"programs and models cannot ingest {quoted}: {reason}", hint=PERSON_HINT)
        for own_path in own_paths:
            if _is_inside(location.full_path, os.path.realpath(own_path)):
                name = "Athena's own data folder" if own_path == self.data_folder else "a file of Athena's own"
                raise Denied(f"{name} cannot be ingested", hint="choose another file or folder")
        return location

    def resolve_source(self, source: str) -> str:
        """Return the path that a document is stored under, given that path or a shorter form of it."""
        _check_path(source)
        if not self.is_confined:
            return escape_path(os.path.realpath(os.path.expanduser(source)))
        # looks at no file: where a link leads is none of the caller's business
        base = os.path.realpath(self.roots[0]) if self.roots else os.sep
        return escape_path(os.path.normpath(os.path.join(base, source)))

    def is_gone(self, path: str) -> bool:
        """Return whether a file that was ingested is no longer there; one that cannot be looked at may be there.

        A program can store any path as a document's: a confined caller learns nothing of files outside of its folders.
        """
        try:
            if not self.is_confined:
                os.lstat(path)
                return False
            for root in map(os.path.realpath, self.roots):
                if path == os.path.normpath(path) and _is_inside(path, root):
                    _look_beneath(root, os.path.relpath(path, root))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            pass
        return False

    def _find_root(self, path: str) -> tuple[str, str]:
        """Return the allowed folder that a path lies in, and the path beneath it; look at nothing outside of them."""
        if not self.roots:
            raise Denied("programs and models may read no folder in this project", hint=ROOTS_HINT)
        candidates: list[tuple[str, str]] = []
        for root in self.roots:
            real_root = os.path.realpath(root)
            for base in dict.fromkeys((real_root, os.path.abspath(root))):
                full_path = os.path.normpath(os.path.join(base, path))
                if _is_inside(full_path, base):
                    candidates.append((real_root, os.path.relpath(full_path, base).removeprefix(os.curdir)))
        if not candidates:
            quoted = f"{self.said_path or path!r:.200}"
            raise Denied(f"programs and models cannot read {quoted}: no allowed folder has it", hint=ROOTS_HINT)
        for root, relative_path in candidates:
            if not relative_path or _exists_beneath(root, relative_path):
                return root, relative_path
        raise _create_not_found(self.said_path or path)


class Location(NamedTuple):
    """A file or folder to ingest: `path` beneath `root`, or `root` itself where the path is empty."""

    root: str
    path: str
    forbidden: frozenset[FileId]  # Athena's own files and folders
    hides_dotfiles: bool = False

    @property
    def full_path(self) -> str:
        return os.path.join(self.root, self.path) if self.path else self.root

    def find_refusal(self, relative_path: str) -> str:
        """Return why a file or folder is left out; empty if it may be read."""
        parts = relative_path.split(os.sep)
        if any(KEY_NAME_PATTERN.fullmatch(part) for part in parts):
            return "it may hold keys"
        return "it is hidden" if self.hides_dotfiles and any(part.startswith(".") for part in parts) else ""

    def iter_files(self) -> Iterator[tuple[str, int | OSError]]:
        """Yield the full path and an open descriptor of each file, or the reason why it is left out; follow no link."""
        if self.path:
            try:
                file = open_beneath(self.root, self.path)
            except IsADirectoryError:
                pass
            except OSError as error:
                yield self.full_path, error
                return
            else:
                try:
                    yield self.full_path, self._refuse_own_file(file)
                finally:
                    os.close(file)
                return
        is_ignored = self._create_ignore_check()

        def may_enter(folder: str) -> bool:
            return self._may_enter(folder) and not is_ignored(folder, is_folder=True)

        for relative_path, opened in iter_files_beneath(self.root, may_enter, start=self.path):
            if is_ignored(relative_path):
                continue
            refusal = self.find_refusal(relative_path)
            if refusal or isinstance(opened, OSError):
                yield self._join(relative_path), PermissionError(0, refusal) if refusal else opened
            else:
                yield self._join(relative_path), self._refuse_own_file(opened)

    def _create_ignore_check(self) -> Callable[..., bool]:
        """Return a function that says whether a path below the folder is ignored; a folder that was named is not."""
        base = self.full_path
        rules_root = self.root if self.hides_dotfiles else find_rules_root(base)
        prefix = os.path.relpath(base, rules_root).removeprefix(os.curdir)
        rules = IgnoreRules(rules_root)
        if rules.is_ignored(prefix, is_folder=True):
            rules, prefix = IgnoreRules(base), ""
        return lambda path, *, is_folder=False: rules.is_ignored(os.path.join(prefix, path), is_folder=is_folder)

    def _may_enter(self, relative_path: str) -> bool:
        if os.path.basename(relative_path) in IGNORED_FOLDERS or self.find_refusal(relative_path):
            return False
        try:
            return _get_id(os.lstat(self._join(relative_path))) not in self.forbidden
        except OSError:
            return False

    def _join(self, relative_path: str) -> str:
        return os.path.join(self.full_path, relative_path)

    def _refuse_own_file(self, file: int) -> int | OSError:
        """Return the descriptor, or the refusal of a file of Athena, by whatever path or hard link it was opened.

        Programs and models are refused copies of the store too, wherever they lie: they hold other projects.
        """
        if _get_id(os.fstat(file)) in self.forbidden:
            return PermissionError(0, "it belongs to Athena")
        if self.hides_dotfiles and os.pread(file, HEAD_BYTES, 0).startswith(STORE_COPY_HEADS):
            return PermissionError(0, "it is a copy of Athena's store")
        return file


def find_project_roots(project: str) -> tuple[str, ...]:
    """Return the project's own folder: the git repository that it is named after, unless that holds a whole home."""
    is_repository = os.path.isabs(project) and os.path.exists(os.path.join(project, ".git"))
    home = os.path.realpath(os.path.expanduser("~"))
    return (project,) if is_repository and not _is_inside(home, os.path.realpath(project)) else ()


def escape_path(path: str) -> str:
    """Return a path with undecodable bytes as escapes, so that it can be stored."""
    return path.encode("utf-8", "backslashreplace").decode()


def _check_path(path: str) -> None:
    if "\0" in path:
        raise InvalidInput("path must not hold a NUL character")


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _exists_beneath(root: str, relative_path: str) -> bool:
    try:
        os.close(open_beneath(root, relative_path, os.O_RDONLY))
    except IsADirectoryError:
        return True
    except OSError:
        return False
    return True


def _look_beneath(root: str, relative_path: str) -> None:
    """Raise OSError if there is no file or folder at a path beneath a root, or a link is on the way to it."""
    folder_path, name = os.path.split(relative_path)
    folder = open_folder_beneath(root, folder_path)
    try:
        os.lstat(name, dir_fd=folder)
    finally:
        os.close(folder)


def _list_file_ids(folder: str) -> frozenset[FileId]:
    """Return the identities of a file, or of a folder and of all files and folders below it."""
    paths = [folder, folder := os.path.realpath(folder)]
    for parent, folders, files in os.walk(folder):
        paths += [os.path.join(parent, name) for name in (*folders, *files)]
    return frozenset(_get_id(os.lstat(path)) for path in paths if os.path.lexists(path))


def _get_id(facts: os.stat_result) -> FileId:
    return facts.st_dev, facts.st_ino


def _create_not_found(path: str) -> NotFound:
    return NotFound(f"there is no file or folder {path!r:.200}", hint="give a path that exists")
