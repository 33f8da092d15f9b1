// What the reader does.

const search = { hits: [], place: 0 };

function refresh({ move = false } = {}) {
  showControls(); showSummary(); showTree();
  const empty = !unit().steps.length;
  document.getElementById("message").hidden = !empty;
  document.getElementById("message").textContent = empty ? `${unit().title}: ${unit().unchanged}` : "";
  draw();
  if (move) start();
  showPanel(); showWhich();
}
function select(id) {
  state.selected = id; state.axis = null;
  if (id === null) state.module = null;
  mark(); showPanel(); showWhich();
}
function setSize(size) {
  const path = unit().instances[0], selected = state.selected;
  state.size = size; state.axis = null;
  const place = diff().units.findIndex((each) => each.instances.includes(path));
  state.unit = Math.max(place, 0);
  state.selected = layoutNow().cards.has(selected) ? selected : null;
  runSearch(false); refresh();
}
function setUnit(place) {
  state.unit = place; state.selected = state.axis = state.module = null; state.open.clear();
  runSearch(false); refresh({ move: true });
}
function setPhase(phase) { state.phase = phase; refresh(); }
function setDetail(detail) {
  const step = state.selected && layoutNow().cards.get(state.selected).last.name;
  state.detail = detail; state.open.clear();
  state.selected = step ? layoutNow().home.get(step) : null;
  refresh({ move: !step });
  if (step) focus(state.selected);
}
function toggleBlock(block) {
  if (state.detail !== "outline") return;
  const steps = unit().steps.filter((step) => step.block === block);
  state.open.has(block) ? state.open.delete(block) : state.open.add(block);
  state.selected = layoutNow().home.get(steps[0].name);
  refresh(); focus(state.selected);
}
function followAxis(letter) { state.axis = state.axis === letter ? null : letter; state.module = null; mark(); showPanel(); }
function followModule(path) { state.module = state.module === path ? null : path; state.axis = null; showTree(); mark(); }

// Select a step wherever it is shown, also one inside of a folded block, and bring it into view.
function goTo(name) {
  const layout = layoutNow(), id = layout.home.get(name), card = layout.cards.get(id);
  if (card.many && card.id === state.selected) { state.open.add(card.last.block); refresh(); return goTo(name); }
  select(id); focus(id);
}

const collectiveIds = () => unit().steps.filter((step) => bytesNow(step)).map((step) => layoutNow().home.get(step.name));
function hop(by) {
  const ids = collectiveIds();
  if (!ids.length) return;
  const here = ids.indexOf(state.selected);
  goTo(ids[here < 0 ? (by > 0 ? 0 : ids.length - 1) : (here + by + ids.length) % ids.length]);
}
function showWhich() {
  const ids = collectiveIds(), here = ids.indexOf(state.selected);
  document.getElementById("which").textContent = here < 0 ? `${ids.length} collective${ids.length === 1 ? "" : "s"}` : `${here + 1} of ${ids.length}`;
}

function runSearch(move = true) {
  const words = document.getElementById("search").value.trim().toLowerCase(), found = document.getElementById("found");
  const text = (step) => [step.name, step.module, step.role, ...[step.before, step.after].flatMap((value) => (value ? [value.name, value.operator] : []))].join(" ").toLowerCase();
  search.hits = words ? unit().steps.filter((step) => text(step).includes(words)).map((step) => step.name) : [];
  search.place = 0;
  found.textContent = words ? (search.hits.length ? `${search.hits.length} found` : "none") : "";
  mark();
  if (move && search.hits.length) focus(layoutNow().home.get(search.hits[0]));
}
function nextHit() {
  if (!search.hits.length) return;
  goTo(search.hits[search.place % search.hits.length]);
  search.place += 1;
  document.getElementById("found").textContent = `${((search.place - 1) % search.hits.length) + 1} of ${search.hits.length}`;
}

function listen() {
  const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
  on("search", "input", () => runSearch());
  on("search", "keydown", (event) => { if (event.key === "Enter") nextHit(); if (event.key === "Escape") { event.target.value = ""; runSearch(); event.target.blur(); } });
  on("fit", "click", () => fit());
  on("zoom-in", "click", () => panes.after.svg.transition().duration(150).call(zoom.scaleBy, 1.3));
  on("zoom-out", "click", () => panes.after.svg.transition().duration(150).call(zoom.scaleBy, 1 / 1.3));
  on("next", "click", () => hop(1)); on("previous", "click", () => hop(-1));
  on("wide", "click", () => setWide(!document.body.classList.contains("wide")));
  on("theme", "click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { "/": () => document.getElementById("search").focus(), f: () => fit(), w: () => setWide(!document.body.classList.contains("wide")), n: () => hop(1), p: () => hop(-1), Escape: () => select(null) }[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  new ResizeObserver(() => { if (!state.moved) start(); }).observe(document.getElementById("panes"));
}
function setWide(wide) {
  document.body.classList.toggle("wide", wide);
  document.getElementById("wide").setAttribute("aria-pressed", String(wide));
  start();
}
function setTheme(theme) { document.documentElement.dataset.theme = theme; }

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
// First shown: the unit that most of the model is made of.
state.unit = d3.greatestIndex(diff().units, (each) => (each.steps.length ? each.instances.length * 1000 + each.steps.length : 0));
listen(); showLegend(); refresh({ move: true });
window.autotp = { state, layout: layoutNow };
