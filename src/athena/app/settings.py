"""All settings, read from the environment and from `config.toml`; the environment wins."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from athena.core.files import create_private_folder, write_file_atomically
from athena.core.home.paths import find_home_problem, home_folder
from athena.core.values import HOOK_EVENTS, SettingValue
from athena.core.words import find_similar_names
from athena.errors import Misconfigured

PrivacyMode = Literal["off", "boundary", "strict"]

CONFIG_FILE = "config.toml"
VARIABLE_PREFIX = "ATHENA_"
ALL_EVENTS = "*"
PASSPHRASE_KEY = "approve.passphrase"  # no setting: only its hash is stored, in a file of its own
PASSPHRASE_VARIABLE = "ATHENA_APPROVE_PASSPHRASE"
PASSPHRASE_HINT = "remove it and choose another at a terminal: athena passphrase set"
Strategy = Literal["off", "minimal", "speed", "balanced", "quality"]
PRIVACY_MODES = ("off", "boundary", "strict")


class Settings(NamedTuple):
    home: str  # ATHENA_HOME: where the store and config.toml are
    db_path: str  # ATHENA_DB_PATH, db_path: the store's file; ":memory:" keeps nothing
    database_url: str | None = None  # ATHENA_DATABASE_URL, database_url: a PostgreSQL server's, instead of a file
    embedding_url: str | None = None  # ATHENA_EMBEDDING_URL, embedding.url: an OpenAI-compatible endpoint
    embedding_model: str | None = None  # ATHENA_EMBEDDING_MODEL, embedding.model: needed with a url
    embedding_key: str | None = None  # ATHENA_EMBEDDING_KEY, embedding.key: sent as a bearer token
    llm_url: str | None = None  # ATHENA_LLM_URL, llm.url: an OpenAI-compatible endpoint for wordings and lessons
    llm_model: str | None = None  # ATHENA_LLM_MODEL, llm.model: needed with a url
    llm_key: str | None = None  # ATHENA_LLM_KEY, llm.key: sent as a bearer token
    host: str = "127.0.0.1"  # ATHENA_HOST, host: where `athena serve` listens
    port: int = 3000  # ATHENA_PORT, port: and on which port; 0 takes a free one
    auth: bool = True  # ATHENA_AUTH, auth: `off` lets every program on this machine in, without the token
    consolidate: Strategy = "minimal"  # ATHENA_CONSOLIDATE, consolidate: strategy of the background runs, or `off`
    ranking_role: float = 0.6  # ATHENA_RANKING_ROLE, ranking.role: penalty for texts of an assistant or a tool
    ranking_recency: bool = True  # ATHENA_RANKING_RECENCY, ranking.recency: new and often recalled memories come sooner
    sandbox_bare: bool = False  # ATHENA_SANDBOX_BARE, sandbox.bare: run programs where there is no jail around them
    hooks_enabled: bool = True  # ATHENA_HOOKS_ENABLED, hooks.enabled: if off, hooks ask only hooks.mcp_url
    hooks_timeout_ms: int = 5_000  # ATHENA_HOOKS_TIMEOUT_MS, hooks.timeout_ms: the longest that a hook may take
    hooks_fallback_to_mcp: bool = True  # ATHENA_HOOKS_FALLBACK_TO_MCP, hooks.fallback_to_mcp: off, hooks say nothing
    hooks_mcp_url: str | None = None  # ATHENA_HOOKS_MCP_URL, hooks.mcp_url: the MCP server that hooks ask when we fail
    hooks_mcp_token: str | None = None  # ATHENA_HOOKS_MCP_TOKEN, hooks.mcp_token: sent to it as a bearer token
    hooks_python_path: str | None = None  # ATHENA_HOOKS_PYTHON_PATH, hooks.python_path: what runs the hooks
    hooks_enable_metrics: bool = False  # ATHENA_HOOKS_ENABLE_METRICS, hooks.enable_metrics: report the tokens saved
    hooks_budget_tokens: int = 900  # ATHENA_HOOKS_BUDGET_TOKENS, hooks.budget_tokens: budget of a session start
    hooks_off: frozenset[str] = frozenset()  # ATHENA_HOOKS_OFF, hooks.off: events that are not answered; `*` is all
    hooks_projects: Mapping[str, frozenset[str]] = {}  # ATHENA_HOOKS_PROJECTS, hooks.projects: the same for a project
    documents_roots: tuple[str, ...] = ()  # ATHENA_DOCUMENTS_ROOTS, documents.roots: where agents may ingest files
    backup_every_hours: float = 0  # ATHENA_BACKUP_EVERY_HOURS, backup.every_hours: how often a server backs up; 0 never
    backup_keep: int = 7  # ATHENA_BACKUP_KEEP, backup.keep: how many backups stay
    backup_folder: str | None = None  # ATHENA_BACKUP_FOLDER, backup.folder: where; by default in the data folder
    backup_key_file: str | None = None  # ATHENA_BACKUP_KEY_FILE, backup.key_file: has the secret that encrypts them
    daemon_idle_minutes: float = 720  # ATHENA_DAEMON_IDLE_MINUTES, daemon.idle_minutes: it ends when unused so long
    daemon_auto: bool = False  # ATHENA_DAEMON_AUTO, daemon.auto: programs and commands start it, too, not only clients
    privacy: PrivacyMode = "off"  # ATHENA_PRIVACY, privacy: off, boundary or strict: where personal data becomes tokens
    personal_names: tuple[str, ...] = ()  # ATHENA_PERSONAL_NAMES, personal.names: people whose names are personal data
    personal_patterns: Mapping[str, str] = {}  # ATHENA_PERSONAL_PATTERNS, personal.patterns: kinds of your own
    vault_key_folder: str = ""  # ATHENA_VAULT_KEY_FOLDER, vault.key_folder: where the key of the vault is


SETTING_KEYS = (
    "db_path", "database_url", "embedding.url", "embedding.model", "embedding.key", "llm.url", "llm.model", "llm.key",
    "host", "port", "auth", "consolidate", "ranking.role", "ranking.recency", "sandbox.bare", "hooks.enabled",
    "hooks.timeout_ms", "hooks.fallback_to_mcp", "hooks.mcp_url", "hooks.mcp_token", "hooks.python_path",
    "hooks.enable_metrics", "hooks.budget_tokens", "hooks.off", "hooks.projects", "documents.roots",
    "backup.every_hours", "backup.keep", "backup.folder", "backup.key_file", "daemon.idle_minutes", "daemon.auto",
    "privacy", "personal.names", "personal.patterns", "vault.key_folder",
)  # fmt: skip
NON_TEXT_KEYS = (
    "ranking.role", "ranking.recency", "sandbox.bare", "port", "auth", "hooks.enabled", "hooks.timeout_ms",
    "hooks.fallback_to_mcp", "hooks.enable_metrics", "hooks.budget_tokens", "backup.every_hours", "backup.keep",
    "daemon.idle_minutes", "daemon.auto",
)  # fmt: skip


def _name_variable(key: str) -> str:
    return VARIABLE_PREFIX + key.upper().replace(".", "_")


KNOWN_VARIABLES = frozenset(map(_name_variable, SETTING_KEYS)) | {
    "ATHENA_HOME",
    "ATHENA_PROJECT",
    "ATHENA_TOKEN",
    "ATHENA_UNATTENDED",
    "ATHENA_HOOK_ID",  # this and the next pass between our own processes
    "ATHENA_HOOK_UNTIL",
}


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; raise Misconfigured for one that is wrong."""
    home = home_folder(environment)
    if problem := find_home_problem(home):
        raise Misconfigured(problem[0], hint=problem[1])
    if PASSPHRASE_VARIABLE in environment:
        raise Misconfigured(f"{PASSPHRASE_VARIABLE} is set: other programs can read it there", hint=PASSPHRASE_HINT)
    values = _read_config(os.path.join(home, CONFIG_FILE))
    for key in SETTING_KEYS:
        if value := environment.get(_name_variable(key)):
            values[key] = value
    if values.get("embedding.url") and not values.get("embedding.model"):
        raise Misconfigured("embedding.url is set without embedding.model", hint="name the model to ask for")
    if values.get("llm.url") and not values.get("llm.model"):
        raise Misconfigured("llm.url is set without llm.model", hint="name the model to ask for")
    if values.get("hooks.mcp_token") and "@" in values.get("hooks.mcp_url", "").partition("//")[2].partition("/")[0]:
        raise Misconfigured("hooks.mcp_url has a token, and hooks.mcp_token is set too", hint="keep one of them")
    path = values.get("db_path") or os.path.join(home, "athena.db")
    if not environment.get("ATHENA_DB_PATH") and path != ":memory:":
        path = os.path.join(home, os.path.expanduser(path))  # in the file, a relative path starts at the data folder
    return Settings(
        home,
        path if path == ":memory:" else os.path.abspath(os.path.expanduser(path)),
        _check_database_url(values.get("database_url")),
        values.get("embedding.url"),
        values.get("embedding.model"),
        values.get("embedding.key"),
        values.get("llm.url"),
        values.get("llm.model"),
        values.get("llm.key"),
        values.get("host") or "127.0.0.1",
        _parse_integer("port", values.get("port", "3000"), 0, 65_535),
        _parse_switch("auth", values.get("auth", "on")),
        _parse_consolidate(values.get("consolidate", "minimal")),
        _parse_number("ranking.role", values.get("ranking.role", "0.6")),
        _parse_switch("ranking.recency", values.get("ranking.recency", "on")),
        _parse_switch("sandbox.bare", values.get("sandbox.bare", "off")),
        _parse_switch("hooks.enabled", values.get("hooks.enabled", "on")),
        _parse_integer("hooks.timeout_ms", values.get("hooks.timeout_ms", "5000"), 100, 60_000),
        _parse_switch("hooks.fallback_to_mcp", values.get("hooks.fallback_to_mcp", "on")),
        _check_http_url("hooks.mcp_url", values.get("hooks.mcp_url")),
        _check_token("hooks.mcp_token", values.get("hooks.mcp_token")),
        _parse_absolute_path("hooks.python_path", values.get("hooks.python_path")),
        _parse_switch("hooks.enable_metrics", values.get("hooks.enable_metrics", "off")),
        _parse_integer("hooks.budget_tokens", values.get("hooks.budget_tokens", "900"), 50, 9_000),
        _parse_events("hooks.off", values.get("hooks.off", "")),
        _parse_project_events(values.get("hooks.projects", "")),
        _parse_folders("documents.roots", values.get("documents.roots", "")),
        _parse_number("backup.every_hours", values.get("backup.every_hours", "0"), 100_000),
        _parse_integer("backup.keep", values.get("backup.keep", "7"), 1, 10_000),
        _parse_absolute_path("backup.folder", values.get("backup.folder")),
        _parse_absolute_path("backup.key_file", values.get("backup.key_file")),
        _parse_number("daemon.idle_minutes", values.get("daemon.idle_minutes", "720"), 1_000_000),
        _parse_switch("daemon.auto", values.get("daemon.auto", "off")),
        _parse_privacy(values.get("privacy", "off")),
        tuple(filter(None, (name.strip() for name in values.get("personal.names", "").split(",")))),
        _parse_patterns(values.get("personal.patterns", "")),
        _parse_absolute_path("vault.key_folder", values.get("vault.key_folder")) or _find_key_folder(environment),
    )


def _find_key_folder(environment: Mapping[str, str]) -> str:
    """Return where keys of vaults are: in the user's configuration, since the data folder holds the database."""
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(os.path.abspath(config), "athena", "vault")


def _parse_privacy(text: str) -> PrivacyMode:
    if text not in PRIVACY_MODES:
        raise Misconfigured(f"privacy must be one of {', '.join(PRIVACY_MODES)}, not {text!r:.40}")
    return text  # type: ignore[return-value]  # checked above


def _parse_patterns(text: str) -> dict[str, str]:
    """Parse a JSON object of regular expressions, each with the kind of what it finds."""
    if not text:
        return {}
    import json  # few have this setting
    import re

    try:
        patterns = dict(json.loads(text).items())
    except (ValueError, AttributeError):
        raise Misconfigured("personal.patterns must be a table", hint='as in CUSTOMER = "C-[0-9]{6}"') from None
    for kind, pattern in patterns.items():
        if not re.fullmatch(r"[A-Z][A-Z0-9_]{0,38}[A-Z0-9]", kind, re.ASCII) or re.search(r"_[0-9]+$", kind):
            raise Misconfigured(f"personal.patterns: {kind!r:.40} is no kind", hint="capital letters, as in CUSTOMER")
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise Misconfigured(f"personal.patterns.{kind} is no regular expression: {error}") from None
    return patterns


def describe_settings(environment: Mapping[str, str] = os.environ) -> list[SettingValue]:
    """Return all settings in force, and where each value comes from; secrets are not shown."""
    settings = load_settings(environment)
    written = _read_config(os.path.join(settings.home, CONFIG_FILE))
    home_source = "ATHENA_HOME" if environment.get("ATHENA_HOME") else "default"
    values = [SettingValue("home", settings.home, home_source)]
    for key in SETTING_KEYS:
        variable = _name_variable(key)
        source = variable if environment.get(variable) else CONFIG_FILE if key in written else "default"
        value = getattr(settings, key.replace(".", "_"))
        values.append(SettingValue(key, _format_value(key, value), source))
    return values


def _format_value(key: str, value: Any) -> str:
    """Return a value as a person may see it: no key, and no password in a URL."""
    if value is None or value in ((), {}, frozenset()):
        return ""
    if key.endswith(".key"):
        return "set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(map(str, value)))
    scheme, separator, rest = str(value).partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if separator and "@" in rest else str(value)


def list_unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a warning for each variable that begins like ours but sets nothing, such as a misspelt one."""
    return [
        f"the variable {name} sets nothing: there is no such setting{f' ({hint})' if hint else ''}"
        for name in sorted(environment)
        if name.startswith(VARIABLE_PREFIX) and name not in KNOWN_VARIABLES
        for hint in [_suggest_name(name, KNOWN_VARIABLES)]
    ]


def _suggest_name(name: str, names: Iterable[str]) -> str:
    endings = {known.removeprefix(VARIABLE_PREFIX): known for known in names}  # the prefix would make all alike
    close = find_similar_names(name.removeprefix(VARIABLE_PREFIX), endings, 1, 0.7)
    return f"did you mean {endings[close[0]]}?" if close else ""


def read_config_stamp(home: str) -> tuple[int, int]:
    """Return what changes whenever `config.toml` is replaced."""
    try:
        facts = os.stat(os.path.join(home, CONFIG_FILE))
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_ino


class HookRules(NamedTuple):
    """The settings of hooks: which events are answered, and how long a briefing may be."""

    budget_tokens: int = 900
    disabled_events: frozenset[str] = frozenset()  # or ALL_EVENTS
    disabled_by_project: Mapping[str, frozenset[str]] = {}  # the same for a project or a folder
    enable_metrics: bool = False

    def allows_event(self, event: str, project: str, folder: str | None = None) -> bool:
        """Return whether to answer an event: neither its project nor a folder above it may have disabled it."""
        names = {project, *_list_parents(project)} | (_list_parents(os.path.realpath(folder)) if folder else set())
        by_project = (events for name, events in self.disabled_by_project.items() if name in names)
        return not {event, ALL_EVENTS} & self.disabled_events.union(*by_project)


def create_hook_rules(settings: Settings) -> HookRules:
    return HookRules(
        settings.hooks_budget_tokens, settings.hooks_off, settings.hooks_projects, settings.hooks_enable_metrics
    )


def _list_parents(path: str) -> set[str]:
    """Return an absolute path and all folders above it; nothing for another text."""
    parents: set[str] = set()
    while os.path.isabs(path) and path not in parents:
        parents.add(path)
        path = os.path.dirname(path)
    return parents


def _check_database_url(text: str | None) -> str | None:
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise Misconfigured(
            "ATHENA_DATABASE_URL must begin with postgresql://",
            hint="for a file, unset it and set ATHENA_DB_PATH instead",
        )
    return text


def _parse_number(key: str, text: str, maximum: int = 10) -> float:
    try:
        if 0 <= (value := float(text)) <= maximum:
            return value
    except ValueError:
        pass
    raise Misconfigured(f"{key} must be a number from 0 to {maximum}, not {text!r}")


def _parse_integer(key: str, text: str, minimum: int, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and minimum <= int(text[:9]) <= maximum and len(text) < 9):
        raise Misconfigured(f"{key} must be a number from {minimum} to {maximum}, not {text!r:.40}")
    return int(text)


def _check_http_url(key: str, text: str | None) -> str | None:
    if text and not text.startswith(("http://", "https://")):
        raise Misconfigured(f"{key} must begin with http:// or https://, not {text!r:.40}")
    return text or None


def _check_token(key: str, text: str | None) -> str | None:
    token = (text or "").strip()
    if not (token.isascii() and (not token or token.isprintable())) or " " in token:
        raise Misconfigured(f"{key} is no token: it has a space or a character that no header may have")
    return token or None


def _parse_absolute_path(key: str, text: str | None) -> str | None:
    if text and not os.path.isabs(path := os.path.expanduser(text)):
        raise Misconfigured(f"{key} must be a whole path, not {text!r:.40}", hint="as in /usr/bin/python3")
    return path if text else None


def _parse_folders(key: str, text: str) -> tuple[str, ...]:
    folders = tuple(os.path.expanduser(part) for part in text.split(os.pathsep) if part.strip())
    for folder in folders:
        if not os.path.isabs(folder):
            raise Misconfigured(f"{key}: {folder!r:.80} is no absolute path", hint="it begins with / or ~")
    return folders


def _parse_events(key: str, text: str) -> frozenset[str]:
    events = frozenset(filter(None, (part.strip() for part in text.split(","))))
    if unknown := sorted(events - {*HOOK_EVENTS, ALL_EVENTS}):
        raise Misconfigured(
            f"{key}: there is no event {unknown[0]!r:.40}", hint=f"there are * and {', '.join(HOOK_EVENTS)}"
        )
    return events


def _parse_project_events(text: str) -> dict[str, frozenset[str]]:
    """Parse a JSON object that maps a project or folder to its disabled events."""
    if not text:
        return {}
    import json  # few have this setting

    try:
        pairs = [(_resolve_folder(name), _join_list(events)) for name, events in json.loads(text).items()]
    except (ValueError, AttributeError, TypeError):
        raise Misconfigured(
            "hooks.projects must name events for each project", hint='as in {"/home/me/work": "*"}'
        ) from None
    disabled: dict[str, frozenset[str]] = {}
    for name, events in pairs:  # one folder can be written in several ways
        disabled[name] = disabled.get(name, frozenset()) | _parse_events("hooks.projects", events)
    return disabled


def _resolve_folder(name: str) -> str:
    """Return the real path of a folder; any other text is the name of a project."""
    path = os.path.expanduser(name.strip())
    return os.path.realpath(path) if os.path.isabs(path) else path


def _join_list(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _parse_consolidate(text: str) -> Strategy:
    for known in get_args(Strategy):
        if text.lower() == known:
            return known  # type: ignore[no-any-return]  # get_args returns Any
    raise Misconfigured(f"consolidate must be one of {', '.join(get_args(Strategy))}, not {text!r:.40}")


def _parse_switch(key: str, text: str) -> bool:
    if text.lower() not in ("on", "off", "true", "false"):
        raise Misconfigured(f"{key} must be on or off, not {text!r}")
    return text.lower() in ("on", "true")


def _read_config(path: str) -> dict[str, str]:
    """Read the configuration file as flat keys; an unknown key is an error."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}") from None
    import tomllib  # most people have no such file

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}", hint="correct it or remove it") from None
    flat = dict(_flatten_table(_encode_lists(tables)))
    for key, value in flat.items():
        if key == PASSPHRASE_KEY:
            raise Misconfigured(f"{path}: {key} must not stand in a file", hint=PASSPHRASE_HINT)
        if key not in SETTING_KEYS:
            name = key.rpartition(".")[2]
            hint = f"{name!r} belongs above the first [section]" if name in SETTING_KEYS else ""
            hint = hint or _suggest_name(key, SETTING_KEYS) or f"there are {', '.join(SETTING_KEYS)}"
            raise Misconfigured(f"{path}: there is no setting {key!r}", hint=hint)
        if not isinstance(value, str | int | float if key in NON_TEXT_KEYS else str):
            raise Misconfigured(f"{path}: {key} cannot be a {type(value).__name__}")
    return {key: str(value) for key, value in flat.items()}


