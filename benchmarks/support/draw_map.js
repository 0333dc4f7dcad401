// Draws a map of so many buckets of 200 agents on the open page of the map, then 14 changes of a twentieth of them each; the
// milliseconds that each of them took.
async (buckets) => {
  const states = ["ACTIVE", "COMPLETING", "LOST", "DRAINING", "READY_TO_DELETE", "FROZEN"];
  const many = (length, made) => Array.from({ length }, (_, n) => made(n));
  const agents = many(200, (n) => [n, `id-${n}`, `agent ${n}`, "h", "s", "full", "ACTIVE", "1", 1e13, 10]);
  const cells = many(buckets, (n) => [n, `b-${n}`, "default", 1 + (n % 5), "s", n % 200, 1, 0, n % 90, n % 3]);
  const took = [];
  for (let seq = 1; seq <= 15; seq += 1) {
    const set = cells.filter((each) => each[0] % 20 === seq).map((each) => [each[0], 0, seq * 10, 1]);
    const change = seq === 1 ? { seq, at: seq, whole: true, states, agents, new: cells } : { seq, at: seq, set };
    document.dispatchEvent(new CustomEvent("map", { detail: change }));
    await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
    took.push(Number(document.getElementById("map-canvas").dataset.drawMs));
  }
  return took;
}
