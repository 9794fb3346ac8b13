"""Settings that nobody reads are reported, and a data folder that others can write is refused."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from athena.app import settings as configuration
from athena.core.home.paths import find_home_problem
from athena.errors import Misconfigured
from daemon_tools import Home

pytestmark = pytest.mark.sqlite_only("settings")


def run_athena(home: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "athena", *argv]
    env = Home(home).environ(**environ)
    return subprocess.run(command, env=env, input="{}", capture_output=True, text=True, timeout=100)


def test_unknown_variables_are_named_with_the_nearest_setting() -> None:
    environ = {"ATHENA_HOSTT": "x", "ATHENA_SECRECY": "strict", "ATHENA_HOOK_OFF": "*", "ATHENA_HOST": "::1", "A": "b"}
    first, second, third = configuration.list_unknown_variables(environ)
    assert "ATHENA_HOOK_OFF sets nothing" in first
    assert "did you mean ATHENA_HOOKS_OFF?" in first
    assert "did you mean ATHENA_HOST?" in second
    assert "ATHENA_SECRECY sets nothing: there is no such setting" in third
    assert "did you mean" not in third
    documented = {f"ATHENA_{key.upper().replace('.', '_')}": "1" for key in configuration.SETTING_KEYS}
    assert configuration.list_unknown_variables(documented | {"ATHENA_HOME": "x", "ATHENA_TOKEN": "x"}) == []


def test_unknown_variable_is_reported_once_on_stderr_and_never_to_programs(tmp_path: Path) -> None:
    done = run_athena(tmp_path, "list", "--json", ATHENA_SECRECY="strict", **{"ATHENA_\x1b[2J": "x"})
    assert done.returncode == 0
    assert done.stderr.count("ATHENA_SECRECY") == 1
    assert "\x1b" not in done.stderr
    assert "SECRECY" not in done.stdout
    hook = run_athena(tmp_path, "hook", "no-such-event", ATHENA_SECRECY="strict")
    assert (hook.stdout, hook.stderr) == ("", "")


def test_unknown_key_of_the_file_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[hooks]\nbudget_token = 100\n")
    with pytest.raises(Misconfigured, match=r"there is no setting 'hooks\.budget_token'") as caught:
        configuration.load_settings({"ATHENA_HOME": str(tmp_path)})
    assert caught.value.hint == "did you mean hooks.budget_tokens?"


WRONG_VALUES = {
    "port": "http", "auth": "maybe", "consolidate": "fast", "ranking.role": "much", "ranking.recency": "2",
    "sandbox.bare": "yes please", "hooks.enabled": "1", "hooks.timeout_ms": "fast", "hooks.fallback_to_mcp": "nay",
    "hooks.mcp_url": "ftp://x", "hooks.mcp_token": "a b",
    "hooks.python_path": "python", "hooks.enable_metrics": "?", "hooks.budget_tokens": "-1",
    "hooks.off": "start", "hooks.projects": "x", "daemon.idle_minutes": "long", "database_url": "mysql://x",
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG_VALUES)
def test_value_that_is_not_allowed_is_an_error(tmp_path: Path, key: str) -> None:
    variable = f"ATHENA_{key.upper().replace('.', '_')}"
    with pytest.raises(Misconfigured):
        configuration.load_settings({"ATHENA_HOME": str(tmp_path), variable: WRONG_VALUES[key]})


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o702, 0o1777])
def test_home_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Somebody else could put a config.toml there that names the program to run."""
    home = tmp_path / "my home"
    home.mkdir()
    home.chmod(mode)
    with pytest.raises(Misconfigured, match="others can write to the data folder") as caught:
        configuration.load_settings({"ATHENA_HOME": str(home)})
    command = caught.value.hint.partition(",")[0] if caught.value.hint else ""
    assert command.startswith("chmod go-w ")
    subprocess.run(command, shell=True, check=True, timeout=10)
    assert configuration.load_settings({"ATHENA_HOME": str(home)}).home == str(home)


def test_setting_below_a_section_is_sent_above_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[daemon]\nauto = true\nprivacy = "strict"\n')
    with pytest.raises(Misconfigured, match=r"there is no setting 'daemon\.privacy'") as caught:
        configuration.load_settings({"ATHENA_HOME": str(tmp_path)})
    assert caught.value.hint == "'privacy' belongs above the first [section]"


def test_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, match="ATHENA_HOME is a file, not a folder"):
        configuration.load_settings({"ATHENA_HOME": str(tmp_path / "file")})


def test_home_of_a_group_is_refused_unless_it_is_the_users_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    is_own_group = tmp_path.stat().st_gid == os.getegid() == os.geteuid()
    assert (find_home_problem(str(tmp_path)) is None) == is_own_group
    if not os.geteuid():
        os.chown(tmp_path, 0, 100)
        assert find_home_problem(str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_home_of_another_user_is_refused_except_for_root() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # other users must be able to reach it
        os.chown(home, 12_345, 12_345)
        assert find_home_problem(home) is None  # a volume of a container
        child = os.fork()
        if not child:
            os.seteuid(4_321)
            problem = find_home_problem(home)
            os._exit(0 if problem and "belongs to another user" in problem[0] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_doctor_says_what_is_wrong_with_the_home(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = run_athena(tmp_path, "doctor", ATHENA_SECRECY="strict")
    assert done.returncode != 0
    assert (
        f"FAIL home       others can write to the data folder {tmp_path} (its mode is 0777): chmod go-w" in done.stdout
    )
    tmp_path.chmod(0o755)
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "config.toml").chmod(0o644)
    done = run_athena(tmp_path, "doctor", ATHENA_SECRECY="strict")
    assert f"FAIL home       others can read {tmp_path}/config.toml: chmod -R go= {tmp_path}" in done.stdout
    assert "FAIL config     the variable ATHENA_SECRECY sets nothing" in done.stdout
    assert done.stderr == ""
    assert stat.S_IMODE((tmp_path / "athena.db").stat().st_mode) == 0o600
    tmp_path.chmod(0o700)
    done = run_athena(tmp_path, "doctor")
    assert f"ok   home       {tmp_path}" in done.stdout


def test_privacy_settings_are_checked(tmp_path: Path) -> None:
    home = {"ATHENA_HOME": str(tmp_path)}
    for mode in ("off", "boundary", "strict"):
        assert configuration.load_settings(home | {"ATHENA_PRIVACY": mode}).privacy == mode
    for wrong in ("Strict", "on", "1", " strict"):
        with pytest.raises(Misconfigured, match="privacy must be one of off, boundary, strict"):
            configuration.load_settings(home | {"ATHENA_PRIVACY": wrong})
    done = run_athena(tmp_path, "list", ATHENA_PRIVACY="everything")
    assert done.returncode == Misconfigured.exit
    assert "privacy must be one of" in done.stderr
    (tmp_path / "config.toml").write_text(
        'privacy = "strict"\n[personal]\nnames = ["Ada Lovelace"]\n[personal.patterns]\nCUSTOMER = "C-[0-9]{6}"\n'
    )
    settings = configuration.load_settings(home)
    assert (settings.privacy, settings.personal_names) == ("strict", ("Ada Lovelace",))
    assert settings.personal_patterns == {"CUSTOMER": "C-[0-9]{6}"}
    for patterns in ('{"customer": "x"}', '{"A_1": "x"}', '{"OK": "("}', "[1]"):
        with pytest.raises(Misconfigured, match=r"personal\.patterns"):
            configuration.load_settings(home | {"ATHENA_PERSONAL_PATTERNS": patterns})
