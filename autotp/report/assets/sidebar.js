// The head of the page, the model tree and the legend.

function showSummary() {
  const { plan } = diff(), [whole, local] = diff().elements, each = plan.element_bytes, shown = unit();
  const total = (phase) => d3.rollup(plan.units.flatMap((part) => part.collectives.map((c) => ({ ...c, times: part.instances.length }))).filter((c) => (phase === "forward") === (c.phase === "forward")),
    (all) => ({ count: d3.sum(all, (c) => c.times), bytes: d3.sum(all, (c) => c.times * c.wire_bytes), seconds: d3.sum(all, (c) => c.times * c.seconds) })) ;
  const card = (label, value, under, extra = "", className = "") => `<div class="card ${className}"><div class="label">${label}</div><div class="value">${value}</div>${extra}<div class="under">${under}</div></div>`;
  const phase = (name) => { const sums = total(name); return card(`${name}, all units`, `${sums.count} <small>collectives</small>`, `${byteSize(sums.bytes)} a rank · ${duration(sums.seconds)}`, "", state.phase === name ? "now" : ""); };
  const kinds = d3.rollups(shown.collectives, (same) => same.length, (c) => `${c.kind.replace("_", "-")} ${c.phase}`);
  document.getElementById("summary").innerHTML = [
    card("parameters on a rank", `${count(local)} <small>of ${count(whole)}</small>`, `${byteSize(local * each)} of weights`, `<div class="bar"><i style="width:${(100 * local) / Math.max(whole, 1)}%"></i></div>`),
    phase("forward"), phase("backward"),
    card("this unit", `${byteSize(d3.sum(shown.collectives, (c) => c.wire_bytes))} <small>a step</small>`, kinds.map(([kind, number]) => `${number} ${kind}`).join(" · ") || "no collectives"),
    card("weighed at", `${plan.tokens.toLocaleString("en")} <small>tokens</small>`, safe(plan.hardware)),
  ].join("");
  document.getElementById("model").textContent = plan.model;
  document.title = `${plan.model} on ${plan.tp} ranks · autotp diff`;
  document.getElementById("after-title").textContent = `on each of ${plan.tp} ranks, ${state.phase}`;
}

function segments(id, options, current, choose) {
  const group = d3.select(`#${id}`).selectAll("button").data(options).join("button").text((option) => option.text)
    .attr("data-value", (option) => option.value).attr("aria-pressed", (option) => String(option.value === current));
  group.on("click", (_, option) => choose(option.value));
}
function showControls() {
  segments("sizes", DATA.map((each, i) => ({ value: i, text: each.plan.tp })), state.size, setSize);
  segments("phases", ["forward", "backward"].map((phase) => ({ value: phase, text: phase })), state.phase, setPhase);
  segments("details", [["outline", "outline"], ["all", "every node"]].map(([value, text]) => ({ value, text })), state.detail, setDetail);
}

function showTree() {
  const units = diff().units.map((each, i) => {
    const bytes = d3.sum(each.collectives, (c) => c.wire_bytes);
    const facts = [each.module, each.instances.length > 1 ? `${each.instances.length} equal units` : "", bytes ? `${byteSize(bytes)} a step` : "nothing sent"];
    return `<button class="unit" data-unit="${i}" aria-current="${i === state.unit}"><div class="path">${safe(each.title)}</div><div class="facts">${safe(facts.filter(Boolean).join(" · "))}</div></button>${i === state.unit ? modulesHtml(each) : ""}`;
  });
  const collectives = unit().steps.filter((step) => step.transfer && (step.transfer.forward_bytes || step.transfer.backward_bytes));
  const hops = collectives.map((step) => `<button class="hop ${bytesNow(step) ? "" : "asleep"}" data-hop="${safe(step.name)}"><span class="dot"></span><span class="of">${safe(aboutOf(step))}</span><span class="bytes">${bytesNow(step) ? `${safe(kindNow(step))} ${byteSize(bytesNow(step))}` : `in ${state.phase === "forward" ? "backward" : "forward"}`}</span></button>`);
  const tree = document.getElementById("tree");
  tree.innerHTML = `<h3>${safe(diff().plan.model)}</h3>${units.join("")}${hops.length ? `<h3>Collectives of this unit, ${state.phase}</h3>${hops.join("")}` : ""}${outsideHtml()}`;
  for (const button of tree.querySelectorAll("[data-unit]")) button.onclick = () => setUnit(Number(button.dataset.unit));
  for (const button of tree.querySelectorAll("[data-module]")) button.onclick = () => followModule(button.dataset.module);
  for (const button of tree.querySelectorAll("[data-hop]")) button.onclick = () => goTo(button.dataset.hop);
}
// What a collective is about: the parameter, or the module that made the value.
function aboutOf(step) {
  const source = layoutNow().byName.get(step.after.inputs[0]);
  return step.transfer.of === "parameter" && source ? either(source).name : step.module || either(step).name;
}
function modulesHtml(each) {
  const tree = new Map();
  for (const parameter of each.parameters) {
    const parts = parameter.name.split(".").slice(0, -1);
    parts.forEach((_, depth) => { const path = parts.slice(0, depth + 1).join("."); if (!tree.has(path)) tree.set(path, { depth, placement: "" }); });
    const owner = tree.get(parts.join("."));
    if (owner && (!owner.placement || owner.placement === "replicated")) owner.placement = parameter.placement;
  }
  const rows = [...tree].map(([path, { depth, placement }]) => `<button class="module ${state.module === path ? "on" : ""}" data-module="${safe(path)}" style="padding-left:${6 + depth * 13}px" title="${safe(path)}"><span class="name">${safe(path.split(".").pop())}</span>${placement ? `<span class="badge ${placement}">${placement === "vocabulary" ? "vocab" : placement}</span>` : ""}</button>`);
  return rows.length ? `<div class="modules">${rows.join("")}</div>` : "";
}
function outsideHtml() {
  const outside = diff().plan.outside;
  if (!outside.length) return "";
  return `<h3>Whole, in no unit</h3>${outside.slice(0, 12).map((p) => `<div class="hop asleep" title="${safe(p.reason)}"><span class="of">${safe(p.name)}</span><span class="bytes">${p.shape.join(" × ")}</span></div>`).join("")}${outside.length > 12 ? `<div class="hop asleep">and ${outside.length - 12} more</div>` : ""}`;
}
function showLegend() {
  const key = (mark, words) => `<span class="key">${mark}${words}</span>`, box = (kind) => `<i class="${kind}"></i>`, bar = (name) => `<i class="bar-only" style="background:var(--${name})"></i>`;
  document.getElementById("legend").innerHTML = [
    key(bar("column"), "column"), key(bar("row"), "row"), key(bar("vocabulary"), "vocabulary"), key(bar("attention"), "attention"), key(bar("operator"), "other"), `<span class="rule"></span>`,
    key(box("whole"), "whole on every rank"), key(box("slice"), "slice"), key(box("partial"), "partial sum"), `<span class="rule"></span>`,
    key(box("collective"), "moves bytes in this phase"), key(box("asleep"), "identity in this phase"),
    `<span class="keys"><kbd>/</kbd> search <kbd>n</kbd> <kbd>p</kbd> collectives <kbd>f</kbd> fit <kbd>w</kbd> wide <kbd>Esc</kbd> close</span>`,
  ].join("");
}
