"""The keys of the vault, files outside of the folder of the database, and what is encrypted or signed with them."""

import hashlib
import hmac
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from athena.core import files
from athena.errors import Conflict, Misconfigured
from athena.storage.vault_rows import VaultRow

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
RECEIPTS_KEY = "receipts"  # signs the arguments of calls with an idempotency key
TURNS_KEY = "turns"  # signs the turns of sessions that were learned from; it stays, or what was purged would come back


class KeyFolder:
    """The folder with the keys, one file each; without a folder, keys live in memory for as long as the process."""

    def __init__(self, path: str | None, database_folder: str | None = None) -> None:
        self.path, self._database_folder = path, database_folder
        self._in_memory: dict[str, bytes] = {}

    def get_file(self, key: str) -> str:
        assert self.path is not None
        return os.path.join(self.path, f"{key}.key")

    def read(self, key: str) -> bytes:
        if self.path is None:
            return self._in_memory[key]
        path = self.get_file(key)
        try:
            with open(path, encoding="ascii") as file:
                data = bytes.fromhex(file.read().strip())
            if os.stat(path).st_mode & 0o077:
                raise Misconfigured(f"others can read the key {path}", hint=f"chmod 600 {path}")
        except (OSError, ValueError):
            raise Misconfigured(
                f"the key of the vault is missing or damaged: {path}",
                hint="put the file back, or set vault.key_folder to the folder that holds it",
            ) from None
        if len(data) != KEY_BYTES:
            raise Misconfigured(f"{path} is no key of a vault", hint="put the right file back")
        return data

    def create(self) -> str:
        """Write a new key and return its id."""
        key, data = os.urandom(8).hex(), os.urandom(KEY_BYTES)
        if self.path is None:
            self._in_memory[key] = data
            return key
        if not self._write(key, data):
            raise Conflict(f"there is a key {key} already", hint="try again")
        return key

    def sign(self, text: str, name: str = RECEIPTS_KEY) -> str:
        """Return a keyed hash of a text, which tells nobody without the key what the text was.

        Before the colon stands which key it is: hashes of different keys say nothing of their texts.
        """
        key = self._in_memory.get(name)
        if key is None:
            key = self._in_memory.setdefault(name, self._ensure_signing_key(name))
        prefix = derive_key(key, f"{name} name".encode())[:4].hex()
        data = text.encode("utf-8", "surrogatepass")
        return f"{prefix}:{hmac.new(derive_key(key, name.encode()), data, hashlib.sha256).hexdigest()}"

    def _ensure_signing_key(self, name: str) -> bytes:
        """Return the key for `sign`; where none can be stored, one that only this process has: no call fails for it."""
        with suppress(Misconfigured, OSError):
            if self.path is not None:
                if not os.path.exists(self.get_file(name)):
                    self._write(name, os.urandom(KEY_BYTES))
                return self.read(name)
        return os.urandom(KEY_BYTES)

    def _write(self, key: str, data: bytes) -> bool:
        """Write the file of a key; False if there is one."""
        assert self.path is not None
        self._check_place()
        files.create_private_folder(self.path)
        return files.create_file_atomically(self.get_file(key), data.hex().encode() + b"\n", mode=0o600)

    def _check_place(self) -> None:
        folder = os.path.realpath(self.path or "")
        database = self._database_folder and os.path.realpath(self._database_folder)
        if database and os.path.commonpath([folder, database]) == database:
            raise Misconfigured(
                f"the key of the vault would lie in the folder of the database: {folder}",
                hint="set vault.key_folder to a folder elsewhere: who copies the database must not get the key",
            )

    def delete(self, key: str) -> None:
        self._in_memory.pop(key, None)
        if self.path is None:
            return
        with suppress(FileNotFoundError):
            os.unlink(self.get_file(key))
            files.sync_folder(self.get_file(key))


class Cipher:
    """Encrypts values and computes their keyed hashes, with keys derived from one."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self._index_key = derive_key(data, b"index")
        self._data = derive_key(data, b"values")
        self._aes: AESGCM | None = None

    def _get_aes(self) -> "AESGCM":
        if self._aes is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only where there is a vault

            self._aes = AESGCM(self._data)
        return self._aes

    def hash(self, column: str, scope: int, kind: str, value: str) -> bytes:
        text = f"{column}|{scope}|{kind}|{value}".encode("utf-8", "surrogatepass")
        return hmac.new(self._index_key, text, hashlib.sha256).digest()[:20]

    def encrypt(self, scope: int, kind: str, number: int, value: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        data = value.encode("utf-8", "surrogatepass")
        return nonce + self._get_aes().encrypt(nonce, data, f"{scope}|{kind}_{number}".encode())

    def decrypt(self, row: VaultRow) -> str:
        from cryptography.exceptions import InvalidTag

        assert row.value is not None
        bound = f"{row.scope}|{row.kind}_{row.number}".encode()
        try:
            data = self._get_aes().decrypt(row.value[:NONCE_BYTES], row.value[NONCE_BYTES:], bound)
        except InvalidTag:
            raise Misconfigured(
                f"the value of [{row.kind}_{row.number}] was changed, or belongs to another project or key",
                hint="put the right key file back, or forget the value: athena vault forget",
            ) from None
        return data.decode("utf-8", "surrogatepass")


def derive_key(data: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose (HKDF with SHA-256, one block)."""
    secret = hmac.new(b"athena vault", data, hashlib.sha256).digest()
    return hmac.new(secret, purpose + b"\x01", hashlib.sha256).digest()
