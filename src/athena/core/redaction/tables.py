"""Find secrets whose name stands above them: columns of CSV, TSV, Markdown and SQL, and lists."""

import re
from collections.abc import Generator, Iterator

from athena.core.redaction.nearby import is_chosen
from athena.core.redaction.settings import classify_name
from athena.core.redaction.values import SecretMatch, compile_pattern, is_dummy_value, looks_generated, looks_secret
from athena.core.redaction.words import POPULAR_PASSWORDS
from athena.core.threads import check_stopped

MAX_LINE_CHARS = 2_000
MAX_CELLS = 64
_STEMS = ("pass", "pwd", "secret", "token", "key", "kennw", "contrase", "senha", "wachtw", "mdp", "пароль", "密码")
DELIMITERS = "\t|,;"
RULE_PATTERN = r"[\s|+:=-]+"  # the line below the heads of a Markdown table, or of psql
HEAD_PATTERN = r"[^\W\d][\w .()/-]{0,39}"
_PEOPLE_PATTERN = r"(?i)(?:.*[\W_])?(?:user|user ?name|login|e-?mail|account|url|website|benutzer|usuario|utilisateur)"
_PASSWORD_LISTS = (
    "passwords", "passphrases", "passwds", "pwds", "passwörter", "kennwörter", "mots de passe", "contraseñas", "senhas",
    "wachtwoorden",
)  # fmt: skip
_KEY_LISTS = ("keys", "tokens", "secrets")
_LIST_PATTERN = r"[\"'*_`]{0,3}(?:[ ]\([^()\n]{1,40}\))?[ ]{0,2}[:=][\"'*_` ]{0,4}"
_ITEM_PATTERN = (
    r"\r?\n[ \t]{0,16}(?:[-*•+]|\d{1,3}[.)])[ \t]{1,4}(?:[\w.@ -]{1,40}(?::|[ ][-–—=][ ])[ ]?)?"
    r"[\"'`]?(?P<s>[^\s\"'`]{4,256})[\"'`]?[ \t,]{0,4}(?=\r?\n|\Z)"
)
_INSERT_PATTERN = (
    r"insert\s{1,8}(?:ignore\s{1,8})?into\s{1,8}[\w.`\"\[\]]{1,120}\s{0,8}\((?P<heads>[^()]{1,2000})\)"
    r"\s{0,8}values\s{0,8}"
)
_INSERT_CELL_PATTERN = (
    r"\s{0,16}(?:[NE]?'(?P<quoted>(?>(?:[^'\\]|''|\\.)*))'|(?P<bare>[^,()']*+(?:\([^()']*+\))?))\s{0,16}[,)]"
)
_INLINE_PATTERN = r"\s{0,4},?\s{0,8}(?:\"(?P<double>[^\"\n]{1,256})\"|'(?P<single>[^'\n]{1,256})')"


