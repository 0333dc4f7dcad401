// What is wrong with the page as it is shown: text with too little contrast, parts that stick out, pictures without a name.
() => {
  const wrong = [];
  const channels = (text) => {
    const found = text.match(/[\d.]+/g).map(Number);
    if (text.startsWith("color(srgb")) return [...found.slice(0, 3).map((each) => each * 255), found[3] ?? 1];
    return [found[0], found[1], found[2], found[3] ?? 1];
  };
  const over = (top, ground) => [0, 1, 2].map((i) => top[i] * top[3] + ground[i] * (1 - top[3]));
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((each) => each / 255).map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || seen.has(element) || !element.checkVisibility({ opacityProperty: true })) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const svg = element.closest("svg");
    const text = channels(svg ? style.fill : style.color);
    const under = ground(svg ? svg.parentElement : element);
    const [light, dark] = [luminance(over(text, under)), luminance(under)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)} of ${element.tagName} "${element.textContent.trim().slice(0, 40)}"`);
  }
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${width}`);
  for (const each of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!each.labels?.length && !each.getAttribute("aria-label")) wrong.push(`${each.tagName} ${each.name} has no label`);
  }
  for (const each of document.querySelectorAll("svg, canvas")) {
    if (!each.getAttribute("aria-label") && each.getAttribute("aria-hidden") !== "true") wrong.push(`${each.tagName} has no name`);
  }
  for (const each of document.querySelectorAll("button, a")) {
    if (each.checkVisibility() && !each.textContent.trim() && !each.getAttribute("aria-label")) wrong.push(`${each.outerHTML.slice(0, 80)} has no name`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) wrong.push(`two parts have the id ${id}`);
  return [...new Set(wrong)];
}
