// The cluster map on a canvas: 10,000 buckets are drawn whole in a few milliseconds. The table below it has the same figures
// for screen readers, for copying and without scripts.
import { timeOfDay, zone } from "./times.js";
import { MapModel, PRIORITIES, STATE_NAMES } from "./map_model.js";

const root = document.body.dataset.root;
const card = document.getElementById("map");
const canvas = document.getElementById("map-canvas");
const wrap = document.getElementById("map-wrap");
const tip = document.getElementById("map-tip");
const note = document.getElementById("map-note");
const laneSelect = document.getElementById("map-lane");
const idleBox = document.getElementById("map-idle");
const colourSelect = document.getElementById("map-colour");
const context = canvas.getContext("2d");
const live = new MapModel();
let shown = live; // another model while the past is shown
let layout = { cells: [], rows: [], width: 0, height: 0 };
let chosen = null;
let dirty = false;
let moved = true; // cells have come, gone or changed their row, or the window has: their places are computed anew
const ARC_MS = 6000;
const LABEL = 190;
const HEAD = 26;

card.hidden = false;

// ------------------------------------------------------------------ colours, from the style sheet
let colours = {};
function readColours() {
  // The value of a property is light-dark(...), which a canvas does not know: the colour of an element is one of the two.
  const value = (name) => {
    canvas.style.color = `var(${name})`;
    return getComputedStyle(canvas).color;
  };
  colours = {
    ground: value("--surface"), ink: value("--ink"), soft: value("--soft"), line: value("--line"), sunk: value("--sunk"),
    accent: value("--accent"), bad: value("--bad"),
    states: {
      ACTIVE: value("--p3"), COMPLETING: value("--p2"), LOST: value("--bad"), DRAINING: value("--warn"),
      FROZEN: value("--cold"), READY_TO_DELETE: value("--p1"),
    },
    lanes: ["--p3", "--p2", "--p4", "--p5", "--p1", "--warn", "--cold", "--good"].map(value),
  };
}

// ------------------------------------------------------------------ layout
function visible(cell) {
  if (laneSelect.value && cell.lane !== laneSelect.value) return false;
  return !(idleBox.checked && cell.waiting <= 0 && !cell.running && STATE_NAMES[cell.state] === "ACTIVE");
}

function measure() {
  const cells = [...shown.cells.values()].filter(visible);
  const size = cells.length > 4000 ? 8 : cells.length > 600 ? 11 : cells.length > 120 ? 16 : 24;
  const width = Math.max(wrap.clientWidth, 320);
  const label = width < 600 ? 92 : LABEL;
  const column = Math.floor((width - label) / PRIORITIES.length);
  const across = Math.max(1, Math.floor((column - 10) / size));
  const byOwner = new Map();
  for (const cell of cells) {
    let row = byOwner.get(cell.owner);
    if (!row) byOwner.set(cell.owner, (row = PRIORITIES.map(() => [])));
    row[5 - cell.priority].push(cell);
  }
  const owners = [...shown.agents.keys()].filter((owner) => byOwner.has(owner) || !idleBox.checked);
  if (byOwner.has(-1)) owners.push(-1);
  const name = (owner) => shown.agents.get(owner)?.store + "\u0000" + shown.agents.get(owner)?.name;
  owners.sort((a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a - b));
  const rows = [];
  const placed = [];
  let y = HEAD;
  let store = null;
  for (const owner of owners) {
    const agent = shown.agents.get(owner);
    if (agent && agent.store !== store) {
      store = agent.store;
      rows.push({ head: store || "no store", y });
      y += 20;
    }
    const groups = byOwner.get(owner) ?? PRIORITIES.map(() => []);
    const lines = Math.max(1, ...groups.map((group) => Math.ceil(group.length / across)));
    const height = Math.max(lines * size, 18);
    rows.push({ owner, y, agent, height, middle: y + Math.min(size, height) / 2 });
    groups.forEach((group, number) => {
      group.sort((a, b) => a.n - b.n);
      group.forEach((cell, place) => {
        placed.push({
          cell, x: label + number * column + (place % across) * size, y: y + Math.floor(place / across) * size, size, owner,
        });
      });
    });
    y += height + 6;
  }
  layout = { cells: placed, rows, width, height: y + 4, label, column, size };
}