def find_below_names(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find the secrets of columns and lists; `lower` is the text in lower case."""
    if "\n" in text:
        yield from _find_in_columns(text, lower)
    for heads, rows in iter_inserts(text, lower):
        if columns := _classify_columns(heads):
            for cells in rows:
                yield from _find_in_cells(text, cells, columns)
    for name in (*_PASSWORD_LISTS, *_KEY_LISTS):
        at = lower.find(name)
        while at >= 0:
            after = at + len(name)
            if head := compile_pattern(_LIST_PATTERN).match(text, after):
                after = yield from _find_in_list(text, head.end(), "secret" if name in _KEY_LISTS else "password")
            at = lower.find(name, after)


def _find_in_columns(text: str, lower: str) -> Iterator[SecretMatch]:
    for stem in _STEMS:
        at = lower.find(stem)
        while at >= 0:
            check_stopped()
            start, end = text.rfind("\n", max(0, at - MAX_LINE_CHARS), at) + 1, text.find("\n", at, at + MAX_LINE_CHARS)
            after = at + len(stem)
            is_head = compile_pattern(r"[\w.-]{0,40}[\"'`*) ]{0,8}[\t|,;\r\n]", re.UNICODE).match(text, at)
            if is_head and end >= 0 and at - start < MAX_LINE_CHARS:
                after = end
                if delimiter := next((char for char in DELIMITERS if char in text[start:end]), None):
                    cells = split_cells(text, start, end, delimiter)
                    # a line of code is indented, or ends in a comma
                    is_code = delimiter in ",;" and (text[start] in " \t" or text[end - 1] in ",;")
                    heads = [text[slice(*cell)] for cell in cells]
                    if cells:  # the text may begin in this line, as a string in JSON
                        heads[0] = heads[0][max(map(heads[0].rfind, "\"'`([{")) + 1 :].strip()
                    is_code |= delimiter in ",;" and any(len(head.split()) > 2 for head in heads)
                    columns = {} if is_code else _classify_columns(heads)
                    if columns:
                        after = yield from _find_in_rows(text, end + 1, delimiter, len(cells), columns)
                elif not start and (kind := classify_name(text[:end].rstrip(" \r:*"))):
                    value = compile_pattern(r"\s{1,8}(\S{4,256})\s{0,8}\Z").match(text, end)  # of a title, the details
                    if value and not is_dummy_value(value[1]) and _is_secret(value[1], kind):
                        yield SecretMatch(kind, *value.span(1))
            at = lower.find(stem, after)


def _classify_columns(heads: list[str]) -> dict[int, str]:
    """Return the columns with secrets by their number, and their kinds; none if a line does not hold heads."""
    if not 1 < len(heads) <= MAX_CELLS or len(set(heads)) < len(heads):
        return {}
    if any(len(head.split()) > 3 or head.lower().startswith(("fail", "skip")) for head in heads):  # "pass" of a test
        return {}
    if not all(not head or compile_pattern(HEAD_PATTERN, re.UNICODE).fullmatch(head) for head in heads):
        return {}
    kinds = {i: kind for i, head in enumerate(heads) if (kind := classify_name(head))}
    if any(compile_pattern(_PEOPLE_PATTERN).fullmatch(head) for head in heads):
        # an export of logins: a plain word is a password there too
        return {i: "login" if kind == "password" else kind for i, kind in kinds.items()}
    return kinds


def _find_in_rows(
    text: str, at: int, delimiter: str, count: int, columns: dict[int, str]
) -> Generator[SecretMatch, None, int]:
    """Find the secrets in the rows of a table, and return where it ends."""
    for cells, end in iter_rows(text, at, delimiter, count):
        yield from _find_in_cells(text, cells, columns)
        at = end
    return at - 1


def _find_in_cells(text: str, cells: list[tuple[int, int]], columns: dict[int, str]) -> Iterator[SecretMatch]:
    for column, kind in columns.items():
        start, stop = cells[column]
        value = compile_pattern(r"""(?<!\\)\\*["'][\s\]})]{0,8}\Z""").sub("", text[start:stop])
        if _is_secret(value, kind):
            yield SecretMatch("password" if kind == "login" else kind, start, start + len(value))


def iter_inserts(text: str, lower: str) -> Iterator[tuple[list[str], Iterator[list[tuple[int, int]]]]]:
    """Yield the columns of each INSERT of SQL, and the cells of its rows."""
    at = lower.find("insert")
    while at >= 0:
        if head := compile_pattern(_INSERT_PATTERN).match(lower, at):
            names = [name.strip(' \t\r\n`"[]') for name in text[slice(*head.span("heads"))].split(",")]
            yield names, _iter_insert_rows(text, head.end(), len(names))
            at = head.end()
        at = lower.find("insert", at + 1)


def _iter_insert_rows(text: str, at: int, count: int) -> Iterator[list[tuple[int, int]]]:
    cell, cells = compile_pattern(_INSERT_CELL_PATTERN), list[tuple[int, int]]()
    while cells or text.startswith("(", at):
        match = cell.match(text, at if cells else at + 1)
        if match is None or len(cells) == count:
            return
        cells.append(match.span(match.lastgroup or 0))
        at = match.end()
        if text[at - 1] == ")":
            check_stopped()
            if len(cells) != count:
                return
            yield cells
            cells, gap = [], compile_pattern(r"\s{0,16},\s{0,16}").match(text, at)
            at = gap.end() if gap else len(text)


def iter_rows(text: str, at: int, delimiter: str, count: int) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Yield the cells of each row of a table with that many columns, and where the next row begins."""
    while at < len(text):
        check_stopped()
        end = text.find("\n", at, at + MAX_LINE_CHARS)
        end = len(text) if end < 0 else end
        if end - at > MAX_LINE_CHARS:
            break
        if not compile_pattern(RULE_PATTERN).fullmatch(text, at, end):
            cells = split_cells(text, at, end, delimiter)
            if len(cells) != count:
                break
            yield cells, end + 1
        at = end + 1


def split_cells(text: str, start: int, end: int, delimiter: str) -> list[tuple[int, int]]:
    """Return where the cells of a line begin and end, without the marks around them."""
    edges = "| \t\r" if delimiter == "|" else "\r"
    while start < end and text[start] in edges:
        start += 1
    while end > start and text[end - 1] in edges:
        end -= 1
    bare = rf"(?>(?:\\.|[^{delimiter}\n\\])*)"
    cell = compile_pattern(rf'[ ]{{0,16}}(?:"(?>(?:[^"\n]|"")*)"[ ]{{0,16}}(?=[{delimiter}\r\n]|\Z)|{bare})')
    cells: list[tuple[int, int]] = []
    while start <= end and len(cells) <= MAX_CELLS:
        match = cell.match(text, start, end)
        stop = match.end() if match else start
        first, last = start, stop
        while first < last and text[first] in " \t\"'`*":
            first += 1
        while last > first and text[last - 1] in " \t\r\"'`*":
            last -= 1
        cells.append((first, last))
        start = stop + 1
        if stop < end and text[stop] != delimiter:
            return []
    return cells


def _is_secret(value: str, kind: str) -> bool:
    if kind == "login":
        return " " not in value and looks_secret(value, "password", quoted=True)
    if kind == "password":
        return " " not in value and (is_chosen(value, 5, loose=True) or value in POPULAR_PASSWORDS)
    return looks_generated(value) or (
        any(map(str.isdigit, value)) and looks_secret(value, kind) and is_chosen(value, 8)
    )


def _find_in_list(text: str, at: int, kind: str) -> Generator[SecretMatch, None, int]:
    """Find the secrets of a list, and return where it ends."""
    is_inline = text.startswith(("[", "(", "{"), at)
    item = compile_pattern(_INLINE_PATTERN if is_inline else _ITEM_PATTERN, re.UNICODE)
    at += is_inline
    while match := item.match(text, at):
        check_stopped()
        (start, end), at = match.span(match.lastgroup or 0), match.end()
        value = text[start:end]
        if not is_dummy_value(value) and _is_secret(value, kind):
            yield SecretMatch(kind, start, end)
    return at
