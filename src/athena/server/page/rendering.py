"""Templates of the page, and how it writes times, numbers, differences and matches."""

import gzip
import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from athena.core.home.paths import USER_PROJECT
from athena.core.text import escape_invisible
from athena.core.words import STOP_WORDS
from athena.gateway.sanitize import format_line
from athena.memory.values import format_preview

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
STATIC_FOLDER = FOLDER / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
LOADED_FILE_PATTERN = re.compile(rb"""((?:from "\./|url\(")|importScripts\(")([\w/.-]+)(")""")
MIN_MARKED_CHARS = 3
SECONDS_IN = (("year", 31_557_600), ("month", 2_629_800), ("week", 604_800), ("day", 86_400), ("hour", 3_600))
ESCAPE_PATTERN = re.compile(r"&lt;(U\+[0-9A-F]{4,6}|[\d,]+ (?:hidden characters|spaces))&gt;")  # in HTML


class StaticFile(NamedTuple):
    media_type: str
    body: bytes
    compressed: bytes | None
    tag: str


@cache
def load_static_files() -> dict[str, StaticFile]:
    """Return all files that the page serves, by their path below `static`."""
    paths = [path for path in sorted(STATIC_FOLDER.rglob("*")) if path.suffix in MEDIA_TYPES]
    bodies = {path.relative_to(STATIC_FOLDER).as_posix(): path.read_bytes() for path in paths}

    def add_tag(match: re.Match[bytes]) -> bytes:
        tag = _compute_tag(bodies[match[2].decode()])
        return b"%s%s?v=%s%s" % (match[1], match[2], tag.encode(), match[3])

    files: dict[str, StaticFile] = {}
    for name, body in bodies.items():
        if name.endswith((".css", ".js")) and not name.startswith("vendor/"):  # what a file of ours loads itself
            body = LOADED_FILE_PATTERN.sub(add_tag, body)
        compressed = None if name.endswith(".woff2") else gzip.compress(body, 9, mtime=0)
        files[name] = StaticFile(MEDIA_TYPES[Path(name).suffix], body, compressed, _compute_tag(body))
    return files


def _compute_tag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]


@cache
def load_icons() -> dict[str, str]:
    sprite = load_static_files()["vendor/icons.svg"].body.decode()
    return dict(re.findall(r'<symbol id="([\w-]+)"[^>]*>(.*?)</symbol>', sprite))


@cache
def create_environment() -> "Environment":
    """Return the templates' environment: everything is escaped, and a name that is not there is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not needed before the first page is asked for

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(icon=draw_icon, asset=format_asset_url, bar=draw_bar)
    environment.filters.update(
        ago=format_ago,
        moment=format_moment,
        day=format_day,
        clock=format_clock,
        until=format_until,
        number=format_number,
        size=format_size,
        duration=format_duration,
        visible=show_hidden,
        code_line=show_code_line,
        mark=mark_words,
        pretty=format_json,
        json_text=json.dumps,
        title_of=format_title,
        short_project=format_project,
        preview=format_preview,
        beginning=cut_text,
    )
    return environment


def format_asset_url(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    return f"/static/{name}?v={load_static_files()[name].tag}"


def draw_icon(name: str, label: str = "") -> Markup:
    """Return an icon; with a label it speaks for itself, else it is decoration."""
    role = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    return Markup('<svg class="icon" viewBox="0 0 24 24" focusable="false" {}>{}</svg>').format(
        role, Markup(load_icons()[name])
    )


def draw_bar(share: float, tone: str = "") -> Markup:
    """Return a bar that is filled to a share from 0 to 1; the page allows no style in its markup."""
    width = round(100 * max(0.0, min(1.0, share)), 1)
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="bar-rest" width="100" height="6" rx="3"/>'
        '<rect class="bar-fill" width="{}" height="6" rx="3"/></svg>'
    ).format(tone, width)


def format_ago(at: float | None, now: float | None = None) -> Markup:
    """Return how long ago something was, with the exact time as a hint."""
    if at is None:
        return Markup("never")
    elapsed_s = (time.time() if now is None else now) - at
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        _format_iso(at), format_moment(at), _describe_distance(elapsed_s)
    )


def _describe_distance(elapsed_s: float) -> str:
    if abs(elapsed_s) < 60:
        return "just now" if elapsed_s >= 0 else "in a moment"
    for unit, seconds in (*SECONDS_IN, ("minute", 60)):
        if (count := int(abs(elapsed_s) // seconds)) >= 1:
            amount = f"{count} {unit}{'' if count == 1 else 's'}"
            return f"{amount} ago" if elapsed_s > 0 else f"in {amount}"
    return "just now"


def format_until(at: float | None, now: float | None = None) -> Markup:
    return Markup("") if at is None else format_ago(at, now)


def format_moment(at: float | None) -> str:
    """Return a time of this machine, to the minute."""
    return "" if at is None else time.strftime("%-d %b %Y, %H:%M", _to_local(at))


def format_clock(at: float) -> str:
    return time.strftime("%H:%M", _to_local(at))


def format_day(at: float) -> str:
    moment, today = _to_local(at), time.localtime()
    if moment[:3] == today[:3]:
        return "Today"
    if moment[:3] == time.localtime(time.time() - 86_400)[:3]:
        return "Yesterday"
    return time.strftime("%A, %-d %B" if moment.tm_year == today.tm_year else "%A, %-d %B %Y", moment)


def _to_local(at: float) -> time.struct_time:
    return time.localtime(min(max(at, -62_135_596_800.0), 253_402_214_400.0))


def _format_iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", _to_local(at))


def format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def format_size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1_024 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1_024
    raise AssertionError("unreachable")


def format_duration(elapsed_ms: float | None) -> str:
    if elapsed_ms is None:
        return "–"
    if elapsed_ms < 1_000:
        return f"{elapsed_ms:,.0f} ms"
    return f"{elapsed_ms / 1_000:,.1f} s" if elapsed_ms < 60_000 else f"{elapsed_ms / 60_000:,.1f} min"


def format_title(name: str) -> str:
    """Return a name of the code as words."""
    return name.replace("_", " ").strip().capitalize()


def format_project(name: str) -> str:
    """Return a project as people call it: a folder by its name."""
    if name == USER_PROJECT:
        return "You, in all projects"
    return name.rstrip("/").rpartition("/")[2] or name


def format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def cut_text(text: str, max_chars: int) -> str:
    """Return the beginning of a text, with its lines."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def show_hidden(text: Any) -> Markup:
    """Return a text with its hidden and reordering characters as code points."""
    return _style_escapes(str(text), escape_invisible(str(text), "\n\t"))


def show_code_line(line: str) -> Markup:
    """Return a line of code so that a person sees all of it, as at a terminal."""
    return _style_escapes(line, format_line(line))


def _style_escapes(text: str, visible: str) -> Markup:
    html = Markup.escape(visible)
    # all at once: a text may have hundreds of thousands of hidden characters
    return html if visible == text else Markup(ESCAPE_PATTERN.sub(r'<span class="codepoint">\1</span>', str(html)))


def mark_words(text: str, question: str) -> Markup:
    """Return a text with the words of a question marked."""
    words = {word.lower() for word in re.findall(r"\w+", question) if len(word) >= MIN_MARKED_CHARS} - STOP_WORDS
    if not words:
        return show_hidden(text)
    stems = sorted({re.escape(word[: max(MIN_MARKED_CHARS, len(word) - 2)]) for word in words}, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)((?:{'|'.join(stems)})\w{{0,4}})(?!\w)", re.IGNORECASE)
    pieces = pattern.split(text)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(piece) if index % 2 else show_hidden(piece)
        for index, piece in enumerate(pieces)
    )


def render(template: str, context: Mapping[str, Any]) -> str:
    return create_environment().get_template(template).render(context)


def join_words(words: Iterable[str]) -> str:
    """Return a list as people write it."""
    items = list(words)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + (f" and {items[-1]}" if items else "")