// ------------------------------------------------------------------ drawing
function colourOf(cell) {
  if (colourSelect.value === "lane") return colours.lanes[shown.lanes.indexOf(cell.lane) % colours.lanes.length];
  return colours.states[STATE_NAMES[cell.state]];
}

function draw() {
  const began = performance.now();
  dirty = false;
  if (moved || idleBox.checked) measure();
  moved = false;
  const ratio = window.devicePixelRatio || 1;
  const { width, height, size, label, column } = layout;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.ground;
  context.fillRect(0, 0, width, height);
  drawFrame(width, label, column);
  // What is scrolled out of sight is not drawn: without a graphics card each of 30,000 rectangles is painted by the processor.
  const [top, bottom] = [wrap.scrollTop - 60, wrap.scrollTop + wrap.clientHeight + 60];
  const seen = layout.cells.filter(({ y }) => y > top && y < bottom);
  const byDepth = colourSelect.value === "depth";
  const deepest = byDepth ? layout.cells.reduce((most, each) => Math.max(most, each.cell.waiting), 1) : 1;
  const gap = size > 10 ? 2 : 1;
  const inner = size - gap;
  context.globalAlpha = 0.78;
  let last = null;
  for (const { cell, x, y } of seen) {
    const colour = colourOf(cell);
    if (colour !== last) context.fillStyle = last = colour; // to set it costs more than to compare it
    if (byDepth) context.globalAlpha = 0.15 + 0.85 * Math.sqrt(Math.max(cell.waiting, 0) / deepest);
    context.fillRect(x, y, inner, inner);
  }
  context.globalAlpha = 1;
  context.fillStyle = colours.ink;
  for (const { cell, x, y } of seen) {
    if (cell.waiting > 0) {
      const tall = Math.max(1, Math.round(inner * Math.min(1, Math.log10(1 + cell.waiting) / 4)));
      context.fillRect(x, y + inner - tall, Math.max(1, inner >> 2), tall);
    }
  }
  context.fillStyle = colours.ground;
  const dot = Math.max(1, Math.round(inner / 5)); // whole pixels: parts of them cost ten times as much
  for (const { cell, x, y } of seen) {
    if (cell.running) context.fillRect(x + inner - dot - 1, y + 1, dot, dot);
  }
  drawTrouble(inner, seen);
  drawArcs(inner);
  if (chosen !== null) {
    const at = layout.cells.find((each) => each.cell.n === chosen);
    if (at) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      context.strokeRect(at.x - 1.5, at.y - 1.5, inner + 3, inner + 3);
    }
  }
  canvas.dataset.drawMs = (performance.now() - began).toFixed(2);
  const [active, completing] = [STATE_NAMES.indexOf("ACTIVE"), STATE_NAMES.indexOf("COMPLETING")];
  const lost = layout.cells.reduce((sum, { cell }) => sum + (cell.state !== active && cell.state !== completing), 0);
  const said = `${layout.cells.length} buckets, ${shown.agents.size} agents${lost ? `, ${lost} out of service` : ""}`;
  if (note.textContent !== said) note.textContent = said; // a screen reader reads a status aloud whenever it is written
}

