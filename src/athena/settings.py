"""Every setting, and the one place that reads them: the environment wins over `config.toml`."""

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from athena.errors import Misconfigured
from athena.home import home_folder

CONFIG = "config.toml"
Automatic = Literal["off", "minimal", "speed", "balanced", "quality"]


class Settings(NamedTuple):
    home: str  # ATHENA_HOME: where the store and config.toml are
    db_path: str  # ATHENA_DB_PATH, db_path: the store's file; ":memory:" keeps nothing
    database_url: str | None = None  # ATHENA_DATABASE_URL, database_url: a PostgreSQL server's, instead of a file
    embedding_url: str | None = None  # ATHENA_EMBEDDING_URL, embedding.url: an OpenAI-compatible endpoint
    embedding_model: str | None = None  # ATHENA_EMBEDDING_MODEL, embedding.model: needed with a url
    embedding_key: str | None = None  # ATHENA_EMBEDDING_KEY, embedding.key: sent as a bearer token
    llm_url: str | None = None  # ATHENA_LLM_URL, llm.url: an OpenAI-compatible endpoint that may word patterns better
    llm_model: str | None = None  # ATHENA_LLM_MODEL, llm.model: needed with a url
    llm_key: str | None = None  # ATHENA_LLM_KEY, llm.key: sent as a bearer token
    host: str = "127.0.0.1"  # ATHENA_HOST, host: where `athena serve` listens
    port: int = 3000  # ATHENA_PORT, port: and on which port; 0 takes a free one
    auth: bool = True  # ATHENA_AUTH, auth: `off` lets every program on this machine in, without the token
    consolidate: Automatic = "minimal"  # ATHENA_CONSOLIDATE, consolidate: what the server does by itself, or `off`
    ranking_role: float = 0.6  # ATHENA_RANKING_ROLE, ranking.role: what it costs that an assistant or a tool speaks
    ranking_recency: bool = True  # ATHENA_RANKING_RECENCY, ranking.recency: new and often recalled memories come sooner
    sandbox_bare: bool = False  # ATHENA_SANDBOX_BARE, sandbox.bare: run programs where there is no jail around them


KEYS = (
    "db_path",
    "database_url",
    "embedding.url",
    "embedding.model",
    "embedding.key",
    "llm.url",
    "llm.model",
    "llm.key",
    "host",
    "port",
    "auth",
    "consolidate",
    "ranking.role",
    "ranking.recency",
    "sandbox.bare",
)


def load(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings, or say which one is wrong."""
    home = home_folder(environment)
    given = _read(os.path.join(home, CONFIG))
    for key in KEYS:
        if value := environment.get("ATHENA_" + key.upper().replace(".", "_")):
            given[key] = value
    if given.get("embedding.url") and not given.get("embedding.model"):
        raise Misconfigured("embedding.url is set without embedding.model", hint="name the model to ask for")
    if given.get("llm.url") and not given.get("llm.model"):
        raise Misconfigured("llm.url is set without llm.model", hint="name the model to ask for")
    path = given.get("db_path") or os.path.join(home, "athena.db")
    if not environment.get("ATHENA_DB_PATH") and path != ":memory:":
        path = os.path.join(home, os.path.expanduser(path))  # in the file, a relative path starts at the data folder
    return Settings(
        home,
        path if path == ":memory:" else os.path.abspath(os.path.expanduser(path)),
        _url(given.get("database_url")),
        given.get("embedding.url"),
        given.get("embedding.model"),
        given.get("embedding.key"),
        given.get("llm.url"),
        given.get("llm.model"),
        given.get("llm.key"),
        given.get("host") or "127.0.0.1",
        _port(given.get("port", "3000")),
        _switch("auth", given.get("auth", "on")),
        _automatic(given.get("consolidate", "minimal")),
        _number("ranking.role", given.get("ranking.role", "0.6")),
        _switch("ranking.recency", given.get("ranking.recency", "on")),
        _switch("sandbox.bare", given.get("sandbox.bare", "off")),
    )


def _url(text: str | None) -> str | None:
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise Misconfigured(
            "ATHENA_DATABASE_URL must begin with postgresql://",
            hint="for a file, unset it and set ATHENA_DB_PATH instead",
        )
    return text


def _number(key: str, text: str) -> float:
    try:
        if 0 <= (value := float(text)) <= 10:
            return value
    except ValueError:
        pass
    raise Misconfigured(f"{key} must be a number from 0 to 10, not {text!r}")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise Misconfigured(f"port must be a number from 0 to 65535, not {text!r:.40}")
    return int(text)


def _automatic(text: str) -> Automatic:
    for known in get_args(Automatic):
        if text.lower() == known:
            return known  # type: ignore[no-any-return]  # one of them
    raise Misconfigured(f"consolidate must be one of {', '.join(get_args(Automatic))}, not {text!r:.40}")


def _switch(key: str, text: str) -> bool:
    if text.lower() not in ("on", "off", "true", "false"):
        raise Misconfigured(f"{key} must be on or off, not {text!r}")
    return text.lower() in ("on", "true")


def _read(file: str) -> dict[str, str]:
    """Read the configuration file as flat keys; a key that we do not know is an error."""
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{file} cannot be read: {error}") from None
    import tomllib  # only where there is a file

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{file} is not valid TOML: {error}", hint="mend it or remove it") from None
    flat = dict(_flat(tables))
    for key, value in flat.items():
        if key not in KEYS:
            raise Misconfigured(f"{file}: there is no setting {key!r}", hint=f"there are {', '.join(KEYS)}")
        numbers = key.startswith(("ranking.", "sandbox.")) or key in ("port", "auth")
        if not isinstance(value, str | int | float if numbers else str):
            raise Misconfigured(f"{file}: {key} cannot be a {type(value).__name__}")
    return {key: str(value) for key, value in flat.items()}


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs
