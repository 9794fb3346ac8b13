"""Approvals: what a person has agreed to, and the passphrase that a person may put before every approval.

The data folder holds a salted scrypt hash of the passphrase, never the passphrase, and the count of wrong tries.
"""

import hashlib
import hmac
import json
import math
import os
import stat
import threading
import time
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from athena.core.files import FileLock, lock_file, write_file_atomically
from athena.errors import Conflict, Denied, InvalidInput, LimitExceeded, Misconfigured, Unavailable

PASSPHRASE_FILE = "approve.passphrase"
TRIES_FILE = "approve.tries"
LOCK_FILE = "approve.lock"
LOCK_TIMEOUT_S = 30.0
MIN_PASSPHRASE_CHARS = 8
MAX_PASSPHRASE_CHARS = 1_000
MAX_FILE_BYTES = 4_096
FREE_TRIES = 5  # wrong passphrases in a row before the next one has to wait
FIRST_WAIT_S = 30.0  # doubled with every further wrong passphrase
MAX_WAIT_S = 900.0
SALT_BYTES = 16
HASH_BYTES = 32
SCRYPT_COST = {"n": 1 << 15, "r": 8, "p": 3}  # 32 MB and about a quarter of a second for each try
MAX_SCRYPT_COST = {"n": 1 << 18, "r": 32, "p": 16}
MAX_SCRYPT_BYTES = 1 << 30
OTHER_PASSPHRASE = "the passphrase for approvals is another one than when this was asked for"


@dataclass(frozen=True, slots=True, eq=False)
class Approval:
    """A person's leave for one thing, good for one use; only an `Approver` can grant one that counts."""

    subject: str


class WrongPassphrase(Denied):
    """The passphrase is not the one that was set."""


class Approver:
    """Grants approvals for a data folder and redeems them; without a folder there is no passphrase."""

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._granted: set[Approval] = set()
        self._lock = threading.Lock()

    def has_passphrase(self) -> bool:
        """Return whether an approval needs the passphrase."""
        return self._home is not None and _read_hash(self._home) is not None

    def identify_passphrase(self) -> str:
        """Return a digest of the stored hash, by which an approval knows under which passphrase it was asked for."""
        stored = None if self._home is None else _read_hash(self._home)
        return "" if stored is None else digest_subject(stored["salt"], stored["hash"])

    def require_passphrase(self, identity: str, run_id: str) -> None:
        """Raise Conflict unless the passphrase is the one, or none as then, under which a person was asked."""
        if not hmac.compare_digest(self.identify_passphrase(), identity):
            hint = f"run the program again; to end this run: athena approve {run_id} --refuse"
            raise Conflict(OTHER_PASSPHRASE, hint=hint)

    def grant(self, subjects: Sequence[str], passphrase: str | None = None) -> list[Approval]:
        """Grant an approval for each subject, if the passphrase is right or none is set.

        Call it only with what a person has seen and agreed to: at a terminal, or on a page of the person's session.
        """
        if self._home is not None:
            _verify(self._home, passphrase)
        return self._add(subjects)

    def grant_refusal(self, subject: str) -> Approval:
        """Grant a person's refusal, which needs no passphrase: the one who forgot it must be able to say no."""
        return self._add([format_refusal(subject)])[0]

    def redeem(self, approval: Approval | None, subject: str) -> None:
        """Use up an approval; raise Denied unless it was granted here, for this subject, and not used yet."""
        with self._lock:
            if approval is None or approval.subject != subject or approval not in self._granted:
                raise Denied("no person has agreed to this", hint="a person decides at a terminal: athena approve ID")
            self._granted.remove(approval)

    def set_passphrase(self, new: str, old: str | None = None) -> None:
        """Set the passphrase; the one that is set now must be given."""
        home = self._require_home()
        if not MIN_PASSPHRASE_CHARS <= len(new) <= MAX_PASSPHRASE_CHARS:
            message = f"a passphrase has {MIN_PASSPHRASE_CHARS} to {MAX_PASSPHRASE_CHARS:,} characters"
            raise InvalidInput(message, hint="a few words that are easy to remember make a good one")
        _verify(home, old)
        salt = os.urandom(SALT_BYTES)
        fields = {"scheme": "scrypt", **SCRYPT_COST, "salt": salt.hex()}
        stored = fields | {"hash": _hash_passphrase(new, salt, SCRYPT_COST).hex()}
        path = os.path.join(home, PASSPHRASE_FILE)
        write_file_atomically(path, json.dumps(stored).encode() + b"\n", 0o600, exact_mode=True)

    def remove_passphrase(self, old: str | None) -> None:
        """Remove the passphrase, which must be given."""
        home = self._require_home()
        if not self.has_passphrase():
            raise Conflict("no passphrase is set", hint="athena passphrase set")
        _verify(home, old)
        os.unlink(os.path.join(home, PASSPHRASE_FILE))

    def _require_home(self) -> str:
        if self._home is None:
            raise Misconfigured("there is no data folder for a passphrase", hint="set ATHENA_HOME")
        return self._home

    def _add(self, subjects: Sequence[str]) -> list[Approval]:
        approvals = [Approval(subject) for subject in subjects]
        with self._lock:
            self._granted.update(approvals)
        return approvals


