// The server writes times in UTC. A page shows them in the zone of the browser, with UTC in their titles.

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";
const digits = (value, count = 2) => String(value).padStart(count, "0");

export function timeOfDay(at) {
  return `${digits(at.getHours())}:${digits(at.getMinutes())}:${digits(at.getSeconds())}`;
}

function text(at) {
  const day = `${at.getFullYear()}-${digits(at.getMonth() + 1)}-${digits(at.getDate())}`;
  return `${day} ${timeOfDay(at)}.${digits(at.getMilliseconds(), 3)}`;
}

// Of a page as the server has sent it: once.
export function showInZone(page) {
  if (zone === "UTC") return;
  for (const each of page.querySelectorAll("time[datetime]")) {
    const said = text(new Date(each.dateTime));
    if (each.classList.contains("exact")) each.textContent = said;
    else each.title = `${said} ${zone}\n${each.title}`;
  }
  for (const each of page.querySelectorAll("text[data-minute]")) {
    each.textContent = timeOfDay(new Date(each.dataset.minute)).slice(0, 5);
  }
  for (const each of page.querySelectorAll("[data-zone]")) each.textContent = zone;
  for (const each of page.querySelectorAll('[data-label$="(UTC)"]')) {
    each.dataset.label = each.dataset.label.replace("UTC", zone);
  }
}
