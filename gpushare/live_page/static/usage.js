// What pods really use, as the device plugins of the visible nodes measure it.

const EVERY_MS = 15_000;
const AGAIN_MS = 30_000; // where nothing was measured, or the plugin did not answer in time
const MOST = 40; // nodes in one request
const TIMEOUT_MS = 10_000;
const WAIT_MS = 4_000; // after a failure; twice as long after each further one
const MAX_WAIT_MS = 60_000;

export class Usage {
  #found = new Map(); // by node: {at, cards} with the GPUs by UUID, or {at, why}
  #asking = false;
  #failures = 0;
  #notBefore = 0;

  // `path()` returns where to ask, `names()` the nodes to ask about; `changed` is called after answers.
  constructor({ path, names, headers, changed }) {
    Object.assign(this, { path, names, headers, changed });
    setInterval(() => this.ask(), 2_000);
  }

  of(node) {
    return this.#found.get(node) ?? null;
  }

  clear() {
    this.#found.clear();
    this.#failures = this.#notBefore = 0;
  }

  async ask() {
    const now = Date.now();
    const isDue = (name) => {
      const found = this.#found.get(name);
      return !found || now - found.at >= (found.why ? AGAIN_MS : EVERY_MS);
    };
    const due = this.names().filter(isDue).slice(0, MOST);
    if (due.length === 0 || this.#asking || now < this.#notBefore || document.hidden) return;
    this.#asking = true;
    try {
      const query = due.map((name) => `node=${encodeURIComponent(name)}`).join("&");
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const answer = await fetch(`${this.path()}?${query}`, { headers: this.headers(), cache: "no-store", signal });
      if (!answer.ok) throw new Error(`${answer.status}`);
      this.#take((await answer.json()).nodes, now);
      this.#failures = 0;
    } catch {
      // The stream shows the state of the connection.
      this.#notBefore = Date.now() + Math.min(MAX_WAIT_MS, WAIT_MS * 2 ** this.#failures);
      this.#failures += 1;
    } finally {
      this.#asking = false;
    }
  }

  #take(nodes, now) {
    for (const [name, { cards, why }] of Object.entries(nodes)) {
      this.#found.set(name, cards ? { cards: new Map(Object.entries(cards)), at: now } : { why, at: now });
    }
    this.changed();
  }
}
