// Draw the charts of the page of use; the tables beside them hold the same figures.
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT_PX = 190;
const MAX_BARS = 100;
const formatDay = (at) => new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const formatShort = (value) => Intl.NumberFormat(undefined, { notation: "compact" }).format(value);

function createLegend(area, labels, colours) {
  const legend = document.createElement("p");
  legend.className = "chart-legend";
  const entries = labels.map((label, at) => {
    const [entry, dot, value] = ["span", "i", "b"].map((name) => document.createElement(name));
    dot.className = "dot";
    dot.style.background = colours[at];
    entry.append(dot, ` ${label} `, value);
    return { entry, value };
  });
  const day = document.createElement("span");
  legend.append(...entries.map(({ entry }) => entry), day);
  area.after(legend);
  return (at, values) => {
    day.textContent = at === null ? "" : formatDay(at);
    entries.forEach(({ value }, index) => { value.textContent = values[index] ?? ""; });
  };
}

function draw(area) {
  const { times, series, stacked, lines, unit } = JSON.parse(area.dataset.chart);
  const colours = [style("--accent"), style("--chart-second")];
  const isLine = lines || times.length > MAX_BARS;
  const format = (value) => (value === null ? "" : unit ? `${value.toLocaleString(undefined, { maximumFractionDigits: 1 })} ${unit}` : value.toLocaleString());
  const columns = series.map(([, values]) => values);
  const drawn = stacked ? [columns[0].map((value, at) => value + columns[1][at]), columns[0]] : columns; // the sum lies behind
  const order = stacked ? [1, 0] : series.map((_, at) => at);
  const tell = createLegend(area, series.map(([label]) => label), colours);
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px Inter Variable, sans-serif" };
  const chart = new uPlot(
    {
      width: area.clientWidth, height: HEIGHT_PX, cursor: { y: false, points: { show: isLine } }, legend: { show: false },
      scales: { x: { time: true, range: (_, low, high) => [low - 43_200, high + 43_200] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.12)] } },
      axes: [
        { ...axis, size: 28, grid: { show: false }, values: (_, values) => values.map(formatDay) },
        { ...axis, size: 54, values: (_, values) => values.map((value) => `${formatShort(value)}${unit ? ` ${unit}` : ""}`) },
      ],
      series: [
        {},
        ...order.map((at) => ({
          stroke: colours[at], fill: isLine ? undefined : colours[at], width: isLine ? 2 : 0, spanGaps: true, points: { show: lines && times.length <= MAX_BARS, size: 5, fill: colours[at] },
          paths: isLine ? undefined : uPlot.paths.bars({ size: [0.6, 24], radius: 0.2 }),
        })),
      ],
      hooks: { setCursor: [({ cursor: { idx } }) => tell(idx === null || idx === undefined ? null : times[idx], idx === null || idx === undefined ? [] : columns.map((values) => format(values[idx])))] },
    },
    [times, ...drawn],
    area,
  );
  new ResizeObserver(() => chart.setSize({ width: area.clientWidth, height: HEIGHT_PX })).observe(area);
}

for (const area of document.querySelectorAll("[data-chart]")) draw(area);