def set_daemon_auto(home: str) -> bool:
    """Write `daemon.auto = true` into the configuration file, unless the file says something about it."""
    path = os.path.join(home, CONFIG_FILE)
    if "daemon.auto" in _read_config(path):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    if "[daemon]" in map(str.strip, lines):
        at = [line.strip() for line in lines].index("[daemon]") + 1
        lines.insert(at, "auto = true")
    else:
        lines += ["[daemon]", "auto = true"] if not lines else ["", "[daemon]", "auto = true"]
    import tomllib  # a file that writes the table in another way would break

    text = "\n".join(lines) + "\n"
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    create_private_folder(home)
    write_file_atomically(path, text.encode())
    return True


def _encode_lists(tables: dict[str, Any]) -> dict[str, Any]:
    """Turn the settings that are lists or tables into text, as environment variables hold them."""
    documents = tables.get("documents")
    if isinstance(documents, dict) and isinstance(documents.get("roots"), list):
        documents["roots"] = os.pathsep.join(map(str, documents["roots"]))
    personal = tables.get("personal")
    if isinstance(personal, dict):
        if isinstance(personal.get("names"), list):
            personal["names"] = _join_list(personal["names"])
        if isinstance(personal.get("patterns"), dict):
            import json  # few have this setting

            personal["patterns"] = json.dumps(personal["patterns"])
    hooks = tables.get("hooks")
    if isinstance(hooks, dict):
        if isinstance(hooks.get("off"), list):
            hooks["off"] = _join_list(hooks["off"])
        if isinstance(hooks.get("projects"), dict):
            import json  # few have this setting

            hooks["projects"] = json.dumps(hooks["projects"])
    return tables


def _flatten_table(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _flatten_table(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs
