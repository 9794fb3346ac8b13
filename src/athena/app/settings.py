"""Every setting, and the one place that reads them: the environment wins over `config.toml`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from athena.core.home.paths import home_folder
from athena.core.values import HOOK_EVENTS
from athena.errors import Misconfigured

CONFIG_FILE = "config.toml"
Strategy = Literal["off", "minimal", "speed", "balanced", "quality"]


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
    consolidate: Strategy = "minimal"  # ATHENA_CONSOLIDATE, consolidate: what the server does by itself, or `off`
    ranking_role: float = 0.6  # ATHENA_RANKING_ROLE, ranking.role: what it costs that an assistant or a tool speaks
    ranking_recency: bool = True  # ATHENA_RANKING_RECENCY, ranking.recency: new and often recalled memories come sooner
    sandbox_bare: bool = False  # ATHENA_SANDBOX_BARE, sandbox.bare: run programs where there is no jail around them
    hooks_enabled: bool = True  # ATHENA_HOOKS_ENABLED, hooks.enabled: off, hooks ask nobody but hooks.mcp_url
    hooks_timeout_ms: int = 5_000  # ATHENA_HOOKS_TIMEOUT_MS, hooks.timeout_ms: a hook takes no longer, whatever happens
    hooks_fallback_to_mcp: bool = True  # ATHENA_HOOKS_FALLBACK_TO_MCP, hooks.fallback_to_mcp: off, hooks say nothing
    hooks_mcp_url: str | None = None  # ATHENA_HOOKS_MCP_URL, hooks.mcp_url: the MCP server that hooks ask when we fail
    hooks_python_path: str | None = None  # ATHENA_HOOKS_PYTHON_PATH, hooks.python_path: what runs the hooks
    hooks_enable_metrics: bool = False  # ATHENA_HOOKS_ENABLE_METRICS, hooks.enable_metrics: say what a session saved
    hooks_budget_tokens: int = 900  # ATHENA_HOOKS_BUDGET_TOKENS, hooks.budget_tokens: what a session start may cost
    hooks_off: frozenset[str] = frozenset()  # ATHENA_HOOKS_OFF, hooks.off: events that are not answered; `*` is all
    hooks_projects: Mapping[str, frozenset[str]] = {}  # ATHENA_HOOKS_PROJECTS, hooks.projects: the same for a project
    daemon_idle_minutes: float = 720  # ATHENA_DAEMON_IDLE_MINUTES, daemon.idle_minutes: it ends when unused so long


SETTING_KEYS = (
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
    "hooks.enabled",
    "hooks.timeout_ms",
    "hooks.fallback_to_mcp",
    "hooks.mcp_url",
    "hooks.python_path",
    "hooks.enable_metrics",
    "hooks.budget_tokens",
    "hooks.off",
    "hooks.projects",
    "daemon.idle_minutes",
)
NON_TEXT_KEYS = (
    "ranking.role",
    "ranking.recency",
    "sandbox.bare",
    "port",
    "auth",
    "hooks.enabled",
    "hooks.timeout_ms",
    "hooks.fallback_to_mcp",
    "hooks.enable_metrics",
    "hooks.budget_tokens",
    "daemon.idle_minutes",
)


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings, or say which one is wrong."""
    home = home_folder(environment)
    given = _read_config(os.path.join(home, CONFIG_FILE))
    for key in SETTING_KEYS:
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
        _check_database_url(given.get("database_url")),
        given.get("embedding.url"),
        given.get("embedding.model"),
        given.get("embedding.key"),
        given.get("llm.url"),
        given.get("llm.model"),
        given.get("llm.key"),
        given.get("host") or "127.0.0.1",
        _parse_integer("port", given.get("port", "3000"), 0, 65_535),
        _parse_switch("auth", given.get("auth", "on")),
        _parse_consolidate(given.get("consolidate", "minimal")),
        _parse_number("ranking.role", given.get("ranking.role", "0.6")),
        _parse_switch("ranking.recency", given.get("ranking.recency", "on")),
        _parse_switch("sandbox.bare", given.get("sandbox.bare", "off")),
        _parse_switch("hooks.enabled", given.get("hooks.enabled", "on")),
        _parse_integer("hooks.timeout_ms", given.get("hooks.timeout_ms", "5000"), 100, 60_000),
        _parse_switch("hooks.fallback_to_mcp", given.get("hooks.fallback_to_mcp", "on")),
        _check_http_url("hooks.mcp_url", given.get("hooks.mcp_url")),
        _parse_absolute_path("hooks.python_path", given.get("hooks.python_path")),
        _parse_switch("hooks.enable_metrics", given.get("hooks.enable_metrics", "off")),
        _parse_integer("hooks.budget_tokens", given.get("hooks.budget_tokens", "900"), 50, 9_000),
        _parse_events("hooks.off", given.get("hooks.off", "")),
        _parse_project_events(given.get("hooks.projects", "")),
        _parse_number("daemon.idle_minutes", given.get("daemon.idle_minutes", "720"), 1_000_000),
    )


def read_config_stamp(home: str) -> tuple[int, int]:
    """Return what tells one `config.toml` of a home from the next."""
    try:
        found = os.stat(os.path.join(home, CONFIG_FILE))
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


def _check_database_url(text: str | None) -> str | None:
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise Misconfigured(
            "ATHENA_DATABASE_URL must begin with postgresql://",
            hint="for a file, unset it and set ATHENA_DB_PATH instead",
        )
    return text


def _parse_number(key: str, text: str, most: int = 10) -> float:
    try:
        if 0 <= (value := float(text)) <= most:
            return value
    except ValueError:
        pass
    raise Misconfigured(f"{key} must be a number from 0 to {most}, not {text!r}")


def _parse_integer(key: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most and len(text) < 9):
        raise Misconfigured(f"{key} must be a number from {least} to {most}, not {text!r:.40}")
    return int(text)


def _check_http_url(key: str, text: str | None) -> str | None:
    if text and not text.startswith(("http://", "https://")):
        raise Misconfigured(f"{key} must begin with http:// or https://, not {text!r:.40}")
    return text or None


def _parse_absolute_path(key: str, text: str | None) -> str | None:
    if text and not os.path.isabs(path := os.path.expanduser(text)):
        raise Misconfigured(f"{key} must be a whole path, not {text!r:.40}", hint="as in /usr/bin/python3")
    return path if text else None


def _parse_events(key: str, text: str) -> frozenset[str]:
    found = frozenset(filter(None, (part.strip() for part in text.split(","))))
    if strange := sorted(found - {*HOOK_EVENTS, "*"}):
        raise Misconfigured(
            f"{key}: there is no event {strange[0]!r:.40}", hint=f"there are * and {', '.join(HOOK_EVENTS)}"
        )
    return found


def _parse_project_events(text: str) -> dict[str, frozenset[str]]:
    """Read which events of which projects are off."""
    if not text:
        return {}
    import json  # where there are any

    try:
        made = [(_resolve_folder(name), _join_list(events)) for name, events in json.loads(text).items()]
    except (ValueError, AttributeError, TypeError):
        raise Misconfigured(
            "hooks.projects must name events for each project", hint='as in {"/home/me/work": "*"}'
        ) from None
    off: dict[str, frozenset[str]] = {}
    for name, events in made:  # one folder can be written in several ways
        off[name] = off.get(name, frozenset()) | _parse_events("hooks.projects", events)
    return off


def _resolve_folder(name: str) -> str:
    """Return a folder as sessions are compared with it; anything else is the name of a project."""
    path = os.path.expanduser(name.strip())
    return os.path.realpath(path) if os.path.isabs(path) else path


def _join_list(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _parse_consolidate(text: str) -> Strategy:
    for known in get_args(Strategy):
        if text.lower() == known:
            return known  # type: ignore[no-any-return]  # one of them
    raise Misconfigured(f"consolidate must be one of {', '.join(get_args(Strategy))}, not {text!r:.40}")


def _parse_switch(key: str, text: str) -> bool:
    if text.lower() not in ("on", "off", "true", "false"):
        raise Misconfigured(f"{key} must be on or off, not {text!r}")
    return text.lower() in ("on", "true")


def _read_config(file: str) -> dict[str, str]:
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
    flat = dict(_flatten_table(_encode_lists(tables)))
    for key, value in flat.items():
        if key not in SETTING_KEYS:
            raise Misconfigured(f"{file}: there is no setting {key!r}", hint=f"there are {', '.join(SETTING_KEYS)}")
        if not isinstance(value, str | int | float if key in NON_TEXT_KEYS else str):
            raise Misconfigured(f"{file}: {key} cannot be a {type(value).__name__}")
    return {key: str(value) for key, value in flat.items()}


def _encode_lists(tables: dict[str, Any]) -> dict[str, Any]:
    """Write the two settings that are no words as their variables would hold them."""
    hooks = tables.get("hooks")
    if isinstance(hooks, dict):
        if isinstance(hooks.get("off"), list):
            hooks["off"] = _join_list(hooks["off"])
        if isinstance(hooks.get("projects"), dict):
            import json  # where there are any

            hooks["projects"] = json.dumps(hooks["projects"])
    return tables


def _flatten_table(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _flatten_table(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


ALL_EVENTS = "*"  # all events


@dataclass(frozen=True)
class HookRules:
    """What people decided about hooks."""

    budget_tokens: int = 900
    disabled_events: frozenset[str] = frozenset()  # events that are switched off, or "*"
    disabled_by_project: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # of a project or a folder, those that are
    enable_metrics: bool = False

    def allows_event(self, event: str, project: str, folder: str | None = None) -> bool:
        """Tell whether an event of a session is answered: its project and every folder around it must agree."""
        places = {project, *_list_parents(project)} | (_list_parents(os.path.realpath(folder)) if folder else set())
        off = self.disabled_events.union(
            *(events for name, events in self.disabled_by_project.items() if name in places)
        )
        return not {event, ALL_EVENTS} & off


def _list_parents(path: str) -> set[str]:
    """Return a folder and all above it; of what is no path, nothing."""
    found: set[str] = set()
    while os.path.isabs(path) and path not in found:
        found.add(path)
        path = os.path.dirname(path)
    return found


def create_hook_rules(settings: Settings) -> HookRules:
    """Return what people decided about hooks."""
    return HookRules(
        settings.hooks_budget_tokens, settings.hooks_off, settings.hooks_projects, settings.hooks_enable_metrics
    )
