"""Draw docs/images/layers.svg from the import graph: a row for each layer, a box for each package, arcs for imports.

python scripts/draw_layers.py
"""

import tomllib
from collections import Counter
from pathlib import Path

import grimp
import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "athena"  # the same picture for the same graph
mpl.rcParams["svg.fonttype"] = "none"  # text stays text
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "athena"
PICTURE = ROOT / "docs" / "images" / "layers.svg"
ABOUT = {
    "__main__": "python -m athena",
    "cli": "commands, set-up of clients",
    "server": "HTTP, MCP, start and stop",
    "api": "the Python functions",
    "testing": "isolated()",
    "fallback": "entry of hook clients",
    "hooks": "session hooks",
    "app": "settings, composition",
    "operations": "the table of contents: one declaration an operation",
    "discovery": "find tools",
    "programs": "runs, skills, workspaces, sandbox",
    "memory": "write, recall, graph, sessions, time, consolidation",
    "storage": "SQLite, PostgreSQL",
    "embedding": "the model",
    "gateway": "other MCP servers",
    "client": "AthenaClient",
    "core": "operation, types, text, threads, files, data folder",
    "errors": "one tree of errors",
}
WIDTH, FLOOR = 10.0, 0.62


def read_layers() -> list[list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return [[name.strip() for name in layer.split("|")] for layer in contracts[0]["layers"]]


def count_lines(package: str) -> int:
    folder = SOURCE / package
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{package}.py"]
    return sum(file.read_text("utf-8").count("\n") for file in files)


def count_imports(layers: list[list[str]]) -> Counter[tuple[int, int]]:
    """Count the imports between floors."""
    floor_of = {package: number for number, layer in enumerate(layers) for package in layer}
    graph = grimp.build_graph("athena")
    counts: Counter[tuple[int, int]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = [name.split(".")[1] for name in (module, imported) if "." in name]
            if len(ends) == 2 and floor_of[ends[0]] != floor_of[ends[1]]:
                counts[floor_of[ends[0]], floor_of[ends[1]]] += 1
    return counts


def draw() -> None:
    layers = read_layers()
    figure, axes = plt.subplots(figsize=(11, 0.62 * len(layers) + 0.6))
    for number, layer in enumerate(layers):
        height = -number
        total = sum(count_lines(package) for package in layer)
        left = 0.0
        for package in layer:
            lines = count_lines(package)
            width = WIDTH * (0.6 / len(layer) + 0.4 * lines / total) - 0.08
            axes.add_patch(
                FancyBboxPatch(
                    (left, height - FLOOR / 2),
                    width,
                    FLOOR,
                    boxstyle="round,pad=0.01,rounding_size=0.06",
                    facecolor=plt.get_cmap("Blues")(0.12 + 0.5 * min(lines, 9_000) / 9_000),
                    edgecolor="#33507a",
                    linewidth=0.8,
                )
            )
            title = f"{package}  " if len(layer) < 3 else package
            axes.text(left + 0.12, height + 0.1, title, fontsize=10, weight="bold", va="center")
            if width > 2.2:
                axes.text(
                    left + 0.12, height - 0.15, ABOUT.get(package, ""), fontsize=7.5, va="center", color="#333333"
                )
            if width > 1.4:
                size = f"{lines:,}"
                axes.text(left + width - 0.1, height + 0.1, size, fontsize=7, ha="right", va="center", color="#555555")
            left += width + 0.08
    for (upper, lower), count in count_imports(layers).items():
        reach = WIDTH + 0.15 + 0.28 * abs(lower - upper)
        curve = Curve(
            [(WIDTH, -upper), (reach, -upper), (reach, -lower), (WIDTH, -lower)],
            [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
        )
        wrong = lower < upper
        axes.add_patch(
            PathPatch(
                curve,
                facecolor="none",
                edgecolor="#c0392b" if wrong else "#5f7fa8",
                alpha=0.55,
                linewidth=0.4 + min(count, 120) / 30,
            )
        )
    axes.set_xlim(-0.1, WIDTH + 3.0)
    axes.set_ylim(-len(layers) + 0.4, 0.6)
    axes.axis("off")
    figure.savefig(PICTURE, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw()
