"""Real servers for tests, each in its own process, started in a few milliseconds.

A helper process imports the server once and forks for each data folder; loading everything anew would take a second.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from athena.core.home import lock
from tool_vectors import give_tool_vectors
from wait_tools import wait_until

VARIABLES = ("ATHENA_", "XDG_", "HOME", "TZ", "PATH", "LANG", "LC_ALL", "TMPDIR")


class ServerForge:
    """Starts servers; all of them end with it."""

    def __init__(self) -> None:
        environ = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)

    def start(self, home: Path, *, is_first: bool = False) -> int:
        """Serve a data folder with the environment of now; return the process id once it accepts connections."""
        if not is_first:  # in this data folder: the first server computes the vectors of all operations
            give_tool_vectors(home)
        environ = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"home": str(home), "environ": environ}).encode() + b"\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        wait_until(lambda: (info := lock.find_server(str(home))) is not None and info["pid"] == pid)
        return pid

    def stop(self, pid: int) -> None:
        """Kill a server at once."""
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(100)
        self._process.stdout.close()


def main() -> None:
    """Fork a server for each line of standard input."""
    import numpy  # noqa: F401  # before the fork, once for all

    from athena.app import settings
    from athena.core.home.paths import DEFAULT_PROJECT
    from athena.server.serve import open_server

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the servers
    children: list[int] = []
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if pid := os.fork():
            children.append(pid)
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        os.environ.clear()
        os.environ.update(order["environ"])
        os.makedirs(order["home"], mode=0o700, exist_ok=True)
        os.chdir(order["home"])
        server = open_server(settings.load_settings(), order["home"], DEFAULT_PROJECT, "127.0.0.1", 0, auth=True)
        server.run()
        os._exit(0)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
