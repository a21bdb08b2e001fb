// The state of the cluster, from the stream's events. All amounts are MiB; `units` are exact.

import { byName, gangName } from "./format.js";

export const takesNew = (card) => card.health === "healthy" && !card.cordoned;

// Add to a node of the stream its sums, its problems, and the text that a filter searches.
function read(wire, clusterUnit) {
  const unit = wire.unitMiB || clusterUnit;
  const cards = wire.devs.map((card) => readCard(card, wire, unit));
  const models = [...new Set(cards.map((card) => card.model).filter(Boolean))];
  const shares = readShares(wire, unit);
  const text = [wire.name, ...models, ...shares.keys()].join("\n").toLowerCase();
  const usable = unit === clusterUnit ? cards.filter(takesNew).map((card) => card.free) : [];
  return {
    name: wire.name,
    problem: wire.problem,
    plugin: wire.plugin,
    unit,
    cards,
    models,
    shares,
    text,
    namespaces: byNamespace(shares),
    unplaced: wire.unplaced.map((pod) => ({ ...pod, mib: pod.units * unit })),
    total: wire.totalGPU * unit,
    used: wire.usedGPU * unit,
    free: usable.reduce((sum, each) => sum + each, 0),
    largest: Math.max(0, ...usable),
    problems: problems(wire, cards, unit, clusterUnit),
  };
}

function readCard(card, node, unit) {
  const parts = segments(card, node, unit);
  return {
    id: card.id,
    uuid: card.uuid,
    model: card.model,
    health: card.health,
    cordoned: card.cordoned,
    enforces: card.enforces || "", // an extender or a plugin of an earlier version does not tell it
    whyNotMore: card.whyNotMore || "",
    goneSince: card.goneSince || 0, // seconds since 1970; an extender of an earlier version does not tell it
    forgottenAt: card.forgottenAt || 0,
    units: card.totalGPU,
    total: card.totalGPU * unit,
    used: card.usedGPU * unit,
    reserved: card.reserved * unit,
    claimed: card.claimed * unit,
    free: card.free * unit,
    over: Math.max(0, card.usedGPU + card.reserved - card.totalGPU) * unit,
    segments: parts,
  };
}

// Return the parts of a GPU's bar: `at` is where one begins, in MiB.
function segments(card, node, unit) {
  const found = [];
  let used = 0; // units
  const add = (kind, key, label, units, at = used) => {
    found.push({ kind, key, label, units, unit, mib: units * unit, at: at * unit });
    used = Math.max(used, at + units);
  };
  for (const pod of card.pods) add("pod", `${pod.namespace}/${pod.name}`, pod.name, pod.usedGPU);
  // A page of one namespace has no pods of others, but all that is used.
  if (card.usedGPU > used) add("others", "*", "other pods", card.usedGPU - used);
  for (const pod of node.unplaced.filter((each) => each.onEveryGPU)) add("unplaced", `?${pod.namespace}/${pod.name}`, pod.name, pod.units);
  if (card.unplacedOfOthers) add("unplaced", "?", "other pods", card.unplacedOfOthers);
  if (card.reserved) add("reserved", "!", "reserved", card.reserved);
  if (!card.claimed) return found;
  // What others use until they have ended is drawn on top of them.
  const unused = Math.min(card.claimed, Math.max(0, card.totalGPU - used));
  const shared = Math.min(card.claimed - unused, used);
  if (shared) add("shared", "~~", "claimed and still used", shared, used - shared);
  if (unused) add("claimed", "~", "claimed", unused);
  return found;
}

// Return each pod of a node with its GPUs, by namespace and name.
function readShares(wire, unit) {
  const found = new Map();
  for (const card of wire.devs) {
    for (const pod of card.pods) {
      const key = `${pod.namespace}/${pod.name}`;
      const share = found.get(key) ?? { ...pod, node: wire.name, unit, units: 0, mib: 0, cards: [] };
      share.units += pod.usedGPU;
      share.mib += pod.usedGPU * unit;
      share.cards.push(card.id);
      found.set(key, share);
    }
  }
  for (const { name, namespace, units, why } of wire.unplaced) {
    const share = { name, namespace, node: wire.name, unit, units, mib: units * unit, cards: [], why };
    found.set(`${namespace}/${name}`, share);
  }
  return found;
}

function byNamespace(shares) {
  const found = new Map();
  for (const { namespace, mib } of shares.values()) {
    const sum = found.get(namespace) ?? { mib: 0, pods: 0 };
    found.set(namespace, { mib: sum.mib + mib, pods: sum.pods + 1 });
  }
  return found;
}

