// Searches that this browser keeps by name. The address of each has the whole search, so it can be sent; what is kept never leaves the browser.

const VIEWS_MAX = 50;
const NAME_CHARS_MAX = 60;
const list = document.getElementById("views");
const { search, kept } = list.dataset;
const key = `jobmaster.views.${document.body.dataset.root}`;

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(key) ?? "[]");
    if (!Array.isArray(found)) return [];
    return found.filter((each) => typeof each?.name === "string" && typeof each?.query === "string").slice(0, VIEWS_MAX);
  } catch {
    return []; // storage is switched off, or another program has written there
  }
}

function store(views) {
  try { localStorage.setItem(key, JSON.stringify(views)); } catch { /* storage is switched off */ }
}

function shown(view) {
  const item = document.createElement("li");
  item.className = "own";
  const link = document.createElement("a");
  link.className = "chip cold";
  link.href = `?${view.query}`; // an address of this page, whatever the text is
  link.textContent = view.name;
  if (new URLSearchParams(view.query).get("q") === search) link.setAttribute("aria-current", "true");
  const remove = document.createElement("button");
  remove.type = "button";
  remove.className = "plain";
  remove.textContent = "✕";
  remove.setAttribute("aria-label", `Forget the view ${view.name}`);
  remove.addEventListener("click", () => {
    store(stored().filter((each) => each.name !== view.name));
    draw();
  });
  item.append(link, remove);
  return item;
}

const form = document.createElement("form");
const name = document.createElement("input");
name.type = "text";
name.required = true;
name.maxLength = NAME_CHARS_MAX;
name.placeholder = "name of this search";
name.setAttribute("aria-label", "Name of this search");
const save = document.createElement("button");
save.textContent = "Save view";
form.append(name, save);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const called = name.value.trim();
  if (!called) return;
  const others = stored().filter((each) => each.name !== called);
  store([...others.slice(-(VIEWS_MAX - 1)), { name: called, query: `q=${encodeURIComponent(search)}${kept}` }]);
  form.reset();
  draw();
});
const place = document.createElement("li");
place.append(form);

function draw() {
  for (const each of list.querySelectorAll(".own")) each.remove();
  place.remove();
  list.append(...stored().map(shown));
  if (search || kept) list.append(place);
}
draw();
