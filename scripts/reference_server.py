"""The reference memory server as a process, spoken to over its standard input and output."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The server answered with an error."""


class Reference:
    """One server; its file may be emptied between two tests, since it reads it anew at every call."""

    def __init__(self, command: list[str], file: Path) -> None:
        self.file = file
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"MEMORY_FILE_PATH": str(file)},
        )
        self._number = 0
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "athena", "version": "1"}}
        self.ask("initialize", about)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def empty(self) -> None:
        self.file.unlink(missing_ok=True)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and return what its text says."""
        answer = self.ask("tools/call", {"name": name, "arguments": arguments})
        if "error" in answer:
            raise Refused(answer["error"]["message"])
        result = answer["result"]
        text = result["content"][0]["text"]
        if result.get("isError"):
            raise Refused(text)
        return result["structuredContent"] if name.startswith("delete") else json.loads(text)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": parameters})
        assert self._process.stdout is not None
        while True:
            answer = json.loads(self._process.stdout.readline())
            if answer.get("id") == self._number:
                return answer

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
