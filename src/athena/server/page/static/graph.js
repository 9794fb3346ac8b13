// Draw the graph: colours by type, find a name, choose a dot, show the way between two.
const area = document.querySelector("#graph");
const note = document.querySelector("#graph-note");
const COLOURS = ["#2f7d68", "#b4682b", "#4b6fb0", "#9a4f84", "#7d7b2f", "#b1483f", "#3c8aa0", "#6a5aa8", "#8a6d4f", "#5c7a4a"];
const OTHER_COLOUR = "#9a968c";
const MAX_LISTED_NAMES = 2_000;

const LARGE_COUNT = 2_000; // of names; then the picture is drawn with less detail

function readColours() {
  const styles = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "line", "line-strong", "accent"];
  return Object.fromEntries(names.map((name) => [name, styles.getPropertyValue(`--${name}`).trim()]));
}
const colours = readColours();

function countBy(items) {
  const counts = new Map();
  for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

// Let the page answer between two long steps.
const pause = () => new Promise((resolve) => setTimeout(resolve));

async function start() {
  note.textContent = "Loading";
  const reply = await fetch(area.dataset.source);
  if (!reply.ok) return void (note.textContent = "The graph could not be loaded.");
  const data = await reply.json();
  const types = countBy(data.nodes.map(([, type]) => type));
  const colourOf = new Map(types.slice(0, COLOURS.length).map(([type], at) => [type, COLOURS[at]]));
  const graph = new graphology.MultiDirectedGraph();
  const degrees = new Array(data.nodes.length).fill(0);
  for (const [source, target] of data.edges) { degrees[source] += 1; degrees[target] += 1; }
  data.nodes.forEach(([name, type], index) => {
    const angle = index * 2.39996;
    const radius = 10 * Math.sqrt(index);
    graph.addNode(String(index), {
      label: name.length > 60 ? `${name.slice(0, 59)}…` : name, kind: type, x: radius * Math.cos(angle), y: radius * Math.sin(angle),
      size: Math.min(20, (data.nodes.length > 3_000 ? 1 : data.nodes.length > 300 ? 3 : 7) + 1.8 * Math.sqrt(degrees[index])), color: colourOf.get(type) ?? OTHER_COLOUR,
    });
  });
  await pause();
  data.edges.forEach(([source, target, relation, since, until]) => {
    graph.addDirectedEdge(String(source), String(target), { label: relation, since, until, size: 1, color: colours["line-strong"] });
  });
  await pause();
  const indexOf = new Map(data.nodes.map(([name], index) => [name, String(index)]));
  const view = { hiddenTypes: new Set(), chosen: indexOf.get(area.dataset.chosen ?? "") ?? null, path: [], year: null };
  view.path = JSON.parse(area.dataset.path ?? "[]").map((name) => indexOf.get(name)).filter(Boolean);
  let renderer;
  try {
    renderer = draw(graph, view);
  } catch {
    return void (note.textContent = "This browser cannot draw the graph: it has no WebGL. The list has the same.");
  }
  await pause();
  fillNames(data.nodes);
  fillLegend(types, colourOf, view, renderer);
  fillYears(data.edges, view, renderer);
  renderer.on("clickNode", ({ node }) => choose(node, graph, view, renderer, data.nodes));
  renderer.on("clickStage", () => { view.chosen = null; renderer.refresh({ skipIndexation: true }); });
  document.querySelector("#graph-search").addEventListener("change", (event) => {
    const node = indexOf.get(event.target.value);
    if (node) choose(node, graph, view, renderer, data.nodes, true);
  });
  document.addEventListener("click", (event) => {
    const node = indexOf.get(event.target.closest("a[data-node]")?.dataset.node ?? "");
    if (node) { event.preventDefault(); choose(node, graph, view, renderer, data.nodes, true); }
  });
  layOut(graph, data, renderer, view);
}

function draw(graph, view) {
  const isVisible = (node) => !view.hiddenTypes.has(graph.getNodeAttribute(node, "kind"));
  const holds = (edge) => view.year === null || ((edge.since === null || edge.since === undefined || edge.since < view.year.end)
    && (edge.until === null || edge.until === undefined || edge.until >= view.year.start));
  const nearChosen = (node) => view.chosen === null || node === view.chosen || graph.areNeighbors(node, view.chosen);
  // one point and one line each: without a graphics card, drawing shapes takes twenty times as long
  const plain = { nodeProgramClasses: { circle: Sigma.rendering.NodePointProgram }, edgeProgramClasses: { line: Sigma.rendering.EdgeLineProgram } };
  return new Sigma(graph, area, {
    ...(graph.order >= LARGE_COUNT ? plain : {}),
    labelFont: "Inter Variable, system-ui, sans-serif", labelSize: 12, labelWeight: "500", labelDensity: graph.order > 60 ? 0.7 : 2, labelRenderedSizeThreshold: graph.order > 60 ? 7 : 0,
    labelColor: { color: colours.ink }, defaultEdgeColor: colours["line-strong"], edgeLabelColor: { color: colours.muted },
    renderEdgeLabels: graph.order < LARGE_COUNT, hideEdgesOnMove: graph.order >= LARGE_COUNT, edgeLabelSize: 11, edgeLabelFont: "Inter Variable, system-ui, sans-serif", zIndex: true, minCameraRatio: 0.02, maxCameraRatio: 4, stagePadding: graph.order > 60 ? 40 : 80,
    nodeReducer: (node, attributes) => {
      if (!isVisible(node)) return { ...attributes, hidden: true };
      const isOnPath = view.path.includes(node);
      const isLit = view.path.length ? isOnPath : nearChosen(node);
      const faded = { ...attributes, color: colours.line, label: "", zIndex: 0 };
      return isLit ? { ...attributes, zIndex: 1, forceLabel: view.chosen !== null || isOnPath } : faded;
    },
    edgeReducer: (edge, attributes) => {
      const [source, target] = graph.extremities(edge);
      if (!isVisible(source) || !isVisible(target) || !holds(attributes)) return { ...attributes, hidden: true };
      if (view.path.length) {
        const at = view.path.indexOf(source);
        const isStep = at >= 0 && (view.path[at + 1] === target || view.path[at - 1] === target);
        return isStep ? { ...attributes, color: colours.accent, size: 3, zIndex: 2 } : { ...attributes, color: colours.line, label: "" };
      }
      if (view.chosen === null) return { ...attributes, label: "" };
      const isNear = source === view.chosen || target === view.chosen;
      if (isNear) return { ...attributes, color: colours.accent, size: 2, zIndex: 2 };
      return { ...attributes, color: colours.line, label: "", hidden: graph.size > 400 };
    },
  });
}

function layOut(graph, data, renderer, view) {
  const worker = new Worker(area.dataset.layout);
  area.dataset.names = String(graph.order);
  worker.onmessage = ({ data: { positions, isDone } }) => {
    graph.updateEachNodeAttributes((node, attributes) => {
      attributes.x = positions[2 * node];
      attributes.y = positions[2 * node + 1];
      return attributes;
    }, { attributes: ["x", "y"] }); // the renderer hears of it, and draws soon
    note.textContent = isDone ? "" : "Arranging";
    if (!isDone) return;
    worker.terminate();
    renderer.once("afterRender", () => {
      area.dataset.ready = "1";
      if (view.chosen !== null && graph.order > 60) lookAt(view.chosen, renderer);
    });
  };
  worker.postMessage({ count: data.nodes.length, edges: data.edges.map(([source, target]) => [source, target]) });
}

function lookAt(node, renderer) {
  const shown = renderer.getNodeDisplayData(node);
  if (shown) renderer.getCamera().animate({ x: shown.x, y: shown.y, ratio: 0.5 }, { duration: 300 });
}

async function choose(node, graph, view, renderer, nodes, isFar = false) {
  view.chosen = node;
  view.path = [];
  renderer.refresh({ skipIndexation: true });
  if (isFar && graph.order > 60) lookAt(node, renderer);
  const name = nodes[Number(node)][0];
  const page = new URL(location.href);
  for (const key of ["source", "target"]) page.searchParams.delete(key);
  page.searchParams.set("name", name);
  history.replaceState(null, "", page);
  const address = new URL(area.dataset.entitySource, location.href);
  address.searchParams.set("name", name);
  const reply = await fetch(address, { headers: { "x-athena-part": "1" } });
  document.querySelector("#entity").innerHTML = await reply.text();
}

function fillNames(nodes) {
  const list = document.querySelector("#graph-names");
  list.append(...nodes.slice(0, MAX_LISTED_NAMES).map(([name]) => Object.assign(document.createElement("option"), { value: name })));
}

function fillLegend(types, colourOf, view, renderer) {
  const legend = document.querySelector("#graph-legend");
  for (const [type, count] of types.slice(0, COLOURS.length)) {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    const dot = document.createElement("i");
    dot.className = "dot";
    dot.style.background = colourOf.get(type) ?? OTHER_COLOUR;
    label.append(box, dot, `${(type || "not described").slice(0, 40)} ${count.toLocaleString()}`);
    box.addEventListener("change", () => {
      view.hiddenTypes[box.checked ? "delete" : "add"](type);
      renderer.refresh({ skipIndexation: true });
    });
    legend.append(label);
  }
}

function fillYears(edges, view, renderer) {
  const years = edges.flatMap(([, , , since, until]) => [since, until]).filter(Number.isFinite).map((at) => new Date(at * 1000).getFullYear());
  if (!years.length) return;
  const select = document.querySelector("#graph-time");
  select.hidden = false;
  for (let year = Math.max(...years, new Date().getFullYear()); year >= Math.min(...years); year -= 1) {
    select.append(new Option(`In ${year}`, year));
  }
  select.addEventListener("change", () => {
    const year = Number(select.value);
    view.year = year ? { start: new Date(year, 0, 1) / 1000, end: new Date(year + 1, 0, 1) / 1000 } : null;
    renderer.refresh({ skipIndexation: true });
  });
}

start();
