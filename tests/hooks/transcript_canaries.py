"""Generate transcripts of sessions with canaries: words that no store, log, export or session may ever hold.

A transcript is what Claude Code writes, and the hook events that it sends meanwhile. Canaries stand where people, tools
and files put private texts: in prompts that state nothing, in secrets, in private clauses of statements, in results of
tools and in files. Words of statements are marked too: those may be stored.
"""

import base64
import json
import random
import string
from typing import Any, NamedTuple
from urllib.parse import quote

# Prompts that ask, guess, thank, quote or paste; {c} is the canary.
PROMPTS = (
    "please look at the {c} job and tell me why it is slow",
    "can you fix the failing test around {c}?",
    "what does {c} do in the importer, and who calls it?",
    "maybe we could rename {c} at some point",
    "hmm the output still shows {c}, try again",
    "here is the log:\n```\nERROR {c} not found at line 12\n```\nwhat now?",
    "ok thanks, {c} looks good",
    "I think {c} might be the reason, not sure",
    "let me know if {c} is too slow",
    "the forum says:\n> Just set it. Always restart {c} after every deploy.",
    'somebody wrote: "You should never use {c} on this board, always use the other one"',
    "add a button with the label {c} to the page",
    "rename the function to {c} and run the tests",
    "Good morning! Let's do the {c} part today, if you can.",
    "bitte schau dir {c} an und sag mir, warum es langsam ist",
    "¿puedes revisar {c} por favor?",
    "regarde {c} s'il te plaît",
    "try {c} instead and show me the diff",
    "why did {c} happen again??",
    "go on with {c}",
    "I wonder whether {c} would help here",
    "first read {c}, then write a summary of it",
    "run it again with {c} and without the cache",
    "is {c} still there?",
    "see if {c} breaks something",
    "<system-reminder>The file {c} was changed by the user.</system-reminder>",
    "This session is being continued from {c}, a previous conversation.",
    "/review {c}",
    "!grep {c} src",
    "explain {c} to me like I am new here\n\n\n" + "and take your time with it, " * 60,
)
# What may be stored: statements, with a word {s} that may be anywhere.
STATEMENTS = (
    "We decided to use {s} for the billing service.",
    "From now on the {s} queue is drained before each release.",
    "Never edit files under {s} by hand, they are overwritten by the build.",
    "The {s} database lives on db-stage-2 and is wiped every Sunday night.",
    "Note that the {s} exporter needs libfoo 3 on the build host.",
)
# Statements with a clause that must go; the rest may be stored.
PRIVATE_STATEMENTS = (
    "We decided to keep the display of {s} in German because my mother {c} has dementia.",
    "From now on the {s} release is on Tuesday because my wife {c} is in hospital.",
    "The {s} server only runs at night, and my phone number is +49 170 {d}.",
    "We use {s} for all the reports, my home address is {n} {c} Street.",
)
RESULTS = (
    "1 passed, {c} skipped",
    "def {c}():\n    return 1\n# We decided to use {c} for everything.",
    "Traceback (most recent call last):\nValueError: {c}",
    "README: Always run {c} before you commit. The {c} server lives on port 8080 and only runs on staging.",
    '{{"rows": ["{c}"]}}',
)
ANSWERS = (
    "The importer reads each file once now, and all 42 tests pass.",
    "The crash was caused by the cache of the importer; clearing it fixed it.",
    "Retries are in the client now; the release notes are still missing.",
)
# What the agent asks, says after it, and what a person answers: {c} is a secret whatever it looks like.
QUESTIONS = (
    "Which password does the staging database have?",
    "What is the PIN of the alarm? I go on with the rest until then.",
    "I need the passphrase of the signing key.\n- It signs it.\n- The tests wait.\n- So do the docs.\n- And I.",
)
MEANWHILE = ("Meanwhile I have prepared the files.", "I will then run the migration. It takes a minute. Fine.")
DELAYS = ("one second", "OK.", "Hm, good question.")
SECRET_ANSWERS = ("we use {c} everywhere", "from now on it's always {c}", "The {c} one is always used for all.")
LETTERS = string.ascii_letters + string.digits


class Transcript(NamedTuple):
    """A session: its entries, the hook events in order, what must be nowhere, and the words of its statements."""

    session_id: str
    entries: list[dict[str, Any]]
    events: list[tuple[str, dict[str, Any]]]
    canaries: dict[str, str]  # the text, and where it stands
    statements: list[str]


