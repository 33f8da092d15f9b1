// The details of what is selected, or of the unit where nothing is.

const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const safe = (text) => String(text).replace(/[&<>"]/g, (letter) => escapes[letter]);
const STATES = { whole: "whole on every rank", slice: "a slice on every rank", partial: "a partial sum on every rank" };
const CHANGES = { same: "unchanged", shape: "smaller on a rank", replaced: "replaced", inserted: "inserted", removed: "removed" };
const ROLES = { column: "column-parallel", row: "row-parallel", vocabulary: "vocabulary-parallel", expert: "expert-parallel" };

function showPanel() {
  const layout = layoutNow(), card = state.selected === null ? null : layout.cards.get(state.selected);
  const panel = document.getElementById("panel");
  panel.innerHTML = card ? (card.many ? blockPanel(card) : stepPanel(card.last, card, layout)) : unitPanel();
  panel.dataset.shows = card ? card.id : "";
  panel.classList.toggle("idle", !card);
  panel.scrollTop = 0;
  for (const link of panel.querySelectorAll("[data-step]")) link.onclick = () => goTo(link.dataset.step);
  for (const axis of panel.querySelectorAll("[data-axis]")) axis.onclick = () => followAxis(axis.dataset.axis);
  const open = panel.querySelector(".open");
  if (open) open.onclick = () => toggleBlock(Number(open.dataset.block));
  const close = panel.querySelector(".close");
  if (close) close.onclick = () => select(null);
}

const close = `<button class="close" title="close (Esc)" aria-label="close">×</button>`;
const shapesHtml = (step, side) => {
  const value = step[side];
  if (!value || !value.shapes.length) return "";
  if (value.shapes.length > 1 || !step.before) return safe(shapeText(value.shapes));
  return value.shapes[0].map((size, i) => (side === "after" && step.before.shapes[0] && step.before.shapes[0][i] !== size ? `<span class="smaller">${safe(size)}</span>` : safe(size))).join(" × ") || "scalar";
};

function stepPanel(step, card, layout) {
  const value = either(step);
  const chips = [
    ROLES[step.role] ? `<span class="chip ${step.role}">${ROLES[step.role]}</span>` : step.role === "collective" ? `<span class="chip collective">inserted</span>` : `<span class="chip">${safe(step.role)}</span>`,
    step.role === "collective" ? "" : `<span class="chip">${CHANGES[step.change]}</span>`,
    `<span class="chip ${step.state}">${STATES[step.state]}</span>`,
  ];
  const subtitle = value.name !== value.operator ? value.name : step.module;
  return `${close}<div class="title">${safe(step.transfer ? mainKind(step) : value.operator)}</div><div class="sub">${safe(subtitle)}</div>
    <div class="chips">${chips.join("")}</div>
    ${step.transfer ? transferHtml(step.transfer) : ""}
    <div class="why ${step.role === "collective" ? "collective" : ""}"><b>${safe(step.by)}</b><p>${sentence(step.why)}</p></div>
    <dl class="sides">
      ${sideHtml("before", step)}${sideHtml("after", step)}
      <dt>gradient</dt><dd>${safe(step.gradient)}</dd>
    </dl>
    ${step.dims.length ? `<h3>Dimensions: whole, on a rank, and what they are made of</h3>${step.dims.map(dimHtml).join("")}` : ""}
    ${card.weights.length && card.last === step ? `<h3>Parameters</h3>${card.weights.map(weightHtml).join("")}` : ""}
    ${state.open.has(step.block) ? `<button class="open" data-block="${step.block}">fold these steps again</button>` : ""}
    ${linksHtml("Reads", readsOf(step, layout))}${linksHtml("Read by", readersOf(step))}`;
}
const mainKind = (step) => (step.transfer.forward === "identity" ? step.transfer.backward : step.transfer.forward);
const sentence = (text) => safe(text) + (text.endsWith(".") ? "" : ".");

function sideHtml(side, step) {
  const value = step[side], words = side === "before" ? "whole" : "on a rank";
  if (!value) return `<dt>${words}</dt><dd>${side === "before" ? "not there" : "gone"}</dd>`;
  return `<dt>${words}</dt><dd>${safe(value.operator)}<br><span class="mono">${shapesHtml(step, side)}</span>${value.arguments ? `<br><span class="mono">${safe(value.arguments)}</span>` : ""}</dd>`;
}
function dimHtml(dim) {
  const local = dim.local && dim.local !== dim.whole ? ` → <span class="smaller">${safe(dim.local)}</span>` : "";
  return `<div class="dim"><span class="term">${termHtml(dim.term)}</span><span class="sizes">${safe(dim.whole)}${local}</span><div class="words">${safe(dim.words)}</div></div>`;
}
const termHtml = (term) => safe(term).replace(/\b([A-Z]\d*):(\d+)/g, (_, letter, size) => `<b style="color:${axisColour(letter)}">${letter}:${size}</b>`);

function transferHtml(transfer) {
  const phase = (name) => {
    const bytes = transfer[`${name}_bytes`];
    return `<div class="${bytes ? "busy" : ""}"><div class="label">${name}</div><div class="kind">${safe(transfer[name])}</div>
      <div class="label">${bytes ? `${byteSize(bytes)} a rank · ${duration(transfer[`${name}_seconds`])}` : "no bytes move"}</div></div>`;
  };
  const facts = [`${transfer.ranks} ranks`, transfer.elements ? `${transfer.elements} elements` : "", `on ${transfer.of === "parameter" ? "a parameter’s gradient" : "an activation"}`, transfer.together.length ? `one call with ${transfer.together.join(", ")}` : ""];
  return `<div class="phases">${phase("forward")}${phase("backward")}</div><p class="mono">${safe(facts.filter(Boolean).join(" · "))}</p>`;
}
function weightHtml(step) {
  return `<button class="link" data-step="${safe(step.name)}" style="width:100%"><span>${safe(either(step).name)}</span><span>${shapesHtml(step, "before")}${step.change === "same" ? "" : ` → ${shapesHtml(step, "after")}`}</span></button>
    <div class="dim">${step.dims.map((dim) => `<div><span class="sizes">${safe(dim.whole)}${dim.local !== dim.whole ? ` → <span class="smaller">${safe(dim.local)}</span>` : ""}</span><span class="term">${termHtml(dim.term)}</span><div class="words">${safe(dim.words)}</div></div>`).join("")}<div class="words">${safe(step.by)}: ${safe(step.why)}</div></div>`;
}
function readsOf(step, layout) {
  return [...new Set([...(step.after ? step.after.inputs : []), ...(step.before ? step.before.inputs : [])])].map((name) => layout.byName.get(name)).filter((source) => source && source.role !== "parameter");
}
const readersOf = (step) => unit().steps.filter((other) => [other.before, other.after].some((value) => value && value.inputs.includes(step.name)));
function linksHtml(title, steps) {
  if (!steps.length) return "";
  const link = (step) => `<button class="link" data-step="${safe(step.name)}"><span>${safe(step.transfer ? mainKind(step) : either(step).name)}</span><span>${step.transfer ? "" : safe(shapeText(either(step).shapes))}</span></button>`;
  return `<h3>${title}</h3><div class="links">${steps.slice(0, 12).map(link).join("")}${steps.length > 12 ? `<p>and ${steps.length - 12} more</p>` : ""}</div>`;
}
function blockPanel(card) {
  const rows = card.steps.map((step) => `<button class="link" data-open="1" data-step="${safe(step.name)}"><span>${safe(either(step).operator)}</span><span>${shapesHtml(step, step.after ? "after" : "before")}</span></button>`);
  return `${close}<div class="title">${safe(titleOf(card))}</div><div class="sub">${card.steps.length} steps${card.module ? ` in ${safe(card.module)}` : ""}</div>
    <div class="chips"><span class="chip ${card.state}">${STATES[card.state]}</span>${card.axes.map((letter) => `<span class="chip">axis ${letter}</span>`).join("")}</div>
    <div class="why"><b>${safe(card.last.by)}</b><p>${sentence(card.last.why)}</p></div>
    <button class="open" data-block="${card.last.block}">show every step</button>
    <h3>Steps, with their shapes on a rank</h3><div class="links">${rows.join("")}</div>
    ${card.weights.length ? `<h3>Parameters</h3>${card.weights.map(weightHtml).join("")}` : ""}`;
}
function unitPanel() {
  const shown = unit(), axes = shown.axes.map((axis) => `<button class="axis ${state.axis === axis.name ? "on" : ""}" data-axis="${axis.name}">
      <span class="letter" style="background:${axisColour(axis.name)}">${axis.name}</span><b>an axis of ${axis.size}${axis.padded === axis.size ? "" : `, padded to ${axis.padded}`}, cut in ${axis.parts}</b>
      <span class="words">${axis.local} on a rank · rule ${safe(axis.rule || "of the plan")} · ${axis.parameters.length} parameter${axis.parameters.length === 1 ? "" : "s"}</span></button>`);
  const layers = d3.rollups(shown.layers, (same) => same.map((layer) => layer.path || "the unit itself"), (layer) => `${layer.before} → ${layer.after}`);
  return `<div class="title">${safe(shown.module)}</div><div class="sub">${safe(shown.title)}</div>
    ${axes.length ? `<h3>Cut axes: click one to follow it</h3>${axes.join("")}` : ""}
    ${layers.length ? `<h3>Replaced layers</h3>${layers.map(([kind, paths]) => `<p><b>${safe(kind)}</b><br>${safe(paths.join(", "))}</p>`).join("")}` : ""}
    ${shown.not_cut.length ? `<h3>Not cut, and why</h3>${shown.not_cut.map((text) => `<p>${safe(text)}</p>`).join("")}` : ""}
    ${shown.unchanged ? `<p>${sentence(shown.unchanged)}</p>` : ""}
    <h3>How to read this</h3><p>Every step stands at the same place on both sides. Click one for its shapes, the term of every dimension, who made it so and why. Double-click a stack to open it.</p>`;
}
