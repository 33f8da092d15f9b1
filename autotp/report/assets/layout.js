// The layout is one for both sides, so that a node stands at the same place in both: that of both graphs laid over each other.

const PILL = 30;
const layouts = new Map();
const pencil = document.createElement("canvas").getContext("2d");
const FONTS = { name: "600 12.5px", sub: "11px", shape: "11px", weight: "10.5px" };

// The width of a text as it is drawn.
function widthOf(kind, text) {
  const family = getComputedStyle(document.documentElement).getPropertyValue(kind === "shape" || kind === "weight" ? "--mono" : "--sans");
  pencil.font = `${FONTS[kind]} ${family}`;
  return pencil.measureText(text).width;
}

function titleOf(card, side) {
  const value = side && card.last[side] ? card.last[side] : either(card.last);
  if (!card.many) return value.operator;
  const paths = [...new Set(card.steps.map((step) => step.module))];
  const own = card.steps.map((step) => step.before || step.after).map((value) => value.operator);
  const norm = paths.length === 1 && card.weights.some((step) => step.role === "parameter") ? paths[0].split(".").pop() : "";
  const module = card.steps.length > 12 && card.module ? `${card.module.split(".").pop()}: ` : "";
  return norm || module + [...new Set(own)].slice(0, 3).join(" · ") + (new Set(own).size > 3 ? " …" : "");
}
function subtitleOf(card) {
  if (card.many) return `${card.steps.length} steps${card.module && !card.weights.some((step) => step.role === "parameter") ? ` in ${card.module}` : ""}`;
  const name = either(card.last).name;
  if (["input", "output"].includes(card.role)) return card.role === "input" ? name : "";
  if (card.role === "parameter") return name;
  return card.module && !name.startsWith(card.module) ? card.module : name === card.module ? name : "";
}
function weightText(step, side) {
  const value = step[side] || either(step);
  return `${value.name.split(".").pop()} ${shapeText(value.shapes)}`;
}
function sizeOf(card) {
  if (isCollective(card)) return { width: pillWidth(card), height: PILL };
  const texts = ["before", "after"].flatMap((side) => [
    widthOf("name", titleOf(card, side)), widthOf("sub", subtitleOf(card)),
    widthOf("shape", shapeText((card.last[side] || either(card.last)).shapes)) + 4,
    ...card.weights.slice(0, 2).map((step) => widthOf("weight", weightText(step, side)) + 4),
  ]);
  const rows = 1 + (subtitleOf(card) ? 1 : 0) + (shapeText(either(card.last).shapes) ? 1 : 0) + Math.min(card.weights.length, 3);
  return { width: Math.min(280, Math.max(96, Math.max(...texts) + 32)), height: 14 + rows * 15.5 };
}

// Wide enough for what it does in either phase, so that a switch moves nothing.
function pillWidth(card) {
  const { transfer } = card.last;
  const texts = ["forward", "backward"].map((phase) => widthOf("name", transfer[phase]) + widthOf("sub", bytesText(transfer[`${phase}_bytes`])));
  return Math.max(150, Math.max(...texts) + 44);
}
const bytesText = (bytes) => (bytes ? byteSize(bytes) : "no bytes");

function layoutNow() {
  const key = [state.size, state.unit, state.detail, ...[...state.open].sort()].join("/");
  if (!layouts.has(key)) layouts.set(key, makeLayout());
  return layouts.get(key);
}

function makeLayout() {
  const { cards, home, byName } = makeCards();
  const edges = makeEdges(cards, home);
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 14, ranksep: 24, edgesep: 10, marginx: 20, marginy: 20, ranker: "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const card of cards.values()) graph.setNode(card.id, sizeOf(card));
  for (const edge of edges) if (!edge.through) graph.setEdge(edge.from, edge.to, { weight: edge.after ? 2 : 1 });
  const start = performance.now();
  dagre.layout(graph);
  const milliseconds = performance.now() - start;
  for (const card of cards.values()) Object.assign(card, graph.node(card.id));
  const points = new Map(edges.filter((edge) => !edge.through).map((edge) => [edge.key, graph.edge(edge.from, edge.to).points]));
  for (const edge of edges) edge.points = edge.through ? edge.through.flatMap((key) => points.get(key)) : points.get(edge.key);
  const [width, height] = ["width", "height"].map((size) => (cards.size ? graph.graph()[size] : 1));
  return { cards, home, byName, edges, width, height, milliseconds };
}
