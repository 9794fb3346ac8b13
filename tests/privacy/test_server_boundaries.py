"""What a server says beside the results of calls: lists of tools, prompts, refusals, and its log."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import types
from mcp.shared.exceptions import MCPError
from privacy_tools import PrivateApp, open_private_app

from athena.core.redaction.personal import PersonalRules
from athena.core.redaction.texts import SecretForms
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.server.admission import CallDispatcher
from athena.server.guard import AccessPolicy, Guard, GuardedResponse
from athena.server.log import write_log_line
from athena.server.mcp.server import McpHandlers
from athena.server.mcp.workspaces import McpPeer
from athena.storage.sqlite.store import Sqlite
from http_tools import run_server

SECRET = "walrus-orchard-91"
EMAIL, CARD = "ada.lovelace@example.com", "4111 1111 1111 1111"


@pytest.fixture
def private(tmp_path: Path) -> Iterator[PrivateApp]:
    with open_private_app(Sqlite(tmp_path / "home.db"), tmp_path, "boundary") as app:
        yield app


def ask(private: PrivateApp, method: str, params: Any) -> Any:
    async def work() -> Any:
        app = private.app
        dispatcher = CallDispatcher(app.catalog, is_stopping=bool, max_concurrent=2)
        handlers = McpHandlers(
            dispatcher,
            lambda project, workspace: app.create_context("p", "mcp", workspace=workspace),
            lambda _: McpPeer("all", "p", None),
        )
        return await getattr(handlers, method)(None, params)

    return asyncio.run(work())


def test_description_of_a_tool_holds_tokens(private: PrivateApp) -> None:
    private.add_server("crm")
    listed = [tool for tool in ask(private, "list_tools", None).tools if "crm" in tool.name]
    assert "As [EMAIL_1] knows it" in repr(listed)
    assert "@contacts" not in repr(listed)


def test_prompt_and_unknown_names_hold_no_values(private: PrivateApp) -> None:
    params = types.GetPromptRequestParams(name="use_athena", arguments={"task": f"write to {EMAIL}"})
    assert "Do this now: write to [EMAIL_1]" in repr(ask(private, "get_prompt", params))
    for method, request in (
        ("get_prompt", types.GetPromptRequestParams(name=f"of {EMAIL}")),
        ("call_tool", types.CallToolRequestParams(name=f"send {EMAIL}")),
    ):
        with pytest.raises(MCPError) as caught:
            ask(private, method, request)
        assert EMAIL not in repr(caught.value)


def test_log_has_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    rules = PersonalRules(frozenset({"Grace Hopper"}), {"CUSTOMER": r"C-\d{6}"})
    write_log_line({"event": "x", "path": f"/v1/{EMAIL}", "error": f"{CARD} of Grace Hopper, C-123456", "ms": 2}, rules)
    line = json.loads(capsys.readouterr().err)
    assert (line["path"], line["error"], line["ms"]) == ("/v1/[EMAIL]", "[CARD] of [NAME], [CUSTOMER]", 2)


def test_traceback_of_a_crash_has_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    async def send(message: Any) -> None: ...

    error = ValueError(f"cannot read {EMAIL}")
    guard = Guard(send, AccessPolicy(frozenset(), None))  # type: ignore[arg-type]
    guard._print_traceback(GuardedResponse(send, "id"), error)
    logged = capsys.readouterr().err
    assert "cannot read [EMAIL]" in logged
    assert EMAIL not in logged


def test_server_follows_no_settings_that_config_no_longer_has(tmp_path: Path) -> None:
    """A person who writes `privacy = "strict"` into config.toml relies on it from then on."""
    with run_server(tmp_path) as served:
        config = served.home / "config.toml"
        served.call("remember", content=f"write to {EMAIL}")
        config.write_text("port = 4000\n")  # says nothing of privacy
        assert EMAIL in repr(served.call("recall", query="write"))
        for text in ('privacy = "strict"\n', "privacy = strict\n"):
            config.write_text(text)
            for name, arguments in (("recall", {"query": "write"}), ("remember", {"content": EMAIL}), ("stats", {})):
                reply = served.execute(name, arguments)
                assert (reply.status, EMAIL in repr(reply.json)) == (503, False), (text, name)
                assert "config.toml" in reply.json["error"]["message"]
        config.unlink()
        assert EMAIL in repr(served.call("recall", query="write"))


@pytest.fixture
def crm(tmp_path: Path) -> Iterator[PrivateApp]:
    """An app without privacy, whose project `p` has a secret for the server crm."""
    with open_private_app(Sqlite(tmp_path / "home.db"), tmp_path, "off") as app:
        app.add_server("crm")
        run_sync(app.vault.put_secret(Scope("p"), "key", SECRET, ["crm"]))
        yield app


def send_secret(to: str) -> str:
    return f"crm.add_contact(email='{to}@x', secret='[VAULT:key]')"


def test_words_of_a_server_reach_no_other_call(crm: PrivateApp) -> None:
    for _ in range(3):
        failed = crm.run(send_secret("crash"))
        assert 'it said: "error: cannot log in with [VAULT:key]"' in failed.error.message
    for project in ("p", "other"):
        for surface in ("mcp", "http"):
            [server] = crm.call(surface, "list_servers", project=project)
            assert server.detail.startswith("it ended during calls; retrying in")
        assert "orchard" not in repr(crm.run("servers.list()", project=project))
        refused = crm.run("crm.add_contact(email='a@x')", project=project)
        assert "the server crm does not work: it ended during calls" in refused.error.message
        assert "orchard" not in repr(refused)
    for said in (crm.call("cli", "list_servers")[0], crm.call("page", "describe_server", name="crm").server):
        assert 'it said: "error: cannot log in with [VAULT:key]"' in said.detail


def test_error_quotes_no_output_of_an_earlier_call(crm: PrivateApp) -> None:
    assert crm.run(send_secret("log")).result == "added log@x [VAULT:key]"
    failed = crm.run("crm.add_contact(email='exit@x')", project="other")
    assert "the server crm broke off during add_contact" in failed.error.message
    assert "orchard" not in repr(failed)


def test_words_of_a_server_before_its_approval_are_for_people(crm: PrivateApp) -> None:
    crm.app.gateway._approval_store.remove("crm")
    crm.app.gateway._approval_store.write_failure("crm", f"it said: {SECRET}")
    for answer in (crm.run("servers.list()"), crm.run("crm.add_contact(email='a@x')"), crm.call("mcp", "list_servers")):
        assert "not approved yet" in repr(answer)
        assert "orchard" not in repr(answer)
    assert f"the last try: it said: {SECRET}" in crm.call("cli", "list_servers")[0].detail


@pytest.mark.parametrize("secret", [SECRET, "482913", "c2VjcmV0LXRoYXQtaXMtbG9uZw=="])
def test_attachment_with_a_secret_is_not_kept(crm: PrivateApp, secret: str) -> None:
    run_sync(crm.vault.put_secret(Scope("p"), "key", secret, ["crm"]))
    for wrap in ("{}", "a{}", "ab{}", '{{"key": "{}"}}'):
        [handle, files] = crm.run(
            f"[crm.add_contact(email='file@x', secret={wrap.format('[VAULT:key]')!r}), workspace.list()]"
        ).result
        assert handle["note"] == "it was not kept: it holds a secret", wrap
        assert "path" not in handle
        assert files == []
    kept = crm.run("crm.add_contact(email='file@x', secret='nothing')").result
    assert kept["path"] in crm.run("[file['path'] for file in workspace.list()]").result


@pytest.mark.parametrize(
    "content",
    [
        SECRET.encode(),
        SECRET.encode("utf-16"),
        SECRET.encode().hex().encode(),
        base64.encodebytes(b"x" * 50 + SECRET.encode()),
        b"\xff\x00" * 50 + SECRET.encode() + b"\xff",
    ],
)
def test_secret_in_a_file_is_found(content: bytes) -> None:
    forms = SecretForms({SECRET: "[VAULT:key]", "pin": "[VAULT:short]"})
    assert forms.is_in_file(base64.b64encode(content).decode())
    assert not forms.is_in_file(base64.b64encode(content[1:].replace(b"1", b"2").replace(b"M", b"N") + b"pin").decode())


def test_secret_that_is_base64_is_found_as_the_data_of_a_file() -> None:
    secret = base64.b64encode(b"a long secret").decode()
    assert SecretForms({secret: "[VAULT:key]"}).is_in_file(secret)


def test_stored_answer_holds_no_secret(crm: PrivateApp) -> None:
    for surface in ("http", "cli"):
        first, again = (
            crm.call(surface, "crm.add_contact", key=f"once-{surface}", email="a@x", secret="[VAULT:key]")
            for _ in range(2)
        )
        assert first == again == "added a@x [VAULT:key]"
    assert "orchard" not in crm.read_texts()