def format_refusal(subject: str) -> str:
    """Return the subject of a refusal, so that it never counts as an approval."""
    return f"refuse {subject}"


def format_call_subject(path: str, arguments: Any) -> str:
    """Return the subject of one call, with its arguments as JSON values."""
    return f"call {digest_subject(path, json.dumps(arguments, sort_keys=True))}"


def digest_subject(*parts: str | bytes) -> str:
    """Return a digest of what a person sees, so that an approval holds for nothing else."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d " % len(data) + data)
    return digest.hexdigest()


def _verify(home: str, passphrase: str | None) -> None:
    """Raise an error unless the passphrase is right or none is set; count the try before it is compared."""
    if _read_hash(home) is None:
        return
    if passphrase is None:
        raise Denied("this needs the passphrase for approvals", hint="a person types it at a terminal: athena approve")
    with _lock_tries(home):
        if (stored := _read_hash(home)) is None:
            return
        count, last_at = _read_tries(home)
        if (wait_s := _compute_wait_s(count, last_at, time.time())) > 0:
            message = f"{count} wrong passphrases in a row"
            raise LimitExceeded(message, hint=f"try again in {math.ceil(wait_s):,} s")
        tries_path = os.path.join(home, TRIES_FILE)
        # before the comparison: whoever kills this process has used up the try
        write_file_atomically(tries_path, json.dumps({"count": count + 1, "last_at": time.time()}).encode())
        salt, expected = bytes.fromhex(stored["salt"]), bytes.fromhex(stored["hash"])
        cost = {name: stored[name] for name in SCRYPT_COST}
        if not hmac.compare_digest(_hash_passphrase(passphrase, salt, cost), expected):
            raise WrongPassphrase("the passphrase is wrong", hint="nothing was approved")
        with suppress(FileNotFoundError):
            os.unlink(tries_path)


def _lock_tries(home: str) -> FileLock:
    try:
        return lock_file(os.path.join(home, LOCK_FILE), LOCK_TIMEOUT_S)
    except TimeoutError:
        raise Unavailable("another process checks a passphrase", hint="try again in a moment") from None


def _compute_wait_s(count: int, last_at: float, now: float) -> float:
    """Return how long the next try has to wait."""
    if count < FREE_TRIES:
        return 0.0
    wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(count - FREE_TRIES, 20))
    return max(0.0, min(wait_s, last_at + wait_s - now))  # a clock that was set back does not lengthen it


def _hash_passphrase(passphrase: str, salt: bytes, cost: dict[str, int]) -> bytes:
    normal = unicodedata.normalize(
        "NFC", passphrase[: MAX_PASSPHRASE_CHARS + 1]
    )  # keyboards compose letters differently
    data = normal.encode("utf-8", "surrogatepass")
    try:
        return hashlib.scrypt(data, salt=salt, dklen=HASH_BYTES, maxmem=MAX_SCRYPT_BYTES, **cost)
    except (AttributeError, ValueError, MemoryError) as error:
        raise Misconfigured(f"this Python cannot compute scrypt: {type(error).__name__}") from None


def _read_hash(home: str) -> dict[str, Any] | None:
    """Read the hash; None if no passphrase is set. A file that cannot be trusted is an error: nothing is approved."""
    path = os.path.join(home, PASSPHRASE_FILE)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}", hint="nothing was approved") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o077:
            raise Misconfigured(f"others can read or change {path}", hint=f"chmod 600 {path}; nothing was approved")
        data = os.read(descriptor, MAX_FILE_BYTES)
    finally:
        os.close(descriptor)
    try:
        stored: dict[str, Any] = json.loads(data)
        is_valid = (
            stored["scheme"] == "scrypt"
            and all(type(stored[name]) is int and 1 <= stored[name] <= most for name, most in MAX_SCRYPT_COST.items())
            and len(bytes.fromhex(stored["salt"])) >= SALT_BYTES
            and len(bytes.fromhex(stored["hash"])) == HASH_BYTES
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise Misconfigured(f"{path} is damaged", hint="nothing was approved; restore the file from a backup")
    return stored


def _read_tries(home: str) -> tuple[int, float]:
    """Return the count of wrong tries and the time of the last; a damaged file counts as many tries, just now."""
    path = os.path.join(home, TRIES_FILE)
    try:
        with open(path, "rb") as file:
            fields = json.loads(file.read(MAX_FILE_BYTES))
        count, last_at = fields["count"], fields["last_at"]
        if type(count) is int and count >= 0 and type(last_at) is float and math.isfinite(last_at):
            return count, last_at
    except FileNotFoundError:
        return 0, 0.0
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    with suppress(OSError):
        return FREE_TRIES, os.stat(path).st_mtime
    return FREE_TRIES, time.time()
