"""Back up a store while it is in use: a copy that is checked before it gets its name, encrypted if asked.

A backup of either engine is a SQLite file that Athena opens. An encrypted one is a sequence of chunks, each sealed with
its number and whether it is the last, so that no chunk can be changed, moved or left out.
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import IO, TYPE_CHECKING, NamedTuple

from athena.core.files import NewFile, create_private_folder
from athena.core.threads import run_sync
from athena.errors import AthenaError, Conflict, InvalidInput, Misconfigured, NotFound, Unavailable
from athena.storage import copying
from athena.storage.database import Database
from athena.storage.sqlite.restore import check_store, copy_store_file, is_store_file, remove_store_files
from athena.storage.sqlite.store import Sqlite

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"athena backup 1\n"
SALT_BYTES, NONCE_BYTES, TAG_BYTES = 16, 12, 16
CHUNK_BYTES = 1 << 20
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 15, 8, 1
SCRYPT_MAX_BYTES = 64 << 20
PART_LABEL = "backup-"
MAX_AHEAD_S = 86_400.0  # a backup of a later time is of a wrong clock
NAME_PATTERN = re.compile(r"athena-\d{8}-\d{6}\.db(\.enc)?")  # of the backups that rotation may delete
PART_PATTERN = re.compile(rf"({NAME_PATTERN.pattern}|\.athena-{PART_LABEL}\w+)\.part(-\w+)?")  # of a killed run
MAX_KEY_FILE_BYTES = 4_096


class Backup(NamedTuple):
    path: str
    kept: dict[str, int]  # how many memories it has, and of other kinds
    size: int  # in bytes
    removed: tuple[str, ...] = ()  # older backups that rotation deleted


def create_backup(
    database: Database, target: str, staging: str, secret: bytes | None = None, *, replace: bool = False
) -> Backup:
    """Copy a store into a file, check the copy whole, then give it its name; encrypt it if there is a secret.

    One process at a time may do so. `staging` is where the copy is before it is encrypted: beside the store, since the
    target may be another's disk.
    """
    if isinstance(database, Sqlite) and is_store_file(target, database.path):
        raise InvalidInput(f"{target} is the store itself", hint="name another file")
    if os.path.lexists(target) and not replace:
        raise Conflict(f"{target} exists", hint="name another file, or add --force to replace it")
    if not os.path.isdir(os.path.dirname(target)):
        raise NotFound(f"there is no folder {os.path.dirname(target)}", hint="make it first")
    try:
        with NewFile(target, label=PART_LABEL) as file:
            part = file.temp_path
            plain = part if secret is None else staging
            try:
                if secret is not None:
                    remove_store_files(plain)
                    os.close(_create_private(plain))
                _copy_database(database, plain)
                kept = _check_copy(database, plain)
                if secret is not None:
                    _encrypt_file(plain, file, secret)
                os.fsync(file.descriptor)
                size = os.path.getsize(part)
                file.replace()
            finally:
                remove_store_files(part)
                remove_store_files(plain)
    except OSError as error:
        raise Misconfigured(f"{target} cannot be written: {error.strerror}", hint="name another place") from None
    return Backup(target, kept, size)


def create_next_backup(database: Database, folder: str, keep: int, staging: str, secret: bytes | None = None) -> Backup:
    """Add a backup to a folder, named after the time, and delete the oldest of more than `keep`."""
    create_private_folder(folder)
    name = f"athena-{time.strftime('%Y%m%d-%H%M%S')}.db{'.enc' if secret else ''}"
    for left_over in (name for name in os.listdir(folder) if PART_PATTERN.fullmatch(name)):
        os.unlink(os.path.join(folder, left_over))
    backup = create_backup(database, os.path.join(folder, name), staging, secret, replace=True)
    others = [path for path in list_backups(folder) if path != backup.path]
    soon = time.time() + MAX_AHEAD_S
    others.sort(key=lambda path: (os.path.getmtime(path) < soon, os.path.getmtime(path), path))
    old = others[: max(0, len(others) + 1 - keep)]
    for path in old:
        os.unlink(path)
    return backup._replace(removed=tuple(old))


def list_backups(folder: str) -> list[str]:
    """Return the backups in a folder that are named after their time, the oldest first."""
    try:
        names = sorted(name for name in os.listdir(folder) if NAME_PATTERN.fullmatch(name))
    except FileNotFoundError:
        return []
    return [os.path.join(folder, name) for name in names]


def is_due(folder: str, interval_s: float, now: float) -> bool:
    """Return whether a folder has no backup that is younger than an interval."""
    ages_s = [now - os.path.getmtime(path) for path in list_backups(folder)]
    return not any(0 <= age_s < interval_s for age_s in ages_s)  # one of a time to come is of a wrong clock


def read_secret(path: str) -> bytes:
    """Return the content of a key file, without white space around it."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            is_private = not os.fstat(file.fileno()).st_mode & 0o077
            secret = file.read(MAX_KEY_FILE_BYTES).strip()
    except OSError as error:
        raise NotFound(f"the key file {path} cannot be read: {error.strerror}") from None
    if not is_private:
        raise InvalidInput(f"others can read the key file {path}", hint=f"chmod 600 {path}")
    if len(secret) < 16:
        raise InvalidInput(f"the key file {path} has fewer than 16 bytes", hint="openssl rand -hex 32 > KEY_FILE")
    return secret


def _copy_database(database: Database, target: str) -> None:
    if isinstance(database, Sqlite):
        copy_store_file(database.path, target, create=False)
        return
    with closing(Sqlite(target, copying="to")) as copy:
        copying.copy_store(database, copy)


def _check_copy(database: Database, path: str) -> dict[str, int]:
    """Check a copy whole and return what it has; an error says whether the store is damaged, or only the copy."""
    try:
        return check_store(path, "the copy")
    except AthenaError:
        try:
            problems = run_sync(database.read(database.find_problems))
        except AthenaError as error:
            problems = [str(error)]
        if not problems:
            raise
    message = f"the store itself is damaged, so no backup was written: {problems[0]}"
    raise Unavailable(message, hint="`athena restore` lists the earlier backups", retry=False)


# --- encryption -------------------------------------------------------------------------------------------------------


def is_encrypted(path: str) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def decrypt_backup(path: str, target: str, secret: bytes) -> None:
    """Write the plain store of an encrypted backup; raise an error for a wrong secret or a changed file."""
    remove_store_files(target)
    with open(path, "rb") as source, open(_create_private(target), "wb") as plain:
        for chunk in _open_chunks(source, path, secret):
            plain.write(chunk)


def _encrypt_file(source_path: str, target: NewFile, secret: bytes) -> None:
    """Encrypt a file, then read it back and compare it with the source."""
    salt, prefix = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES - 5)
    checksum = hashlib.sha256()
    with open(source_path, "rb") as source, open(target.descriptor, "w+b", closefd=False) as sealed:
        cipher = _create_cipher(secret, salt)
        sealed.write(MAGIC + salt + prefix)
        chunk, number = source.read(CHUNK_BYTES), 0
        while chunk or not number:
            following = source.read(CHUNK_BYTES)
            checksum.update(chunk)
            sealed.write(cipher.encrypt(_create_nonce(prefix, number, not following), chunk, MAGIC))
            chunk, number = following, number + 1
        copy_sum = hashlib.sha256()
        sealed.seek(0)
        for chunk in _open_chunks(sealed, target.path, secret):
            copy_sum.update(chunk)
    if copy_sum.digest() != checksum.digest():
        raise Misconfigured(f"{target.path} is not what was written", hint="is the disk sound? Name another place")


def _open_chunks(source: IO[bytes], path: str, secret: bytes) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag  # only where a backup is encrypted

    head = source.read(len(MAGIC) + SALT_BYTES + NONCE_BYTES - 5)
    salt, prefix = head[len(MAGIC) : -(NONCE_BYTES - 5)], head[-(NONCE_BYTES - 5) :]
    if not head.startswith(MAGIC) or len(salt) != SALT_BYTES:
        raise InvalidInput(f"{path} is no encrypted backup", hint="name a file of athena backup --encrypt")
    cipher = _create_cipher(secret, salt)
    sealed, number = source.read(CHUNK_BYTES + TAG_BYTES), 0
    while sealed or not number:
        following = source.read(CHUNK_BYTES + TAG_BYTES)
        try:
            yield cipher.decrypt(_create_nonce(prefix, number, not following), sealed, MAGIC)
        except InvalidTag:
            problem = "the passphrase is wrong, or the file was changed" if not number else "the file was changed"
            raise InvalidInput(f"{path} cannot be decrypted: {problem}", hint="try again, or name another") from None
        sealed, number = following, number + 1


def _create_cipher(secret: bytes, salt: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only where a backup is encrypted

    key = hashlib.scrypt(secret, salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, maxmem=SCRYPT_MAX_BYTES, dklen=32)
    return AESGCM(key)


def _create_nonce(prefix: bytes, number: int, is_last: bool) -> bytes:
    return prefix + number.to_bytes(4) + bytes([is_last])


def _create_private(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