function problems(wire, cards, unit, clusterUnit) {
  const found = wire.problem ? [wire.problem] : [];
  if (unit !== clusterUnit) {
    found.push(`counts in units of ${unit} MiB, the cluster in units of ${clusterUnit} MiB: no new pods`);
  }
  for (const card of cards) {
    if (card.health !== "healthy") found.push(`GPU ${card.id} is ${card.health}`);
    if (card.over) found.push(`GPU ${card.id} has more pods than memory`);
  }
  for (const pod of wire.unplaced) found.push(`${pod.name} is on ${pod.onEveryGPU ? "an unknown" : "no"} GPU`);
  return found;
}

// `found` has the uids of the pods at each place, in order. A row is drawn again if its pod is another object.
function replacePlaces(to, found) {
  to.places = new Map(found.flatMap((uids, before) => uids.map((uid) => [uid, before + 1])));
  for (const [uid, pod] of to.pods) {
    const place = to.places.get(uid);
    if (pod.place !== place) to.pods.set(uid, { ...pod, place });
  }
}

export class Store {
  nodes = new Map();
  pods = new Map();
  gangs = new Map();
  moreGangs = 0; // that are not sent
  quotas = new Map(); // by namespace, in units
  places = new Map(); // in the queue, by uid
  about = { unitMiB: 1 };
  history = null;
  isWhole = false;
  #coming = null; // a new state, shown once it is complete
  #names = null; // of all nodes, sorted; null if they must be sorted again

  begin(about) {
    this.#coming = {
      nodes: new Map(),
      pods: new Map(),
      gangs: new Map(),
      moreGangs: 0,
      quotas: new Map(),
      places: new Map(),
      about: { ...this.about, ...about },
    };
  }

  // Apply changes; return whether the shown state has changed.
  change({ nodes = [], pods = [], goneNodes = [], gonePods = [], gangs = [], goneGangs = [], moreGangs = [], quotas = [], goneQuotas = [], queue = [] }) {
    const to = this.#coming ?? this;
    // A simulation has its own time, from 1970.
    const now = to.about.simulation ? 1000 * to.about.simulation.seconds : undefined;
    for (const wire of nodes) {
      if (!to.nodes.has(wire.name)) this.#names = null;
      to.nodes.set(wire.name, read(wire, to.about.unitMiB));
    }
    if (goneNodes.length > 0) this.#names = null;
    for (const pod of pods) {
      const key = `${pod.namespace}/${pod.name}`;
      const unit = to.about.unitMiB;
      const place = to.places.get(pod.uid);
      const text = (pod.gang ? `${key}\n${gangName(pod.gang)}` : key).toLowerCase();
      to.pods.set(pod.uid, { ...pod, key, text, unit, mib: pod.units * unit, now, place });
    }
    for (const gang of gangs) {
      const text = `${gang.namespace}/${gang.name}`.toLowerCase();
      to.gangs.set(gang.key, { ...gang, said: gang.text, text, now });
    }
    for (const key of goneGangs) to.gangs.delete(key);
    for (const quota of quotas) to.quotas.set(quota.namespace, quota);
    for (const name of goneQuotas) to.quotas.delete(name);
    for (const more of moreGangs) to.moreGangs = Object.values(more).reduce((sum, each) => sum + each, 0);
    for (const found of queue) replacePlaces(to, found);
    for (const name of goneNodes) to.nodes.delete(name);
    for (const uid of gonePods) to.pods.delete(uid);
    return to === this;
  }

  whole() {
    if (this.#coming === null) return;
    Object.assign(this, this.#coming);
    this.#coming = this.#names = null;
    this.isWhole = true;
  }

  // Return all nodes by name.
  byName() {
    this.#names ??= [...this.nodes.values()].sort(byName).map((node) => node.name);
    return this.#names.map((name) => this.nodes.get(name));
  }

  pending(key) {
    for (const pod of this.pods.values()) if (pod.key === key) return pod;
    return null;
  }

  // Return the other Pending members of a pod's gang, by name.
  mates(pod) {
    if (!pod.gang) return [];
    return [...this.pods.values()].filter((each) => each.gang === pod.gang && each.key !== pod.key).sort(byName);
  }

  // Return the share of a pod that is on a node.
  share(key) {
    for (const node of this.nodes.values()) {
      const found = node.shares.get(key);
      if (found) return found;
    }
    return null;
  }
}