function drawFrame(width, label, column) {
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = colours.soft;
  PRIORITIES.forEach((name, number) => {
    const text = column < 62 ? name.slice(0, 4) : name;
    context.fillText(text, label + number * column, 11);
  });
  context.fillStyle = colours.line;
  context.fillRect(0, HEAD - 6, width, 1);
  for (const row of layout.rows) {
    if (row.y < wrap.scrollTop - 60 || row.y > wrap.scrollTop + wrap.clientHeight + 60) continue;
    if (row.head !== undefined) {
      context.fillStyle = colours.soft;
      context.fillText(row.head, 0, row.y + 9);
      continue;
    }
    const agent = row.agent;
    const over = !agent || agent.leaseSeconds === 0 || agent.leaseUntil <= shown.at;
    const share = agent && agent.leaseSeconds ? (agent.leaseUntil - shown.at) / 1000 / agent.leaseSeconds : 0;
    context.fillStyle = over ? colours.bad : share < 1 / 3 ? colours.states.DRAINING : colours.states.ACTIVE;
    context.beginPath();
    context.arc(16, row.middle, 4, 0, 7);
    if (over) { context.lineWidth = 1.5; context.strokeStyle = colours.bad; context.stroke(); } else context.fill();
    context.fillStyle = over ? colours.bad : colours.ink;
    const name = agent ? agent.name : "unknown owner";
    const said = over ? `${name} ✕` : agent.state === "ACTIVE" ? name : `${name} (${agent.state.toLowerCase()})`;
    if (row.said !== said) [row.said, row.fitted] = [said, fitted(said, label - 34)];
    context.fillText(row.fitted, 26, row.middle);
  }
}

function fitted(text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

// A state that needs a person has a sign, not a colour alone.
function drawTrouble(inner, seen) {
  context.lineWidth = Math.max(1, inner / 8);
  const active = STATE_NAMES.indexOf("ACTIVE");
  for (const { cell, x, y } of seen) {
    if (cell.state === active) continue;
    const state = STATE_NAMES[cell.state];
    context.strokeStyle = colours.ground;
    context.beginPath();
    if (state === "LOST") {
      context.moveTo(x + 3, y + 3); context.lineTo(x + inner - 3, y + inner - 3);
      context.moveTo(x + inner - 3, y + 3); context.lineTo(x + 3, y + inner - 3);
    } else if (state === "FROZEN") {
      context.moveTo(x + inner * 0.35, y + 3); context.lineTo(x + inner * 0.35, y + inner - 3);
      context.moveTo(x + inner * 0.65, y + 3); context.lineTo(x + inner * 0.65, y + inner - 3);
    } else if (state === "DRAINING") {
      context.moveTo(x + 3, y + inner / 2); context.lineTo(x + inner - 3, y + inner / 2);
    } else {
      context.moveTo(x + 3, y + inner - 3); context.lineTo(x + inner - 3, y + 3);
    }
    context.stroke();
  }
}

// A rescue: an arc from the row of the owner that was lost to the bucket at its rescuer.
function drawArcs(inner) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (const arc of shown.arcs) {
    const age = shown.at - arc.at;
    if (age < 0 || age > ARC_MS) continue;
    const to = layout.cells.find((each) => each.cell.n === arc.n);
    const from = layout.rows.find((row) => row.owner === arc.from);
    if (!to || !from) continue;
    context.globalAlpha = still ? 0.8 : 1 - age / ARC_MS / 1.3;
    context.strokeStyle = colours.states.DRAINING;
    context.lineWidth = 1.5;
    const x = layout.label - 6;
    const y = from.middle;
    context.beginPath();
    context.moveTo(x, y);
    context.quadraticCurveTo((x + to.x) / 2, (y + to.y) / 2 - 30, to.x + inner / 2, to.y + inner / 2);
    context.stroke();
  }
  context.globalAlpha = 1;
}

function later() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(draw);
}

// ------------------------------------------------------------------ what a person points at
function at(event) {
  const box = canvas.getBoundingClientRect();
  const x = event.clientX - box.left;
  const y = event.clientY - box.top;
  return layout.cells.find((each) => x >= each.x && x < each.x + each.size && y >= each.y && y < each.y + each.size);
}

