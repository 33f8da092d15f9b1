// Both graphs as SVG, and the one view onto them: they are panned and zoomed together.

const SIDES = ["before", "after"];
const line = d3.line((point) => point.x, (point) => point.y).curve(d3.curveBasis);
const panes = Object.fromEntries(SIDES.map((side) => {
  const svg = d3.select(`#${side} svg`);
  const markers = svg.append("defs").selectAll("marker").data(["whole", "slice", "partial"]).join("marker");
  markers.attr("id", (kind) => `${side}-${kind}`).attr("class", (kind) => kind).attr("viewBox", "0 0 8 8").attr("refX", 7).attr("refY", 4)
    .attr("markerWidth", 6).attr("markerHeight", 6).attr("orient", "auto-start-reverse").append("path").attr("d", "M0 0.6 8 4 0 7.4z");
  const view = svg.append("g").attr("class", "view");
  return [side, { svg, view, edges: view.append("g"), nodes: view.append("g") }];
}));

const zoom = d3.zoom().scaleExtent([0.05, 3]).on("zoom", ({ transform, sourceEvent }) => {
  for (const pane of Object.values(panes)) {
    pane.view.attr("transform", transform);
    pane.svg.node().__zoom = transform;
  }
  if (sourceEvent) state.moved = true;
});
for (const pane of Object.values(panes)) pane.svg.call(zoom).on("dblclick.zoom", null);

function draw() {
  const layout = layoutNow(), backward = state.phase === "backward";
  for (const side of SIDES) {
    const cards = [...layout.cards.values()].filter((card) => card[side]);
    drawEdges(panes[side].edges, layout, layout.edges.filter((edge) => edge[side]), side, backward);
    const nodes = panes[side].nodes.selectAll("g.node").data(cards, (card) => card.id).join("g");
    nodes.attr("class", (card) => nodeClass(card, side)).attr("data-id", (card) => card.id)
      .attr("transform", (card) => `translate(${card.x - card.width / 2},${card.y - card.height / 2})`)
      .on("click", (event, card) => { event.stopPropagation(); select(card.id); })
      .on("dblclick", (event, card) => { if (card.many) toggleBlock(card.last.block); })
      .each(function (card) { fill(d3.select(this), card, side); });
    panes[side].svg.on("click", () => select(null));
  }
  mark();
}

function nodeClass(card, side) {
  const local = side === "before" ? "whole" : card.state;
  const kinds = ["node", card.role, local, card.last.change];
  if (card.many) kinds.push("many");
  if (isCollective(card)) kinds.push(bytesNow(card.last) ? "awake" : kindNow(card.last) === "identity" ? "asleep" : "local");
  return kinds.join(" ");
}

function drawEdges(group, layout, edges, side, backward) {
  const kind = (edge) => {
    if (side === "before") return "whole";
    const step = layout.byName.get(edge.source);
    if (backward) return /part of the sum/.test(step.gradient) ? "partial" : step.state === "slice" ? "slice" : "whole";
    return step.state;
  };
  const joined = group.selectAll("g.edge").data(edges, (edge) => edge.key).join((enter) => enter.append("g").call((g) => g.append("path")));
  joined.attr("class", (edge) => `edge ${kind(edge)}`);
  joined.select("path").attr("d", (edge) => line(edge.points))
    .attr("marker-end", (edge) => (backward ? null : `url(#${side}-${kind(edge)})`))
    .attr("marker-start", (edge) => (backward ? `url(#${side}-${kind(edge)})` : null));
}

function fill(node, card, side) {
  node.selectAll("*").remove();
  if (isCollective(card)) return fillCollective(node, card);
  const value = card.last[side] || either(card.last);
  if (card.many) node.append("rect").attr("class", "under box").attr("x", 4).attr("y", 4).attr("rx", 8).attr("width", card.width).attr("height", card.height);
  node.append("rect").attr("class", "box").attr("rx", 8).attr("width", card.width).attr("height", card.height);
  node.append("rect").attr("class", "tab").attr("x", 7).attr("y", 8).attr("width", 3.5).attr("height", card.height - 16).attr("rx", 1.75);
  let y = 20;
  const row = (className, text) => { const made = node.append("text").attr("class", className).attr("x", 18).attr("y", y).text(text); y += 15.5; return made; };
  row(`name${side === "after" && card.last.change === "replaced" ? " fresh" : ""}`, cut("name", titleOf(card, side), card.width - 26));
  if (subtitleOf(card)) row("sub", cut("sub", subtitleOf(card), card.width - 26));
  if (value.shapes.length) shapeRow(row("shape", ""), card.last, side);
  for (const weight of card.weights.slice(0, 2)) shapeRow(row("weight", `${either(weight).name.split(".").pop()} `), weight, side);
  if (card.weights.length > 2) row("weight", `and ${card.weights.length - 2} more`);
  node.append("title").text(`${value.name}\n${card.last.why}`);
}

// A shape, the sizes that are smaller on a rank set off.
function shapeRow(text, step, side) {
  const value = step[side] || either(step), whole = step.before && step.before.shapes[0];
  if (value.shapes.length !== 1) { text.append("tspan").text(shapeText(value.shapes)); return; }
  value.shapes[0].forEach((size, i) => {
    if (i) text.append("tspan").text(" × ");
    text.append("tspan").attr("class", side === "after" && whole && whole[i] !== size ? "smaller" : null).text(size);
  });
  if (!value.shapes[0].length) text.append("tspan").text("scalar");
}

function fillCollective(node, card) {
  const bytes = bytesNow(card.last);
  node.append("rect").attr("class", "glow").attr("x", -6).attr("y", -6).attr("rx", 21).attr("width", card.width + 12).attr("height", card.height + 12);
  node.append("rect").attr("class", "box").attr("rx", 15).attr("width", card.width).attr("height", card.height);
  const text = node.append("text").attr("x", card.width / 2).attr("y", 19.5).attr("text-anchor", "middle");
  text.append("tspan").attr("class", "name").text(kindNow(card.last));
  text.append("tspan").attr("class", "sub").attr("dx", 8).text(bytesText(bytes));
  node.append("title").text(card.last.why);
}

function cut(kind, text, width) {
  if (widthOf(kind, text) <= width) return text;
  let end = text.length - 1;
  while (end > 3 && widthOf(kind, `${text.slice(0, end)}…`) > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

// What is selected, searched for, or has an axis.
function mark() {
  const layout = layoutNow(), hits = new Set(search.hits.map((hit) => layout.home.get(hit)));
  const inModule = (card) => [...card.steps, ...card.weights].some((step) => step.module === state.module || step.module.startsWith(`${state.module}.`));
  const wanted = state.axis ? (card) => card.axes.includes(state.axis) || card.weights.some((step) => step.axes.includes(state.axis))
    : state.module !== null ? inModule : search.hits.length ? (card) => hits.has(card.id) : null;
  for (const side of SIDES) {
    panes[side].nodes.selectAll("g.node").classed("selected", (card) => card.id === state.selected)
      .classed("hit", (card) => hits.has(card.id)).classed("dimmed", (card) => Boolean(wanted) && !wanted(card));
    panes[side].edges.selectAll("g.edge").classed("near", (edge) => state.selected !== null && [edge.from, edge.to].includes(state.selected))
      .classed("dimmed", (edge) => Boolean(wanted) && !(wanted(layout.cards.get(edge.from)) && wanted(layout.cards.get(edge.to))));
  }
}

function paneSize() {
  const box = panes.after.svg.node().getBoundingClientRect();
  return { width: Math.max(box.width, 1), height: Math.max(box.height, 1) };
}
function moveTo(transform, animate) {
  const svg = panes.after.svg;
  (animate ? svg.transition().duration(350) : svg).call(zoom.transform, transform);
}
function fit(animate = true) {
  const { width, height } = layoutNow(), size = paneSize();
  const scale = Math.min(1.1, size.width / width, (size.height - 50) / height);
  moveTo(d3.zoomIdentity.translate((size.width - width * scale) / 2, 6).scale(scale), animate);
}
// As wide as the pane, from the top: large enough to read.
function start() {
  const { width } = layoutNow(), size = paneSize();
  const scale = Math.max(0.48, Math.min(1, size.width / width));
  const centre = d3.median([...layoutNow().cards.values()].filter((card) => card.after), (card) => card.x) || width / 2;
  const x = width * scale <= size.width ? (size.width - width * scale) / 2 : Math.min(0, Math.max(size.width - width * scale, size.width / 2 - centre * scale));
  moveTo(d3.zoomIdentity.translate(x, 4).scale(scale), false);
}
function focus(id) {
  const card = layoutNow().cards.get(id), size = paneSize();
  if (!card) return;
  const scale = Math.max(d3.zoomTransform(panes.after.svg.node()).k, 0.75);
  moveTo(d3.zoomIdentity.translate(size.width / 2 - card.x * scale, size.height / 2 - card.y * scale).scale(scale), true);
}
