// Draw the charts of the page of use; the tables beside them hold the same figures.
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT_PX = 210;
const formatDay = (at) => new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

function draw(area) {
  const { times, series } = JSON.parse(area.dataset.chart);
  const colours = [style("--accent"), style("--warn")];
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px Inter Variable, sans-serif" };
  const chart = new uPlot(
    {
      width: area.clientWidth, height: HEIGHT_PX, cursor: { y: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, values: (_, values) => values.map((at) => formatDay(at)) }, { ...axis, size: 64, values: (_, values) => values.map((value) => value.toLocaleString()) }],
      series: [
        { value: (_, at) => (at === null ? "" : formatDay(at)) },
        ...series.map(([label], at) => ({
          label, stroke: colours[at], fill: `${colours[at]}${times.length > 100 ? "22" : ""}`, width: 1.5, points: { show: false },
          paths: times.length > 100 ? undefined : uPlot.paths.bars({ size: [0.62, 26], radius: 0.25 }),
          value: (_, value) => value?.toLocaleString() ?? "",
        })),
      ],
    },
    [times, ...series.map(([, values]) => values)],
    area,
  );
  new ResizeObserver(() => chart.setSize({ width: area.clientWidth, height: HEIGHT_PX })).observe(area);
}

for (const area of document.querySelectorAll("[data-chart]")) draw(area);