function line(text, kind) {
  const made = document.createElement("div");
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function showTip(found) {
  if (!found) { tip.hidden = true; return; }
  const { cell } = found;
  const agent = shown.agents.get(cell.owner);
  const waiting = cell.waiting < 0 ? "not known" : cell.waiting.toLocaleString("en").replaceAll(",", "\u202f");
  tip.replaceChildren(
    line(`${STATE_NAMES[cell.state].toLowerCase().replaceAll("_", " ")} · ${cell.lane} / ${PRIORITIES[5 - cell.priority]}`),
    line(`bucket ${cell.id.slice(0, 13)}, epoch ${cell.epoch}`, "soft"),
    line(`owner ${agent ? agent.name : "unknown"}, store ${cell.store}`, "soft"),
    line(`waiting ${waiting}, running ${cell.running}`),
  );
  tip.hidden = false;
  const left = Math.min(found.x + 24, wrap.scrollLeft + wrap.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(left, wrap.scrollLeft)}px`;
  tip.style.top = `${found.y + found.size + 8}px`;
}

function open(found) {
  if (found) location.href = `${root}/buckets/${found.cell.id}`;
}

canvas.addEventListener("pointermove", (event) => {
  const found = at(event);
  canvas.style.cursor = found ? "pointer" : "";
  showTip(found);
});
canvas.addEventListener("pointerleave", () => showTip(null));
canvas.addEventListener("click", (event) => open(at(event)));
canvas.addEventListener("keydown", (event) => {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const cells = layout.cells;
  if (!cells.length || !(event.key in steps || event.key === "Enter")) return;
  event.preventDefault();
  const now = cells.findIndex((each) => each.cell.n === chosen);
  if (event.key === "Enter") { open(cells[now]); return; }
  const next = cells[Math.min(Math.max(now + steps[event.key], 0), cells.length - 1)];
  chosen = next.cell.n;
  showTip(next);
  later();
});
canvas.addEventListener("blur", () => { chosen = null; showTip(null); later(); });

// ------------------------------------------------------------------ the last 15 minutes again
const time = document.getElementById("map-time");
const clock = document.getElementById("map-clock");
const play = document.getElementById("map-play");
let past = null;
let playing = null;
let loading = false;

async function loadPast() {
  const answer = await fetch(`${root}/stream/history`);
  if (!answer.ok) return;
  past = await answer.json();
  time.max = String(Math.max(past.length - 1, 0));
  time.value = time.max;
  time.disabled = past.length < 2;
}
function showPast(index) {
  const model = new MapModel();
  for (const change of past.slice(0, index + 1)) model.apply(change);
  shown = model;
  moved = true;
  clock.textContent = `${timeOfDay(new Date(model.at))} ${zone}`;
  clock.title = `${new Date(model.at).toISOString().slice(11, 19)} UTC`;
  later();
}
function backToNow() {
  clearInterval(playing);
  playing = null;
  past = null;
  shown = live;
  moved = true;
  time.disabled = true;
  clock.textContent = "now";
  clock.title = "";
  play.textContent = "watch again";
  later();
}
// A second press while the past is on its way changes nothing: two of them would play at once, and end each other.
play.addEventListener("click", async () => {
  if (past) { backToNow(); return; }
  if (loading) return;
  loading = true;
  try { await loadPast(); } finally { loading = false; }
  if (!past || past.length < 2) { backToNow(); clock.textContent = "nothing was sampled so far"; return; }
  play.textContent = "back to now";
  let index = Math.max(0, past.length - 120);
  const timer = setInterval(() => {
    if (playing !== timer || index >= past.length) { clearInterval(timer); return; }
    time.value = String(index);
    showPast(index);
    index += 1;
  }, 125);
  playing = timer;
});
time.addEventListener("input", () => {
  clearInterval(playing);
  if (past) showPast(Number(time.value));
});

// ------------------------------------------------------------------ news
document.addEventListener("map", ({ detail }) => {
  live.apply(detail);
  moved ||= Boolean(detail.whole || detail.new || detail.gone || detail.agents);
  if (detail.whole || detail.new) {
    const before = laneSelect.value;
    laneSelect.replaceChildren(...["", ...live.lanes].map((lane) => new Option(lane || "all", lane)));
    laneSelect.value = live.lanes.includes(before) ? before : "";
  }
  if (shown === live) later();
});
document.addEventListener("theme", () => { readColours(); later(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); later(); });
function again() {
  moved = true;
  later();
}
for (const each of [laneSelect, idleBox, colourSelect]) each.addEventListener("change", again);
new ResizeObserver(again).observe(wrap);
wrap.addEventListener("scroll", later, { passive: true });
readColours();
later();
