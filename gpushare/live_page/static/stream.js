// Server-sent events over fetch: EventSource cannot send a token.

const SILENT_MS = 40_000; // the server sends something every 15 s
const MAX_WAIT_MS = 15_000;

class Rejected extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Pass every event to `on(kind, data)` until the stream ends; rejects if it fails.
async function read(path, token, signal, on) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, signal, cache: "no-store" });
  if (!answer.ok) throw new Rejected(answer.status, await problem(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await within(SILENT_MS, reader.read());
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) dispatch(event, on);
  }
}

function dispatch(event, on) {
  let kind = "";
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (kind) on(kind, JSON.parse(data));
}

async function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error("no data for 40 s")), milliseconds);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export async function problem(answer) {
  try {
    return (await answer.json()).Error;
  } catch {
    return `the extender responded with ${answer.status}`;
  }
}

// Follows the changes and reconnects when the stream ends. A tab that has been hidden for a minute
// disconnects, because the number of streams is limited.
export class Follower {
  #abort = null;
  token = ""; // that the next start uses
  #failures = 0;
  #timer = 0;
  #hidden = 0;

  // `on(kind, data)` gets the events, `state(name, text)` the state of the connection: connecting,
  // live, lost, refused (a token is needed).
  constructor(path, on, state) {
    this.path = path;
    this.on = on;
    this.state = state;
    document.addEventListener("visibilitychange", () => this.#seen());
    // A page that the browser keeps for Back must not keep its stream.
    addEventListener("pagehide", () => this.#pause("paused"));
    addEventListener("pageshow", (event) => event.persisted && this.start());
  }

  get headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  async start() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.state("connecting", "");
    let why = "the connection ended";
    try {
      await read(this.path, this.token, abort.signal, (kind, data) => {
        if (kind === "end") why = data.why;
        this.on(kind, data);
        if (kind === "whole") {
          this.#failures = 0;
          this.state("live", "");
        }
      });
    } catch (error) {
      if (abort.signal.aborted) return;
      abort.abort();
      if (error instanceof Rejected && (error.status === 401 || error.status === 403)) {
        this.state("refused", error.message);
        return;
      }
      why = error instanceof Rejected ? error.message : "the extender does not respond";
    }
    if (this.#abort !== abort) return;
    this.#failures += 1;
    const wait = Math.min(MAX_WAIT_MS, 500 * 2 ** this.#failures) * (0.5 + Math.random() / 2);
    this.state("lost", why);
    this.#timer = setTimeout(() => this.start(), wait);
  }

  #pause(why) {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
    this.state("lost", why);
  }

  #seen() {
    clearTimeout(this.#hidden);
    if (document.hidden) {
      this.#hidden = setTimeout(() => this.#pause("paused while the tab is hidden"), 60_000);
    } else if (this.#abort === null) {
      this.start();
    }
  }
}
