// The state of the cluster, from the stream's events.

import { byName } from "./format.js";

// Add to a node of the stream its sums, its models and the text that a filter searches.
function read(wire) {
  const unplaced = wire.unplaced.reduce((sum, pod) => sum + pod.units, 0);
  const cards = wire.devs.map((card) => ({ ...card, unplaced, segments: segments(card, wire) }));
  const models = [...new Set(cards.map((card) => card.model).filter(Boolean))];
  const names = new Set();
  for (const pod of [...wire.unplaced, ...cards.flatMap((card) => card.pods)]) {
    names.add(`${pod.namespace}/${pod.name}`);
  }
  const text = [wire.name, ...models, ...names].join("\n").toLowerCase();
  const free = cards.reduce((sum, card) => sum + (takesNew(card) ? card.free : 0), 0);
  return { ...wire, cards, models, pods: names.size, text, free };
}

export const takesNew = (card) => card.health === "healthy" && !card.cordoned;

function segments(card, node) {
  const found = card.pods.map((pod) => ({
    kind: "pod",
    key: `${pod.namespace}/${pod.name}`,
    label: pod.name,
    units: pod.usedGPU,
  }));
  for (const pod of node.unplaced) {
    const key = `?${pod.namespace}/${pod.name}`;
    found.push({ kind: "unplaced", key, label: pod.name, units: pod.units });
  }
  if (card.reserved) {
    found.push({ kind: "reserved", key: "!", label: "reserved", units: card.reserved });
  }
  const used = found.reduce((sum, each) => sum + each.units, 0);
  const claimed = card.totalGPU - used - card.free;
  if (claimed > 0) found.push({ kind: "claimed", key: "~", label: "claimed", units: claimed });
  return found;
}

export class Store {
  nodes = new Map();
  pods = new Map();
  isWhole = false;
  #coming = null; // a new state, shown once it is complete
  #order = null; // the names of all nodes; null if it must be sorted again

  begin() {
    this.#coming = { nodes: new Map(), pods: new Map() };
  }

  // Apply changes; return whether the shown state has changed.
  change({ nodes = [], pods = [], goneNodes = [], gonePods = [] }) {
    const to = this.#coming ?? this;
    for (const wire of nodes) {
      if (!to.nodes.has(wire.name)) this.#order = null;
      to.nodes.set(wire.name, read(wire));
    }
    if (goneNodes.length > 0) this.#order = null;
    for (const pod of pods) {
      pod.text = `${pod.namespace}/${pod.name}`.toLowerCase();
      to.pods.set(pod.uid, pod);
    }
    for (const name of goneNodes) to.nodes.delete(name);
    for (const uid of gonePods) to.pods.delete(uid);
    return to === this;
  }

  whole() {
    if (this.#coming === null) return;
    ({ nodes: this.nodes, pods: this.pods } = this.#coming);
    this.#coming = this.#order = null;
    this.isWhole = true;
  }

  // Return the nodes by name and the pods by age that contain all of the words.
  select(words) {
    const has = (each) => words.every((word) => each.text.includes(word));
    this.#order ??= [...this.nodes.values()].sort(byName).map((node) => node.name);
    return {
      nodes: this.#order.map((name) => this.nodes.get(name)).filter(has),
      pods: [...this.pods.values()].filter(has).sort(byAge),
    };
  }

  sums() {
    const sums = { nodes: this.nodes.size, cards: 0, used: 0, total: 0, pending: this.pods.size };
    for (const node of this.nodes.values()) {
      sums.cards += node.cards.length;
      sums.used += node.usedGPU;
      sums.total += node.totalGPU;
    }
    return sums;
  }
}

function byAge(a, b) {
  return a.created < b.created ? -1 : a.created > b.created ? 1 : byName(a, b);
}