def create_secret(rng: random.Random) -> tuple[str, str, str]:
    """Return a kind of secret, a text that holds one as people and tools write it, and the secret part itself."""

    def pick(count: int, letters: str = LETTERS) -> str:
        return "".join(rng.choices(letters, k=count))

    value = pick(36)
    password = f"{pick(5, string.ascii_lowercase)}-{pick(1, string.ascii_uppercase)}{pick(5)}{rng.randrange(10, 99)}"
    token = base64.urlsafe_b64encode(json.dumps({"sub": pick(12)}).encode()).decode().rstrip("=")
    secrets = {
        "github": (f"ghp_{value}", f"ghp_{value}"),
        "github fine": (f"github_pat_{pick(22)}_{pick(59)}",) * 2,
        "anthropic": (f"sk-ant-api03-{pick(93)}AA",) * 2,
        "openai": (f"sk-proj-{pick(48)}",) * 2,
        "aws": (f"AWS_SECRET_ACCESS_KEY={(key := pick(40))}", key),
        "aws id": (f"AKIA{pick(16, string.ascii_uppercase + '234567')}",) * 2,
        "slack": (f"xoxb-{pick(12, string.digits)}-{pick(12, string.digits)}-{pick(24)}",) * 2,
        "gitlab": (f"glpat-{pick(20)}",) * 2,
        "npm": (f"npm_{pick(36)}",) * 2,
        "google": (f"AIza{pick(35)}",) * 2,
        "stripe": (f"sk_live_{pick(24)}",) * 2,
        "jwt": (f"eyJhbGciOiJIUzI1NiJ9.{token}.{pick(43)}",) * 2,
        "url": (f"postgres://app:{password}@db.internal/shop", password),
        "assignment": (f"password = {password!r}", password),
        "yaml": (f"db_password: {password}", password),
        "bearer": (f"Authorization: Bearer {value}", value),
        "basic": (f"Authorization: Basic {(coded := base64.b64encode(f'app:{password}'.encode()).decode())}", coded),
        "pem": (f"-----BEGIN PRIVATE KEY-----\n{(body := pick(64))}\n-----END PRIVATE KEY-----", body),
        "option": (f"--password={password}", password),
        "netrc": (f"machine api.shop.internal login app password {password}", password),
        "pgpass": (f"\ndb.shop.internal:5432:orders:app:{password}\n", password),
        "mysql": (f"mysql -uroot -p{password} orders", password),
        "docker": (f"docker login -u app -p {password} registry.shop.internal", password),
        "cookie": (f"Cookie: sessionid={value}", value),
        "words": (f"my password for staging is {password}", password),
        "escaped": (f'{{"text": "first\\ntoken: ghp_{value}"}}', value),
        "coloured": (f"\x1b[32mghp_{value}\x1b[0m", value),
        "encoded": (f"password%3D{password}", password),
    }
    kind = rng.choice(sorted(secrets))
    return kind, *secrets[kind]


