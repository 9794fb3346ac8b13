// Lay the graph out away from the page, so that it never freezes. Positions go back in slices.
importScripts("vendor/d3-dispatch.min.js");
importScripts("vendor/d3-quadtree.min.js");
importScripts("vendor/d3-timer.min.js");
importScripts("vendor/d3-force.min.js");

const MAX_MS = 12_000;

onmessage = (event) => {
  const { count, edges } = event.data;
  const nodes = Array.from({ length: count }, (_, index) => ({ index }));
  const links = edges.map(([source, target]) => ({ source, target }));
  const simulation = d3
    .forceSimulation(nodes)
    .force("link", d3.forceLink(links).distance(26).strength(0.35))
    .force("charge", d3.forceManyBody().strength(count > 3_000 ? -14 : -42).theta(count > 3_000 ? 1.3 : 0.9).distanceMax(900))
    .force("x", d3.forceX().strength(0.035))
    .force("y", d3.forceY().strength(0.045))
    .alphaDecay(count > 3_000 ? 0.05 : 0.025)
    .stop();
  const began = performance.now();
  const sliceMs = count > 2_000 ? 1_500 : 120; // drawing a large graph takes long, too
  let isDone = false;
  while (!isDone) {
    const sliceEnd = performance.now() + sliceMs;
    do {
      simulation.tick();
      isDone = simulation.alpha() < 0.004 || performance.now() - began > MAX_MS;
    } while (!isDone && performance.now() < sliceEnd);
    const positions = new Float32Array(count * 2);
    for (let i = 0; i < count; i += 1) {
      positions[2 * i] = nodes[i].x;
      positions[2 * i + 1] = nodes[i].y;
    }
    postMessage({ positions, isDone }, [positions.buffer]);
  }
};
