"""Fetch the files of others that the page serves, from npm, and write down versions, licences and checksums.

python scripts/vendor_page_files.py    needs npm; a package that is not the one of vendor.json is refused
"""

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src" / "athena" / "server" / "page" / "static" / "vendor"
RECORD = FOLDER / "vendor.json"
ICONS = [
    "activity",
    "archive-restore",
    "arrow-left",
    "arrow-right",
    "brain",
    "calendar",
    "check",
    "chevron-down",
    "chevron-right",
    "circle-alert",
    "circle-check",
    "clock",
    "code",
    "copy",
    "external-link",
    "file",
    "filter",
    "git-merge",
    "house",
    "inbox",
    "keyboard",
    "lightbulb",
    "link",
    "list-checks",
    "lock",
    "menu",
    "monitor",
    "moon",
    "network",
    "pencil",
    "play",
    "plug",
    "plus",
    "refresh-cw",
    "rotate-ccw",
    "route",
    "search",
    "settings",
    "shield-check",
    "sparkles",
    "square-check",
    "sun",
    "tag",
    "terminal",
    "trash-2",
    "triangle-alert",
    "undo-2",
    "user",
    "wand-sparkles",
    "workflow",
    "x",
]
# package, version, licence, files in the package
PACKAGES = (
    ("uplot", "1.6.32", "MIT", ("dist/uPlot.iife.min.js", "dist/uPlot.min.css")),
    ("sigma", "3.0.3", "MIT", ("dist/sigma.min.js",)),
    ("graphology", "0.26.0", "MIT", ("dist/graphology.umd.min.js",)),
    ("d3-force", "3.0.0", "ISC", ("dist/d3-force.min.js",)),
    ("d3-quadtree", "3.0.1", "ISC", ("dist/d3-quadtree.min.js",)),
    ("d3-dispatch", "3.0.1", "ISC", ("dist/d3-dispatch.min.js",)),
    ("d3-timer", "3.0.1", "ISC", ("dist/d3-timer.min.js",)),
    ("@fontsource-variable/inter", "5.3.0", "OFL-1.1", ("files/inter-latin-wght-normal.woff2",)),
    ("@fontsource-variable/jetbrains-mono", "5.3.0", "OFL-1.1", ("files/jetbrains-mono-latin-wght-normal.woff2",)),
    ("lucide-static", "1.62.0", "ISC", tuple(f"icons/{name}.svg" for name in ICONS)),
)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = {entry["package"]: entry for entry in json.loads(RECORD.read_text())} if RECORD.exists() else {}
    RECORD.write_text(json.dumps([fetch_package(*package, known) for package in PACKAGES], indent=1) + "\n")


def fetch_package(package: str, version: str, licence: str, paths: tuple[str, ...], known: Any) -> dict[str, Any]:
    """Write the files of one package; return its entry in vendor.json."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package}@{version}", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(folder).iterdir()
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        before = known.get(package, {})
        if before.get("version") == version and before["archive_sha256"] != digest:
            raise SystemExit(f"{package} {version} is not the package that vendor.json names")
        with tarfile.open(archive) as members:
            texts = {path: read_member(members, path) for path in paths}
            licences = [name for name in members.getnames() if re.fullmatch(r"package/LICENSE(\.txt|\.md)?", name)]
            texts["LICENSE"] = read_member(members, licences[0].removeprefix("package/"))
    name = package.rpartition("/")[2]
    if package == "lucide-static":
        files = {"icons.svg": build_sprite({Path(path).stem: texts[path] for path in paths})}
    else:
        files = {Path(path).name: texts[path] for path in paths}
    files[f"LICENSE.{name}"] = texts["LICENSE"]
    for file, data in files.items():
        (FOLDER / file).write_bytes(data)
    sums = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    return {"package": package, "version": version, "licence": licence, "archive_sha256": digest, "files": sums}


def read_member(archive: tarfile.TarFile, path: str) -> bytes:
    member = archive.extractfile(f"package/{path}")
    assert member is not None, path
    data = member.read()
    # a browser would ask for the map
    return re.sub(rb"\n?//# sourceMappingURL=\S+\s*$", b"\n", data) if path.endswith(".js") else data


def build_sprite(icons: dict[str, bytes]) -> bytes:
    """Join icons into one file with a symbol for each."""
    symbols = []
    for name, data in sorted(icons.items()):
        inner = re.search(r"<svg[^>]*>(.*)</svg>", data.decode(), re.DOTALL)
        assert inner is not None, name
        body = " ".join(inner[1].split()).replace("> <", "><")
        symbols.append(f'<symbol id="{name}" viewBox="0 0 24 24">{body}</symbol>')
    return ('<svg xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(symbols) + "\n</svg>\n").encode()


if __name__ == "__main__":
    main()
