"""Pictures, sounds and files from tools: kept in the workspace, with a handle."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_tools import GatewayApp, open_gateway_app, server_entry

from athena.errors import NotFound
from athena.programs import workspace

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PNG_BYTES = len(base64.b64decode(PNG))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GatewayApp]:
    with open_gateway_app(tmp_path / "home") as made:
        yield made


def test_picture_is_kept_with_handle(home: GatewayApp) -> None:
    home.add("shots", server_entry("one-picture"))
    handle = home.call("shots.bad")
    path = handle["path"]
    assert handle == {"type": "image", "mimeType": "image/png", "bytes": PNG_BYTES, "path": path}
    assert path.startswith("handles/")
    assert path.endswith(".png")
    assert home.call("read_file", path=path) == PNG
    done = home.run("shot = shots.bad()\n[shot, workspace.read(path=shot['path'])]", workspace="mine")
    assert done.result == [handle, PNG]
    assert home.call("delete_file", path=path)
    assert home.call("read_file", path=path, workspace="mine") == PNG  # each workspace has its own
    assert home.call("shots.bad", "http", "a-key") == home.call("shots.bad", "http", "a-key") == handle


def test_every_kind_of_attachment_is_kept(home: GatewayApp) -> None:
    home.add("shots", server_entry("attachments"))
    text, picture, sound, report = home.call("shots.bad")
    assert text == "see"
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    assert (sound["type"], sound["mimeType"], sound["path"][-4:]) == ("audio", "audio/wav", ".wav")
    assert (report["uri"], report["mimeType"], report["path"][-4:]) == ("file:///report", "application/pdf", ".pdf")
    assert base64.b64decode(home.call("read_file", path=report["path"])) == b"%PDF-1.7 x"


def test_attachment_beside_structured_value(home: GatewayApp) -> None:
    home.add("shots", server_entry("structured-picture"))
    value = home.call("shots.bad")
    assert value["width"] == 1
    assert home.call("read_file", path=value["attachments"][0]["path"]) == PNG
    home.add("more", server_entry("wrapped-picture"))
    value = home.call("more.bad")
    assert value["result"] == [1, 2]
    assert value["attachments"][0]["type"] == "image"


def test_type_is_that_of_content(home: GatewayApp) -> None:
    home.add("shots", server_entry("false-picture"))
    page, broken, real = home.call("shots.bad")
    assert (page["mimeType"], page["path"][-4:]) == ("application/octet-stream", ".bin")
    assert broken == {"type": "image", "mimeType": "application/octet-stream", "note": "its data cannot be read"}
    assert (real["mimeType"], real["bytes"]) == ("image/png", PNG_BYTES)


def test_attachment_of_private_server_is_private(home: GatewayApp) -> None:
    home.add("fine", server_entry("fine"))
    home.add("shots", server_entry("one-picture"))
    home.add("closed", server_entry("wrapped-picture", private=True))
    shot = home.call("shots.bad")
    assert home.run("fine.echo(text='x')").status == "done"
    assert home.run(f"workspace.read(path={shot['path']!r})\nfine.echo(text='x')").status == "done"
    path = home.call("closed.bad")["attachments"][0]["path"]  # not in a program
    assert home.run("fine.echo(text='x')", workspace="other").status == "done"
    waits = home.run(f"workspace.read(path={path!r})\nfine.echo(text='x')")
    assert waits.status == "needs_approval"


def test_attachments_make_room(home: GatewayApp, monkeypatch: pytest.MonkeyPatch) -> None:
    home.add("shots", server_entry("many-pictures"))
    shots = home.call("shots.bad")
    assert ["path" in shot for shot in shots] == [True] * 20 + [False] * 50
    assert shots[69]["note"] == "it was not kept: an answer keeps at most 20 attachments"
    home.run("for number in range(60): list(range(9_000))\nlist(range(9_000))")  # a long result is a handle, too
    with monkeypatch.context() as patched:
        patched.setattr(workspace, "MAX_HANDLES", 20)
        home.run("list(range(9_001))")
    assert len(home.call("list_files")) == 20
    with pytest.raises(NotFound):
        home.call("read_file", path=shots[0]["path"])  # the oldest went
    assert home.call("read_file", path=shots[19]["path"])
    monkeypatch.setattr(workspace, "MAX_HANDLE_BYTES", 5)
    assert home.call("shots.bad", "http")[0] == {
        "type": "image",
        "mimeType": "image/png",
        "bytes": 9,
        "note": "it was not kept: the workspace has no room for it",
    }
