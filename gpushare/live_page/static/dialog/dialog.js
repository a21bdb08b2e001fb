// A dialog with one node or one pod, kept up to date. The page's URL says which is open.

import { element } from "../dom.js";
import { problem } from "../stream.js";
import { nodeParts } from "./node.js";
import { pendingParts, runningParts } from "./pod.js";

const AGAIN_MS = 5_000; // between two explanations of a pod that stays open

export class Dialog {
  #shown = ""; // what is shown, as text
  #explained = { key: "", seen: "", found: null, at: 0 };

  constructor(dialog, { store, measured, headers, query, close }) {
    Object.assign(this, { dialog, store, measured, headers, query });
    [this.title, this.body] = dialog.querySelectorAll("h2, #detail-body");
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", close);
  }

  // Show the node or pod of the route; close the dialog if it has none.
  show({ node, pod }) {
    this.#shown = "";
    if (!node && !pod) {
      this.node = this.pod = "";
      this.dialog.close();
      return;
    }
    this.node = node;
    this.pod = node ? "" : pod;
    this.title.textContent = node || pod;
    this.body.replaceChildren();
    this.update();
    if (!this.dialog.open) this.dialog.showModal();
    this.title.focus();
  }

  // Show what has changed about it, or that it no longer exists.
  update() {
    if (!this.node && !this.pod) return;
    if (!this.store.isWhole) this.#fill("wait", () => [element("p", "quiet", "Waiting for the cluster …")]);
    else if (this.node) this.#updateNode();
    else this.#updatePod();
  }

  #updateNode() {
    const node = this.store.nodes.get(this.node);
    const measured = this.measured.of(this.node);
    if (node) this.#fill([node, measured], () => nodeParts(node, measured));
    else this.#fill("none", () => [element("p", "why", `No node ${this.node} shares its GPUs. It may have been removed.`)]);
  }

  #updatePod() {
    const share = this.store.share(this.pod);
    if (share) {
      const node = this.store.nodes.get(share.node);
      const measured = this.measured.of(share.node);
      this.#fill([share, node, measured], () => runningParts(share, node, this.pod, measured));
      return;
    }
    const pending = this.store.pending(this.pod);
    if (pending === null) {
      const text = `No pod ${this.pod} is shown. It may have ended, or requests no share of a GPU.`;
      this.#fill("none", () => [element("p", "why", text)]);
      return;
    }
    this.#explain(pending);
    const { key, found } = this.#explained;
    const explained = key === this.pod ? found : null;
    const mates = this.store.mates(pending);
    this.#fill([pending, explained, mates.map((each) => each.key)], () => pendingParts(pending, explained, mates));
  }

  // Ask why a pod is Pending, again after its reason has changed.
  async #explain(pending) {
    const seen = JSON.stringify(pending);
    const before = this.#explained;
    const isSame = before.key === this.pod && before.step === this.query();
    if (isSame && (before.seen === seen || Date.now() - before.at < AGAIN_MS)) return;
    const key = this.pod;
    const mine = { key, seen, found: isSame ? before.found : null, at: Date.now(), step: this.query() };
    this.#explained = mine;
    const path = `explain/${encodeURIComponent(pending.namespace)}/${encodeURIComponent(pending.name)}`;
    try {
      const url = `${path}?nodes=20${this.query()}`;
      const answer = await fetch(url, { headers: this.headers(), cache: "no-store" });
      mine.found = answer.ok ? await answer.json() : { problem: await problem(answer) };
    } catch {
      mine.found = { problem: "the extender does not respond" };
    }
    if (this.#explained === mine && this.pod === key) this.update();
  }

  #fill(what, parts) {
    const text = JSON.stringify(what, (_, value) => (value instanceof Map ? [...value] : value));
    if (text === this.#shown) return;
    this.#shown = text;
    this.body.replaceChildren(...parts());
  }
}
