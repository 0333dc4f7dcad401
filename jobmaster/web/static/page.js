// What every page does: theme, keys, the live switch, and reading its live part again. Without scripts the pages work by reloading.
import { Live } from "./live.js";
import { showInZone } from "./times.js";

const root = document.body.dataset.root;
const section = document.body.dataset.section;
const memory = {
  get(name) {
    try { return localStorage.getItem(`jobmaster.${name}`); } catch { return null; }
  },
  set(name, value) {
    try { localStorage.setItem(`jobmaster.${name}`, value); } catch { /* storage is switched off */ }
  },
};

showInZone(document);

// ------------------------------------------------------------------ theme
const themes = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const name = theme === "auto" ? "as the system" : theme;
  themeButton.setAttribute("aria-label", `Theme: ${name}`);
  themeButton.title = `Theme: ${name}`;
  themeButton.textContent = { auto: "◐", light: "○", dark: "●" }[theme];
  document.dispatchEvent(new CustomEvent("theme"));
}
let theme = memory.get("theme") ?? "auto";
if (!themes.includes(theme)) theme = "auto";
applyTheme(theme);
themeButton.hidden = false;
themeButton.addEventListener("click", nextTheme);
function nextTheme() {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  memory.set("theme", theme);
  applyTheme(theme);
}

// ------------------------------------------------------------------ live
const liveButton = document.getElementById("live");
const liveText = document.getElementById("live-text");
const intervals = document.getElementById("interval"); // seconds; "": those of the page
const streamed = document.querySelector("#overview, #map") !== null; // the pages of one agent and one bucket show nothing of the stream
let on = memory.get("live") !== "off";
let stream = null;

function showLive(state) {
  liveButton.dataset.live = state;
  liveButton.setAttribute("aria-pressed", String(state !== "off"));
  liveText.textContent = { on: "live", off: "paused", stale: "no answer", connecting: "connecting" }[state];
}

// A person who types or has chosen text is not disturbed.
function busy() {
  const active = document.activeElement;
  if (active && ["INPUT", "TEXTAREA", "SELECT"].includes(active.tagName) && active.closest("main")) return true;
  if (document.querySelector("main details[open] form, dialog[open]")) return true;
  return !(getSelection()?.isCollapsed ?? true);
}

function replaceById(id, next) {
  const old = document.getElementById(id);
  if (!old || !next || old.innerHTML === next.innerHTML) return;
  const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const open = new Set([...old.querySelectorAll("details[open]")].map((each) => each.id));
  old.replaceChildren(...next.childNodes);
  for (const each of old.querySelectorAll("details")) if (open.has(each.id)) each.open = true;
  if (focused) old.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

let refreshSeconds = secondsOf(document); // 0: nothing of the page changes any more
let timer = null;
let failures = 0;
function secondsOf(page) { return Number(page.body.dataset.refresh ?? 0); }
async function refresh() {
  if (!on || document.hidden || busy()) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    showInZone(next);
    if (busy()) return;
    for (const part of document.querySelectorAll("[data-part]")) replaceById(part.id, next.getElementById(part.id));
    refreshSeconds = secondsOf(next);
    failures = 0;
    showLive("on");
    offerLive();
    document.dispatchEvent(new CustomEvent("refreshed"));
  } catch {
    failures += 1;
    if (failures > 1) showLive("stale");
  }
}

// The next read begins when the one before has ended, so that a slow server is not asked twice at once.
function refreshLater() {
  clearTimeout(timer);
  if (on && refreshSeconds) timer = setTimeout(() => refresh().then(refreshLater), (Number(intervals.value) || refreshSeconds) * 1000);
}

function start() {
  showLive(streamed ? "connecting" : "on");
  if (streamed && stream === null) {
    stream = new Live(root, {
      state: (state) => on && showLive(state),
      overview: (html) => {
        const part = document.getElementById("overview");
        if (!part || busy()) return;
        const next = new DOMParser().parseFromString(`<div id="overview">${html}</div>`, "text/html");
        showInZone(next);
        replaceById("overview", next.getElementById("overview"));
      },
      map: (data) => document.dispatchEvent(new CustomEvent("map", { detail: data })),
    });
  }
}
function stop() {
  stream?.close();
  stream = null;
  clearTimeout(timer);
  showLive("off");
}
function offerLive() {
  liveButton.hidden = !streamed && !refreshSeconds;
  intervals.hidden = streamed || !refreshSeconds; // a stream sends each sample, about one a second
}
function setLive(wanted) {
  on = wanted;
  memory.set("live", on ? "on" : "off");
  showInterval();
  if (on) { start(); refresh().then(refreshLater); } else stop();
}
function toggleLive() { setLive(!on); }
function showInterval() {
  intervals.value = on ? memory.get("interval") ?? "" : "off";
  if (intervals.selectedIndex < 0) intervals.value = ""; // of a later version of this page
}
if (streamed || refreshSeconds) {
  offerLive();
  showInterval();
  liveButton.addEventListener("click", toggleLive);
  intervals.addEventListener("change", () => {
    if (intervals.value !== "off") memory.set("interval", intervals.value);
    setLive(intervals.value !== "off");
  });
  if (on) start(); else stop();
  refreshLater();
}