def create_transcript(seed: int, folder: str) -> Transcript:
    """Return the session of this number; the same number gives the same session."""
    rng = random.Random(f"transcript {seed}")
    canaries: dict[str, str] = {}
    statements: list[str] = []
    entries: list[dict[str, Any]] = []
    events: list[tuple[str, dict[str, Any]]] = []
    session_id = f"{rng.getrandbits(32):08x}-{seed:04d}"

    def create_canary(place: str) -> str:
        word = "".join(rng.choices("bcdfghjklmnpqrstvwxz", k=6)) + f"{rng.randrange(10**6):06d}"
        canaries[word] = place
        return word

    def add_secret(place: str) -> str:
        kind, text, secret = create_secret(rng)
        canaries[secret] = f"{kind} secret in {place}"
        return text

    def add_entry(role: str, content: object, **more: Any) -> None:
        base = {"isSidechain": False, "cwd": folder, "sessionId": session_id, "version": "2.0.14", "type": role}
        entries.append(base | {"message": {"role": role, "content": content}} | more)

    def prompt(text: str) -> None:
        add_entry("user", text if rng.random() < 0.7 else [{"type": "text", "text": text}])
        events.append(("user-prompt-submit", {"prompt": text}))

    def use_tool(name: str, tool_input: dict[str, Any]) -> None:
        use_id, result = f"toolu_{rng.getrandbits(48):012x}", rng.choice(RESULTS).format(c=create_canary("tool result"))
        result += f"\n{add_secret('tool result')}" if rng.random() < 0.3 else ""
        add_entry("assistant", [{"type": "tool_use", "id": use_id, "name": name, "input": tool_input}])
        results = [{"type": "tool_result", "tool_use_id": use_id, "content": result}]
        add_entry("user", results, toolUseResult={"stdout": result})
        response = {"stdout": result, "stderr": "", "interrupted": False, "is_error": rng.random() < 0.2}
        events.append(("post-tool-use", {"tool_name": name, "tool_input": tool_input, "tool_response": response}))

    def choose_tool() -> tuple[str, dict[str, Any]]:
        word = create_canary("tool input")
        tools: list[tuple[str, dict[str, Any]]] = [
            (
                "Write",
                {"file_path": f"{folder}/src/orders.py", "content": f"KEY = {word!r}  # {add_secret('file')}"},
            ),
            ("Edit", {"file_path": f"{folder}/src/queue.py", "old_string": word, "new_string": f"{word} = 2"}),
            ("Task", {"description": "Search the code", "prompt": f"The user asks for {word}"}),
            ("WebSearch", {"query": f"how to {word}"}),
            ("mcp__tracker__create_issue", {"title": word, "body": add_secret("tool input")}),
            ("TodoWrite", {"todos": [{"content": word, "status": "pending"}]}),
            ("Bash", {"command": f"./deploy.sh {add_secret('command')}"}),
            ("Bash", {"command": f"curl -H '{add_secret('command')}' shop.internal"}),
            ("Bash", {"command": "pytest -q"}),
            ("Read", {"file_path": f"{folder}/{word}"}),
        ]
        return rng.choice(tools)

    events.append(("session-start", {"source": "startup"}))
    asked: list[str] = []
    for _ in range(rng.randrange(2, 7)):
        text = rng.choice(PROMPTS).format(c=create_canary("prompt"))
        if rng.random() < 0.25:
            text += f"\nuse {add_secret('prompt')} for it"
        asked.append(text)
        prompt(text)
        if rng.random() < 0.5:
            statements.append(word := f"keeper{rng.randrange(10**6):06d}")
            if rng.random() < 0.5:
                prompt(rng.choice(STATEMENTS).format(s=word))
            else:
                number = str(rng.randrange(10**6, 10**7))
                canaries[number] = "private clause"
                template = rng.choice(PRIVATE_STATEMENTS)
                prompt(template.format(s=word, c=create_canary("private clause"), d=number, n=rng.randrange(1, 99)))
        for _ in range(rng.randrange(3)):
            use_tool(*choose_tool())
        answer = rng.choice(ANSWERS)
        if rng.random() < 0.3:
            answer += f" You asked: {asked[-1]}"
        if rng.random() < 0.3:
            answer += f" It now runs with {add_secret('answer')} in the environment."
        add_entry("assistant", [{"type": "text", "text": answer}])
        events.append(("stop", {"last_assistant_message": answer}))
        if rng.random() < 0.4:
            add_entry("assistant", [{"type": "text", "text": rng.choice(QUESTIONS)}])
            use_tool("Bash", {"command": "pytest -q"})
            add_entry("assistant", [{"type": "text", "text": rng.choice(MEANWHILE)}])
            if rng.random() < 0.4:
                prompt(rng.choice(DELAYS))
                add_entry("assistant", [{"type": "text", "text": "Take your time."}])
            prompt(rng.choice(SECRET_ANSWERS).format(c=create_canary("answer to a question for a secret")))
        if rng.random() < 0.15:
            summary = "<summary>\n1. Primary Request and Intent:\n   " + asked[0]
            summary += "\n2. Work:\n   The importer reads each file once. " + add_secret("summary")
            summary += (
                "\n6. All user messages:\n"
                + "\n".join(f"   - {one}" for one in asked)
                + "\n7. Next:\n   Tests.\n</summary>"
            )
            events.append(("pre-compact", {"trigger": "auto"}))
            events.append(("post-compact", {"compact_summary": summary}))
            events.append(("session-start", {"source": "compact"}))
    events.append(("session-end", {"reason": "prompt_input_exit"}))
    return Transcript(session_id, entries, events, canaries, statements)


def encode_canary(text: str) -> list[bytes]:
    """Return a text in the encodings in which it may be stored; letter case aside, which the search folds."""
    raw = text.encode()
    forms = [raw, raw[::-1], raw.hex().encode(), text.encode("utf-16-le"), text.encode("utf-16-be")]
    forms += [quote(text, safe="").encode(), "".join(f"%{byte:02x}" for byte in raw).encode()]
    forms += [json.dumps(text)[1:-1].encode(), "".join(f"\\u{ord(char):04x}" for char in text).encode()]
    for offset in range(3):  # the same text at each position within three bytes, without the characters at its borders
        coded = base64.b64encode(b"\0" * offset + raw)
        forms.append(coded[(0, 2, 3)[offset] : len(coded) - 4])
    return [form for form in forms if len(form) >= 6]
