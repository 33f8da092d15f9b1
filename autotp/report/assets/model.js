// What is shown: cards and edges, made from the steps of one unit. A card is a step, or a block of steps folded into one.

const GIVEN = JSON.parse(document.getElementById("data").textContent);
const DATA = [...GIVEN].sort((one, other) => one.plan.tp - other.plan.tp);
const AXIS_COLOURS = ["#2563eb", "#7c3aed", "#0d9488", "#c2410c", "#4d7c0f", "#be185d", "#0369a1", "#a16207"];

const state = { size: DATA.indexOf(GIVEN[0]), unit: 0, phase: "forward", detail: "outline", open: new Set(), selected: null, axis: null, module: null };

const diff = () => DATA[state.size];
const NOTHING = {
  title: "nothing to show", module: "", unchanged: "no unit of the model could be traced; autotp plan says why", instances: [],
  steps: [], axes: [], layers: [], parameters: [], collectives: [], not_cut: [],
};
const unit = () => diff().units[state.unit] || NOTHING;
const axisColour = (letter) => AXIS_COLOURS[Math.max(0, unit().axes.findIndex((axis) => axis.name === letter)) % AXIS_COLOURS.length];

function byteSize(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024) return `${Number(bytes.toPrecision(4))} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(1)} TiB`;
}
function duration(seconds) {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(1)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toFixed(2)} ms` : `${seconds.toFixed(2)} s`;
}
function count(number) {
  for (const [limit, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (number >= limit) return `${(number / limit).toPrecision(3)}${letter}`;
  }
  return String(number);
}
const shapeText = (shapes) => {
  const texts = [...new Set(shapes.map((shape) => shape.join(" × ") || "scalar"))];
  return shapes.length > 1 ? `${shapes.length} of ${texts.join(" or ")}` : (texts[0] || "");
};
const either = (step) => step.after || step.before;
const isCollective = (card) => card.role === "collective";
const bytesNow = (step) => (step.transfer ? step.transfer[`${state.phase}_bytes`] : 0);
const kindNow = (step) => step.transfer[state.phase];

// Parameters, and inputs without a gradient, that exactly one step reads are shown on the card of that step.
function foldedSteps(steps) {
  const readers = new Map(), roles = new Map(steps.map((step) => [step.name, step.role]));
  for (const step of steps) {
    for (const side of [step.before, step.after]) {
      for (const source of side ? side.inputs : []) {
        if (!readers.has(source)) readers.set(source, new Set());
        readers.get(source).add(step.name);
      }
    }
  }
  const folded = new Map(), unread = new Set();
  for (const step of steps) {
    const [reader, ...others] = readers.get(step.name) || [];
    const folds = ["parameter", "constant"].includes(step.role) || (step.role === "input" && step.gradient === "none" && steps.length > 12);
    if (folds && reader && !others.length && roles.get(reader) !== "collective") folded.set(step.name, reader);
    if (step.role === "input" && !reader && state.detail === "outline") unread.add(step.name);
  }
  return { folded, unread };
}

function makeCards() {
  const steps = unit().steps, { folded, unread } = foldedSteps(steps), byName = new Map(steps.map((step) => [step.name, step]));
  const members = d3.group(steps.filter((step) => !folded.has(step.name) && !unread.has(step.name)), (step) => step.block);
  const cards = new Map(), home = new Map();
  for (const step of steps) {
    if (folded.has(step.name) || unread.has(step.name)) continue;
    const block = members.get(step.block);
    const joined = block.length > 1 && state.detail === "outline" && !state.open.has(step.block);
    const id = joined ? `block ${step.block}` : step.name;
    if (!cards.has(id)) cards.set(id, makeCard(id, joined ? block : [step]));
    home.set(step.name, id);
  }
  for (const [name, reader] of folded) {
    home.set(name, home.get(reader));
    cards.get(home.get(reader)).weights.push(byName.get(name));
  }
  return { cards, home, byName };
}

function makeCard(id, steps) {
  const last = steps[steps.length - 1];
  return {
    id, steps, weights: [], last, many: steps.length > 1, role: last.role, state: last.state, axes: [...new Set(steps.flatMap((step) => step.axes))],
    before: steps.some((step) => step.before), after: steps.some((step) => step.after), module: last.module,
  };
}

// Edges of both sides. One that only the graph before has leads through what was inserted in its place after.
function makeEdges(cards, home) {
  const edges = new Map();
  for (const step of unit().steps) {
    for (const side of ["before", "after"]) {
      for (const source of step[side] ? step[side].inputs : []) {
        const from = home.get(source), to = home.get(step.name);
        if (from === to || from === undefined) continue;
        const key = `${from} → ${to}`;
        if (!edges.has(key)) edges.set(key, { key, from, to, before: false, after: false, source: null, through: null });
        const edge = edges.get(key);
        edge[side] = true;
        if (side === "after" || !edge.source) edge.source = source;
      }
    }
  }
  const into = d3.group([...edges.values()].filter((edge) => edge.after), (edge) => edge.to);
  for (const edge of edges.values()) if (edge.before && !edge.after) edge.through = insertedBetween(edge, into, cards);
  return [...edges.values()];
}

function insertedBetween(edge, into, cards) {
  let place = edge.to;
  const path = [];
  for (let steps = 0; steps < 6; steps += 1) {
    const ways = (into.get(place) || []).filter((way) => way.from === edge.from || cards.get(way.from).last.change === "inserted");
    const straight = ways.find((way) => way.from === edge.from);
    const way = straight || ways.find((way) => leadsTo(way.from, edge.from, into, cards));
    if (!way) return null;
    path.unshift(way.key);
    if (straight) return path.length > 1 ? path : null;
    place = way.from;
  }
  return null;
}
function leadsTo(place, goal, into, cards, depth = 6) {
  if (place === goal) return true;
  if (!depth || cards.get(place).last.change !== "inserted") return false;
  return (into.get(place) || []).some((way) => leadsTo(way.from, goal, into, cards, depth - 1));
}