// ------------------------------------------------------------------ the bell: how many problems there are
const bell = document.getElementById("bell");
const BELL_SECONDS = 60;
async function readProblems() {
  if (document.hidden) return;
  try {
    const answer = await fetch(`${root}/problems/count`);
    if (!answer.ok) return;
    const { failed, warned } = await answer.json();
    const count = bell.querySelector(".count");
    count.hidden = failed + warned === 0;
    count.textContent = String(failed + warned);
    count.classList.toggle("bad", failed > 0);
    bell.setAttribute("aria-label", `Problems: ${failed} failed, ${warned} warned`);
  } catch {
    // The number of before stays.
  }
}
readProblems();
setInterval(() => { if (on) readProblems(); }, BELL_SECONDS * 1000);

// ------------------------------------------------------------------ keys
const help = document.createElement("dialog");
help.setAttribute("aria-label", "Keys");
const goes = [...document.querySelectorAll(".side a[data-key]")];
function keyLine(keys, meaning) {
  const line = document.createElement("tr");
  const left = document.createElement("td");
  for (const key of keys) {
    const cap = document.createElement("kbd");
    cap.textContent = key;
    left.append(cap, " ");
  }
  const right = document.createElement("td");
  right.textContent = meaning;
  line.append(left, right);
  return line;
}
function buildHelp() {
  const title = document.createElement("h2");
  title.textContent = "Keys";
  const table = document.createElement("table");
  const body = document.createElement("tbody");
  body.append(
    keyLine(["/"], "search jobs"), keyLine(["j", "k"], "next row, row before"), keyLine(["Enter"], "open the chosen row"),
    keyLine(["c"], "copy the id of the chosen row, or of the page"), keyLine(["v"], "live on or off"), keyLine(["d"], "theme"),
    ...goes.map((each) => keyLine(["g", each.dataset.key], each.textContent.trim())), keyLine(["?"], "this list"),
  );
  table.append(body);
  const close = document.createElement("form");
  close.method = "dialog";
  const button = document.createElement("button");
  button.textContent = "Close";
  close.append(button);
  help.append(title, table, close);
  document.body.append(help);
}
function showHelp() {
  if (!help.isConnected) buildHelp();
  if (!help.open) help.showModal();
}
const keysButton = document.getElementById("keys");
keysButton.hidden = false;
keysButton.addEventListener("click", showHelp);

let chosen = -1;
function rows() { return [...document.querySelectorAll("main table.rows tbody tr")]; }
function choose(step) {
  const all = rows();
  if (!all.length) return;
  chosen = Math.min(Math.max(chosen + step, 0), all.length - 1);
  all.forEach((row, number) => row.setAttribute("aria-selected", String(number === chosen)));
  all[chosen].scrollIntoView({ block: "nearest" });
  all[chosen].querySelector("a")?.focus({ preventScroll: true });
}
let prefix = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (prefix && Date.now() - prefix < 1500) {
    prefix = 0;
    const target = goes.find((each) => each.dataset.key === event.key);
    if (target) { event.preventDefault(); target.click(); return; }
  }
  const acts = {
    g: () => { prefix = Date.now(); },
    "/": () => document.getElementById("search").focus(),
    j: () => choose(1),
    k: () => choose(-1),
    d: nextTheme,
    v: () => !liveButton.hidden && toggleLive(),
    "?": showHelp,
    c: () => {
      const id = rows()[chosen]?.querySelector("a[title]")?.title ?? document.querySelector("[data-copy]")?.dataset.copy;
      if (id) navigator.clipboard?.writeText(id);
    },
  };
  if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
});

// ------------------------------------------------------------------ copy buttons
for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    const before = button.textContent;
    button.textContent = "copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  });
}
