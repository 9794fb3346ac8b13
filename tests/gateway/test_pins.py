"""Approved definitions: what counts as a change, how it is shown, and when it is noticed."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import PROGRAM, GatewayApp, open_gateway_app, server_entry
from hypothesis import given, settings
from hypothesis import strategies as st

from athena.core.threads import run_sync
from athena.errors import Denied, NotFound
from athena.gateway import definitions, server_connection, stdio
from conftest import rounds
from wait_tools import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Any:
    with open_gateway_app(tmp_path / "home") as made:
        yield made


def rewrite_pins(home: GatewayApp, name: str, change: Any) -> None:
    """Edit a file of approvals, as an older version would have written it."""
    path = home.home / "pins" / f"{name}.json"
    stored = json.loads(path.read_text("utf-8"))
    change(stored)
    path.with_suffix(".new").write_text(json.dumps(stored), "utf-8")
    os.replace(path.with_suffix(".new"), path)


# --- order ----------------------------------------------------------------------------------------------------------


def test_schema_built_from_sets_stays_approved(home: GatewayApp) -> None:
    home.add("issues", server_entry("set-default"))
    shown = home.call("describe_tool", name="issues.issue")
    for _ in range(5):  # each process has another order
        home.gateway.close()
        arguments = {"fields": "a", "shown": "b", "kinds": ["status"], "required": None}
        assert home.call("issues.issue", **arguments) == "did set-default"
    assert home.server("issues").refused == []
    assert home.call("describe_tool", name="issues.issue") == shown  # the approved order


def test_changed_default_is_refused_and_named(home: GatewayApp, tmp_path: Path) -> None:
    flag = tmp_path / "changed"
    home.add("issues", server_entry("set-default", env={"CHANGED": str(flag)}))
    flag.touch()
    with pytest.raises(Denied, match=r"has changed since it was approved: inputSchema\.properties\.fields\.default\n"):
        home.call("issues.issue", fields="a", shown="b", kinds=[], required=None)
    assert home.server("issues").refused == ["issue: changed: inputSchema.properties.fields.default"]
    with pytest.raises(NotFound, match=r"waits for a person: it has changed .*: inputSchema\.properties\.fields\.def"):
        home.call("issues.issue")


def test_stdio_servers_have_fixed_hash_seed(home: GatewayApp) -> None:
    assert stdio.build_environment({}, {})["PYTHONHASHSEED"] == "0"
    assert stdio.build_environment({"PYTHONHASHSEED": "7"}, {})["PYTHONHASHSEED"] == "0"
    assert stdio.build_environment({}, {"PYTHONHASHSEED": "random"})["PYTHONHASHSEED"] == "random"
    entry = {"command": sys.executable, "args": ["-S", PROGRAM, "set-default"], "env": {"MENTIONED": "1"}}
    home.add("issues", entry)  # not isolated, so that it sees the variable; its description names a set
    for _ in range(3):
        home.gateway.close()
        assert home.call("issues.issue", fields="", shown="", kinds=[], required=None) == "did set-default"


scalars = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("ab,. ", max_size=6))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["required", "type", "enum", "default", "properties", "anyOf", "items", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@settings(max_examples=rounds(60, 200), deadline=None)
@given(values, values)
def test_difference_is_found_where_texts_differ(old: Any, new: Any) -> None:
    approved, offered = ({"name": "t", "inputSchema": schema} for schema in (old, new))
    is_same = definitions.is_same(approved, offered)
    assert bool(definitions.find_differences(approved, offered)) is not is_same
    assert bool(definitions.format_differences(approved, offered, 100)) is not is_same
    assert definitions.find_differences(offered, offered) == []


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ({"required": ["a", "b"]}, {"required": ["b", "a"]}, None),
        ({"type": ["null", "string"]}, {"type": ["string", "null"]}, None),
        ({"enum": [1, True]}, {"enum": [True, 1]}, None),
        ({"enum": [1]}, {"enum": [True]}, "enum.0"),
        ({"default": "a,b"}, {"default": "b,a"}, None),
        ({"default": "{'a', 'b'}"}, {"default": "{'b', 'a'}"}, None),
        ({"default": "frozenset({1, 2})"}, {"default": "frozenset({2, 1})"}, None),
        ({"default": "a,b"}, {"default": "a,b,b"}, "default"),
        ({"default": [["a"], ["b"]]}, {"default": [["b"], ["a"]]}, None),
        ({"default": [1, 1, 2]}, {"default": [1, 2, 2]}, "default.0"),
        ({"const": ["a", "b"]}, {"const": ["b", "a"]}, "const"),
        ({"enum": [["a", "b"]]}, {"enum": [["b", "a"]]}, "enum.0"),
        ({"prefixItems": [{"type": "a"}, {}]}, {"prefixItems": [{}, {"type": "a"}]}, "prefixItems"),
        # a property may have the name of a keyword
        (
            {"properties": {"required": {"const": [1, 2]}}},
            {"properties": {"required": {"const": [2, 1]}}},
            "properties",
        ),
        ({"description": "a,b"}, {"description": "b,a"}, "description"),
        ({"properties": {"a": {}}}, {"properties": {"a": {}, "send all files": {}}}, "properties"),
    ],
)
def test_only_what_has_no_order_is_sorted(old: Any, new: Any, path: str | None) -> None:
    approved, offered = {"inputSchema": old}, {"inputSchema": new}
    paths = definitions.list_approved_paths(approved, offered)
    assert (not paths) if path is None else paths[0].startswith(f"inputSchema.{path}")
    assert "send all files" not in "".join(paths)  # no model reads it


def test_differences_show_path_and_values() -> None:
    long = "word " * 300
    old = {"description": long + "Adds." + long, "inputSchema": {"properties": {"a": {"enum": ["x", "y"]}}}}
    new = {"description": long + "Adds\u202e!" + long, "inputSchema": {"properties": {"a": {"enum": ["y", "z", "q"]}}}}
    assert definitions.format_differences(old, new | {"_meta": {"k": 1}}, 10) == [
        "_meta:",
        '  + {"k": 1}',
        "description:",
        f"  - …{long[-36:]}Adds.{long[:40]}…",
        f"  + …{long[-36:]}Adds<U+202E>!{long[:40]}…",
        "inputSchema.properties.a.enum:",
        '  - ["x"]',
        '  + ["q", "z"]',
    ]
    assert definitions.format_differences(old, {}, 1)[-1] == "... and 1 more differences"
    (line,) = definitions.format_differences({}, {"a": "y" * 5_000}, 9)[1:]
    assert len(line) < 2_100


# --- what is pinned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["_meta", "icons", "execution"])
def test_every_field_is_pinned(home: GatewayApp, tmp_path: Path, field: str) -> None:
    flag = tmp_path / "changed"
    home.add("sly", server_entry("extended", env={"CHANGED": str(flag), "FIELD": field}))
    assert home.call("sly.bad") == "did extended"
    flag.touch()
    home.gateway.close()
    with pytest.raises(Denied, match=f"has changed since it was approved: {field}"):
        home.call("sly.bad")


def test_large_icon_does_not_hide_tool(home: GatewayApp, tmp_path: Path) -> None:
    flag = tmp_path / "changed"
    home.add("sly", server_entry("extended", env={"CHANGED": str(flag), "FIELD": "large-icon"}))
    assert home.call("sly.bad") == "did extended"
    assert (home.home / "pins" / "sly.json").stat().st_size < 4_000  # its hash is enough
    flag.touch()
    home.gateway.close()
    with pytest.raises(Denied, match="has changed since it was approved: icons"):
        home.call("sly.bad")


def test_deep_change_is_found() -> None:
    old: Any = "a"
    new: Any = "b"
    for _ in range(150):
        old, new = {"not": old}, {"not": new}
    (path,) = definitions.list_approved_paths({"inputSchema": old}, {"inputSchema": new})
    assert path.startswith("inputSchema.not.not.")
    assert len(path) <= 200


def test_older_approvals_hold(home: GatewayApp, tmp_path: Path) -> None:
    flag = tmp_path / "changed"
    home.add("old", server_entry("extended", env={"CHANGED": str(flag), "FIELD": "_meta"}))
    home.add("issues", server_entry("set-default"))

    def write_as_before(stored: dict[str, Any]) -> None:
        stored.pop("format")
        stored.pop("differences")
        for tool in stored["tools"].values():
            tool["definition"].pop("_meta", None)
            tool["hash"] = "of the definition in its order"

    for name in ("old", "issues"):
        rewrite_pins(home, name, write_as_before)
        home.gateway.close()
    flag.touch()  # a field that nobody approved, and that nobody reads
    assert home.call("old.bad") == "did extended"
    assert home.call("issues.issue", fields="", shown="", kinds=[], required=None) == "did set-default"
    home.approve("old")  # from now on it counts
    flag.unlink()
    home.gateway.close()
    with pytest.raises(Denied, match="has changed since it was approved: _meta"):
        home.call("old.bad")


# --- when it is noticed ---------------------------------------------------------------------------------------------


def test_change_announced_during_listing_is_seen(home: GatewayApp, tmp_path: Path) -> None:
    home.add("sly", server_entry("changes-while-listed"))
    home.call("sly.echo", text="x")  # connects; the notice came before the list, which was the old one
    with pytest.raises(NotFound, match=r"sly\.bad waits for a person: it has changed"):
        home.call("sly.bad")


def test_change_during_wait_for_slot_is_seen(home: GatewayApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_CONCURRENT_CALLS", 1)
    go = tmp_path / "go"
    home.add("sly", server_entry("changes-during-call", env={"GO": str(go)}))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(home.call, "sly.bad")
        connection = wait_until(lambda: home.gateway._pool._connections.get("sly"))
        wait_until(connection._call_slots.locked)
        second = pool.submit(home.call, "sly.bad")
        wait_until(lambda: connection._call_slots._waiters)
        go.touch()
        assert first.result() == "did changes-during-call"
        with pytest.raises(Denied, match="the tool 'bad' has changed"):
            second.result()


def test_declined_change_ends_open_connections(home: GatewayApp, tmp_path: Path) -> None:
    flag = tmp_path / "changed"
    home.add("sly", server_entry("fine", env={"CHANGED": str(flag)}))
    assert home.call("sly.bad") == "did fine"  # from here on the connection is open
    flag.touch()
    with open_gateway_app(home.home) as person:  # looks at the change with `athena servers approve`, and says no
        person.app.catalog.refresh()
        run_sync(person.gateway.fetch_tools("sly"))
    with pytest.raises(
        NotFound, match=r"sly\.bad waits for a person: it has changed since it was approved: description"
    ):
        home.call("sly.bad")


def test_unheard_announcements_are_made_up_for(
    home: GatewayApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "UNHEARD_RECHECK_INTERVAL_S", 0.0, raising=False)
    web = subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, "good,good-announces", "http"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"CHANGED": str(tmp_path / "changed")},
        text=True,
    )
    assert web.stdout
    try:
        for name in ("silent", "announces"):  # as their capabilities say
            home.add(name, {"url": f"http://127.0.0.1:{web.stdout.readline().strip()}/mcp"})
            assert home.call(f"{name}.bad").startswith("did good")
        (tmp_path / "changed").touch()
        assert home.call("silent.bad") == "did good"  # it is asked again after some minutes
        with pytest.raises(Denied, match="the tool 'bad' has changed"):
            home.call("announces.bad")
    finally:
        web.communicate()


# --- descriptors ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at /proc")
def test_server_inherits_no_files(home: GatewayApp, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine", "utf-8")
    opened = os.open(secret, os.O_RDONLY)
    high = os.dup2(opened, 300)  # above what a fixed range would close
    for descriptor in (opened, high):
        os.set_inheritable(descriptor, True)
    try:
        home.add("files", server_entry("files"))
        assert sorted(home.call("files.bad"), key=int) == ["0", "1", "2"]
    finally:
        os.close(opened)
        os.close(high)


def test_server_has_no_controlling_terminal(home: GatewayApp) -> None:
    home.add("terminal", server_entry("terminal"))
    told = home.call("terminal.bad")
    assert told["session"] != os.getsid(0)  # /dev/tty is the terminal of the session
    assert told["session"] != told["process"]  # only the first process of a session can get another terminal
    assert told["is_terminal"] is False
