// The buckets and agents of the map as the stream tells of them: a whole at first, then what has changed.

export const PRIORITIES = ["critical", "high", "medium", "low", "very low"];
export const STATE_NAMES = ["ACTIVE", "COMPLETING", "LOST", "DRAINING", "READY_TO_DELETE", "FROZEN"];
const ARCS_MAX = 400;

export class MapModel {
  constructor() {
    this.at = 0;
    this.cells = new Map();
    this.agents = new Map();
    this.arcs = [];
    this.lanes = [];
  }

  apply(change) {
    if (change.whole) {
      this.cells.clear();
      this.agents.clear();
      change.states.forEach((name, number) => { STATE_NAMES[number] = name; });
    }
    this.at = change.at;
    // An agent that has gone is still named by arcs of this sample, so it leaves last.
    const gone = [];
    for (const [n, id, name, host, store, mode, state, version, leaseUntil, leaseSeconds] of change.agents ?? []) {
      if (id === null) gone.push(n);
      else this.agents.set(n, { n, id, name, host, store, mode, state, version, leaseUntil, leaseSeconds });
    }
    for (const [n, until] of change.leases ?? []) {
      const agent = this.agents.get(n);
      if (agent) agent.leaseUntil = until;
    }
    for (const [n, id, lane, priority, store, owner, epoch, state, waiting, running] of change.new ?? []) {
      const before = this.cells.get(n);
      if (before && before.owner !== owner && STATE_NAMES[state] === "DRAINING") {
        this.arcs.push({ n, from: before.owner, at: change.at });
      }
      this.cells.set(n, { n, id, lane, priority, store, owner, epoch, state, waiting, running });
    }
    for (const [n, state, waiting, running] of change.set ?? []) {
      const cell = this.cells.get(n);
      if (cell) Object.assign(cell, { state, waiting, running });
    }
    for (const n of change.gone ?? []) this.cells.delete(n);
    for (const n of gone) this.agents.delete(n);
    if (this.arcs.length > ARCS_MAX) this.arcs.splice(0, this.arcs.length - ARCS_MAX);
    if (change.new || change.gone) this.lanes = [...new Set([...this.cells.values()].map((cell) => cell.lane))].sort();
  }
}
