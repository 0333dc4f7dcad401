// Runs before the page is drawn, so that a chosen theme does not flash. "auto" is the system's.
(() => {
  try {
    const chosen = localStorage.getItem("jobmaster.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is switched off: the system's theme stays.
  }
})();
