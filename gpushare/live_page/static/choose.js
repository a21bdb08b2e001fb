// Which nodes, Pending pods and gangs are shown, in which order, and the sums over all of them (pure).

import { byName, gangName } from "./format.js";
import { takesNew } from "./store.js";

// The orders of nodes and of Pending pods; within equal ones by name.
export const NODE_ORDERS = {
  name: ["name", null],
  free: ["most free", (a, b) => b.free - a.free],
  largest: ["most free on one GPU", (a, b) => b.largest - a.largest],
  full: ["least free", (a, b) => a.free - b.free],
};
export const POD_ORDERS = {
  queue: ["next in the queue", (a, b) => (a.place ?? Infinity) - (b.place ?? Infinity) || byAge(a, b)],
  oldest: ["pending longest", byAge],
  newest: ["newest", (a, b) => byAge(b, a)],
  largest: ["largest request", (a, b) => b.mib - a.mib || byAge(a, b)],
  name: ["name", byName],
};

export const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

export const isFiltered = ({ q, ns, problems }) => Boolean(q.trim() || ns || problems);

// Return the matching nodes and pods in order, and the matching gangs.
export function select(store, { q, ns, problems, sort, order }) {
  const words = wordsOf(q);
  const has = (each) => words.every((word) => each.text.includes(word));
  const nodes = store.byName().filter(
    (node) => has(node) && (!ns || node.namespaces.has(ns)) && (!problems || node.problems.length > 0),
  );
  const [, compare] = NODE_ORDERS[sort];
  if (compare) nodes.sort(compare);
  const pods = [...store.pods.values()].filter((pod) => has(pod) && (!ns || pod.namespace === ns));
  pods.sort(POD_ORDERS[order][1]);
  const gangs = [...store.gangs.values()].filter((gang) => has(gang) && (!ns || gang.namespace === ns));
  return { nodes, pods, gangs };
}

// Return the Pending pods as rows, in the same order: the members of a gang are one, with all of
// them that are Pending, where the first one is.
export function rows(store, pods) {
  const members = new Map();
  for (const pod of store.pods.values()) {
    if (!pod.gang) continue;
    if (!members.has(pod.gang)) members.set(pod.gang, []);
    members.get(pod.gang).push(pod);
  }
  const found = new Map();
  for (const pod of pods) {
    if (!pod.gang) found.set(pod.uid, pod);
    else if (!found.has(pod.gang)) found.set(pod.gang, gangRow(store.gangs.get(pod.gang), members.get(pod.gang), pod));
  }
  return [...found.values()];
}

function gangRow(gang, members, first) {
  const mib = members.reduce((sum, pod) => sum + pod.mib, 0);
  const units = members.reduce((sum, pod) => sum + pod.units, 0);
  const created = members.reduce((oldest, pod) => (pod.created < oldest ? pod.created : oldest), first.created);
  const own = first.own ? first : members.find((pod) => pod.own);
  const said = gang ? [gang.said, own && `Pod ${own.name}: ${own.own}`].filter(Boolean).join(" ") : first.why;
  return { ...first, uid: first.gang, name: gangName(first.gang), members, mib, units, created, why: said };
}

// Return how many pods these rows have, and how many of them are in gangs.
export function countsOf(found) {
  const gangs = found.filter((row) => row.members);
  const inGangs = gangs.reduce((sum, row) => sum + row.members.length, 0);
  return { pods: found.length - gangs.length + inGangs, inGangs, gangs: gangs.length };
}

// Return what the whole cluster has.
export function sums(store) {
  const sum = { nodes: store.nodes.size, cards: 0, broken: 0, cordoned: 0, problems: 0 };
  Object.assign(sum, { used: 0, total: 0, largest: 0, lost: 0, pending: store.pods.size });
  for (const node of store.nodes.values()) {
    sum.cards += node.cards.length;
    sum.used += node.used;
    sum.total += node.total;
    sum.largest = Math.max(sum.largest, node.largest);
    if (node.problems.length > 0) sum.problems += 1;
    for (const card of node.cards) {
      if (card.health !== "healthy") sum.broken += 1;
      else if (card.cordoned) sum.cordoned += 1;
      if (!takesNew(card)) sum.lost += Math.max(0, card.total - card.used - card.reserved);
    }
  }
  return sum;
}

// Return what each namespace uses and waits for, the largest first; with `only`, this one alone.
export function namespaces(store, only) {
  const found = new Map();
  const of = (name) => {
    if (!found.has(name)) found.set(name, { name, mib: 0, pods: 0, pending: 0, asked: 0 });
    return found.get(name);
  };
  for (const node of store.nodes.values()) {
    for (const [name, { mib, pods }] of node.namespaces) {
      of(name).mib += mib;
      of(name).pods += pods;
    }
  }
  for (const pod of store.pods.values()) {
    of(pod.namespace).pending += 1;
    of(pod.namespace).asked += pod.mib;
  }
  const unit = store.about.unitMiB;
  for (const [name, { used, limit, models, problem }] of store.quotas) {
    const parts = Object.entries(models).map(([model, each]) => [model, each.used * unit, each.limit * unit]);
    if (limit !== null) parts.unshift(["", used * unit, limit * unit]);
    of(name).quota = { parts, problem };
  }
  if (only) of(only);
  return [...found.values()].sort((a, b) => b.mib - a.mib || b.asked - a.asked || byName(a, b));
}

function byAge(a, b) {
  return a.created < b.created ? -1 : a.created > b.created ? 1 : byName(a, b);
}
