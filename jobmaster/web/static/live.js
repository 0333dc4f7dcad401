// One stream per browser, not per tab: a browser opens six connections to a server at most, and each stream takes one. The tab
// that holds a lock reads the stream and tells the others. Without locks (plain http in a network) a hidden tab closes its own.

export class Live {
  constructor(root, on) {
    this.root = root;
    this.on = on;
    this.closed = false;
    this.seen = 0; // number of the last sample of the map that this tab has drawn
    this.source = null;
    this.release = null;
    this.retry = null;
    const name = `jobmaster.live:${root}`;
    if (navigator.locks && window.BroadcastChannel) {
      this.channel = new BroadcastChannel(name);
      this.channel.onmessage = ({ data }) => this.take(data);
      this.controller = new AbortController();
      navigator.locks
        .request(name, { signal: this.controller.signal }, () => {
          if (this.closed) return undefined;
          this.open();
          return new Promise((resolve) => { this.release = resolve; });
        })
        .catch(() => {});
      this.snapshot();
    } else {
      this.visible = () => (document.hidden ? this.shut() : this.open());
      document.addEventListener("visibilitychange", this.visible);
      this.visible();
    }
  }

  open() {
    this.shut();
    const source = new EventSource(`${this.root}/stream`);
    this.source = source;
    for (const kind of ["overview", "map", "stale"]) {
      source.addEventListener(kind, ({ data }) => this.tell({ kind, data }));
    }
    source.onerror = () => {
      this.tell({ kind: "stale", data: "" });
      // An answer other than 200 ends an EventSource for good.
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        this.source = null;
        this.retry = setTimeout(() => this.closed || this.open(), 5000);
      }
    };
  }

  shut() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  tell(message) {
    this.channel?.postMessage(message);
    this.take(message);
  }

  take({ kind, data }) {
    if (this.closed) return;
    if (kind === "stale") { this.on.state("stale"); return; }
    this.on.state("on");
    if (kind === "overview") { this.on.overview(data); return; }
    this.takeMap(JSON.parse(data));
  }

  takeMap(change) {
    if (change.whole) {
      this.seen = change.seq;
      this.on.map(change);
    } else if (change.seq === this.seen + 1) {
      this.seen = change.seq;
      this.on.map(change);
    } else if (change.seq > this.seen) {
      this.snapshot(); // this tab joined later than the stream, or missed something
    }
  }

  async snapshot() {
    if (this.asking || this.closed) return;
    this.asking = true;
    try {
      const answer = await fetch(`${this.root}/stream/samples`);
      if (!answer.ok) throw new Error(String(answer.status));
      for (const change of await answer.json()) this.takeMap(change);
      this.on.state("on");
    } catch {
      this.on.state("stale");
    } finally {
      this.asking = false;
    }
  }

  close() {
    this.closed = true;
    this.shut();
    this.release?.();
    this.controller?.abort();
    this.channel?.close();
    if (this.visible) document.removeEventListener("visibilitychange", this.visible);
  }
}
