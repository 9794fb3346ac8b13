"""Draw charts as SVG that are readable on white and on dark pages."""

from collections.abc import Mapping
from io import StringIO
from typing import Any

INK = "#7a8288"  # mid gray: enough contrast on white and on dark pages
COLOURS = ("#3d87d9", "#e0812f", "#2fa36b", "#b565c9", "#d65a5a", "#a58b2c", "#8a9299")


def draw_growth(times: Mapping[int, tuple[float, float, float]], bars: Mapping[int, float]) -> str:
    """Draw how search time grows with the store, beside one model pass."""
    figure, axes = _create_axes()
    sizes = list(times)
    model, middle, slow = ([moment * 1000 for moment in column] for column in zip(*times.values(), strict=True))
    axes.plot(sizes, slow, "--", color=COLOURS[1], marker="o", label="search, 95 % are faster")
    axes.plot(sizes, middle, color=COLOURS[1], marker="o", label="search, median")
    axes.plot(sizes, model, color=COLOURS[0], marker="o", label="one model pass, median")
    allowed = [(size, bar * times[size][0] * 1000) for size, bar in bars.items() if size in times]
    axes.plot(*zip(*allowed, strict=True), "v", color=COLOURS[4], label="bar: 4x and 8x the model pass", markersize=9)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("memories in the store")
    axes.set_ylabel("milliseconds")
    return _render_svg(figure, axes)


def draw_parts(times: Mapping[int, Mapping[str, float]]) -> str:
    """Draw the parts of search time at each store size."""
    figure, axes = _create_axes()
    places = range(len(times))
    below = [0.0] * len(times)
    for colour, name in zip(COLOURS, next(iter(times.values())), strict=False):
        heights = [max(0.0, split[name]) * 1000 for split in times.values()]
        axes.bar(places, heights, 0.6, below, color=colour, label=name)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_xticks(places, [f"{size:,}" for size in times])
    axes.set_xlabel("memories in the store")
    axes.set_ylabel("milliseconds a search, average")
    return _render_svg(figure, axes)


def _create_axes() -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "athena",
            "font.family": "sans-serif",
            "font.size": 11,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "text.color": INK,
        }
    )
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")


def _render_svg(figure: Any, axes: Any) -> str:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.25)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper left")
    image = StringIO()
    figure.savefig(image, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in image.getvalue().splitlines()) + "\n"
