// A dialog with the details of one node or one pending pod, kept up to date.

import { amount, counted } from "./format.js";
import { cardState, element, reason, requested } from "./rows.js";
import { problem } from "./stream.js";

export class Detail {
  #of = null; // {kind, key}
  #last = "";

  constructor(dialog, headers) {
    this.dialog = dialog;
    this.headers = headers;
    [this.title, this.body] = dialog.querySelectorAll("h2, #detail-body");
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      this.#of = null;
    });
  }

  openNode(node) {
    this.#open("node", node.name, node.name);
    this.#fill(nodeParts(node), node.name + JSON.stringify(node));
  }

  async openPod(pod) {
    this.#open("pod", pod.uid, `${pod.namespace}/${pod.name}`);
    this.#fill(podParts(pod, null), JSON.stringify(pod));
    const path = `explain/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.name)}`;
    let found;
    try {
      const answer = await fetch(`${path}?nodes=8`, { headers: this.headers(), cache: "no-store" });
      found = answer.ok ? await answer.json() : { says: await problem(answer), nodes: [] };
    } catch {
      found = { says: "the extender does not respond", nodes: [] };
    }
    if (this.#of?.key === pod.uid) this.#fill(podParts(pod, found), "");
  }

  // Show the changes to the open node or pod, or that it no longer exists.
  follow(store) {
    if (this.#of === null) return;
    const { kind, key } = this.#of;
    const found = (kind === "node" ? store.nodes : store.pods).get(key);
    if (found === undefined) {
      const text = kind === "node" ? "This node was deleted." : "This pod is no longer pending.";
      this.#fill([element("p", "why", text)], text);
    } else if (kind === "node") {
      this.#fill(nodeParts(found), key + JSON.stringify(found));
    }
  }

  #open(kind, key, title) {
    this.#of = { kind, key };
    this.title.textContent = title;
    if (!this.dialog.open) this.dialog.showModal();
    this.title.focus();
  }

  #fill(parts, text) {
    if (text && text === this.#last) return;
    this.#last = text;
    this.body.replaceChildren(...parts);
  }
}

function nodeParts(node) {
  const parts = [];
  if (node.problem) parts.push(element("p", "why problem", node.problem));
  const used = `${amount(node.usedGPU)} of ${amount(node.totalGPU)} units used`;
  const unit = node.unitMiB ? `, one unit is ${amount(node.unitMiB)} MiB` : "";
  parts.push(element("p", "quiet", `${counted(node.cards.length, "GPU")}, ${used}${unit}`));
  const cards = node.cards.map((card) => [
    `${card.id}`,
    card.model || "GPU",
    cardState(card) || "healthy",
    amount(card.usedGPU),
    amount(card.reserved),
    amount(card.free),
    amount(card.totalGPU),
    card.uuid,
  ]);
  const heads = ["GPU", "Model", "State", "Used", "Reserved", "Free", "Units", "UUID"];
  parts.push(table("GPUs", heads, cards, new Set([3, 4, 5, 6])));
  const pods = new Map();
  for (const card of node.cards) {
    for (const pod of card.pods) {
      const key = `${pod.namespace}/${pod.name}`;
      const row = pods.get(key) ?? [pod.name, pod.namespace, 0, []];
      row[2] += pod.usedGPU;
      row[3].push(card.id);
      pods.set(key, row);
    }
  }
  const rows = [...pods.values()].map(([name, space, units, on]) => [
    name,
    space,
    amount(units),
    on.join(", "),
  ]);
  for (const pod of node.unplaced) {
    rows.push([pod.name, pod.namespace, amount(pod.units), `unknown: ${pod.why}`]);
  }
  if (rows.length > 0) {
    parts.push(table("Pods", ["Pod", "Namespace", "Units", "On GPU"], rows, new Set([2])));
  } else {
    parts.push(element("p", "quiet", "No pod has a share on this node."));
  }
  return parts;
}

// `found` is the extender's explanation; null until it arrives.
function podParts(pod, found) {
  const parts = [element("p", "quiet", `requests ${requested(pod)}, priority ${pod.priority}`)];
  parts.push(element("p", "why", found?.says || pod.why || reason(pod)));
  if (pod.by === "kube-scheduler") {
    parts.push(element("p", "quiet", `From kube-scheduler: ${pod.why}`));
  }
  if (found === null) return parts;
  if (found.nodes.length > 0) parts.push(element("h3", "", "Closest nodes"));
  for (const node of found.nodes) {
    const rules = [...node.forbidden, node.why].filter(Boolean).join("; ") || "fits";
    const name = element("strong", "", node.name);
    parts.push(element("p", "near", "", [name, ` ${rules}`]));
    if (node.forbidden.length > 0) continue; // its GPUs do not matter
    const rows = node.cards.map((card) => [
      `${card.index}`,
      amount(card.free),
      amount(card.needed),
      card.why || "has room",
    ]);
    parts.push(table("", ["GPU", "Free", "Needed", "Why not"], rows, new Set([1, 2])));
  }
  if (found.nodesLeftOut) {
    parts.push(element("p", "near quiet", `and ${counted(found.nodesLeftOut, "more node")}`));
  }
  return parts;
}

function table(caption, heads, rows, numbers) {
  const cell = (tag) => (text, place) => element(tag, numbers.has(place) ? "number" : "", text);
  const head = element("thead", "", "", [element("tr", "", "", heads.map(cell("th")))]);
  const body = element("tbody", "", "", rows.map((row) => element("tr", "", "", row.map(cell("td")))));
  const parts = caption ? [element("caption", "", caption), head, body] : [head, body];
  for (const th of head.querySelectorAll("th")) th.scope = "col";
  return element("div", "wide", "", [element("table", "", "", parts)]);
}
