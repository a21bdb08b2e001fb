// What the dialog says about a pod: where it runs, or why it is Pending and what would help.

import { element, link, table } from "../dom.js";
import { age, counted, exactly, freeGiB, gangName, neededGiB, number } from "../format.js";
import { reason, requested } from "../lists/pod-row.js";
import { computing, exact, held, usedBy, whyNotMeasured } from "./node.js";

const MATES_SHOWN = 20;
const GROUP_SHOWN = 5; // nodes with the same reason

export function runningParts(share, node, key, measured) {
  const facts = [["Node", link({ node: share.node }, "", share.node)]];
  const models = node.cards.filter((card) => share.cards.includes(card.id)).map((card) => card.model);
  if (share.why) facts.push(["GPU", `unknown: ${share.why}`]);
  else {
    const model = [...new Set(models)].filter(Boolean).join(", ");
    facts.push([share.cards.length > 1 ? "GPUs" : "GPU", `${share.cards.join(", ")}${model && ` (${model})`}`]);
  }
  facts.push(["Uses", held(share)]);
  if (measured?.cards) {
    facts.push(["Really uses", usedBy(measured, key, share, node)]);
    facts.push(["SM utilization", computing(measured, key, share, node)]);
  }
  const rows = facts.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", "", [value])]);
  const parts = [element("dl", "facts", "", rows), ...whyNotMeasured(measured)];
  const others = [...node.shares].filter(
    ([name, other]) => name !== key && other.cards.some((id) => share.cards.includes(id)),
  );
  if (others.length === 0) return parts;
  const shown = others.map(([name, other]) => [
    link({ pod: name }, "", other.name),
    other.namespace,
    held(other),
    other.cards.join(", "),
  ]);
  parts.push(table("Pods on the same GPU", ["Pod", "Namespace", "Uses", "On GPU"], shown, new Set([2])));
  return parts;
}

// `found` is the explanation; null until it arrives. `mates` are the other Pending pods of its gang.
export function pendingParts(pod, found, mates) {
  const why = element("p", "why", `Pending: ${found?.says || reason(pod)}`);
  const asks = element("p", "quiet", [
    `requests ${requested(pod)}`,
    `priority ${pod.priority}`,
    pod.created && `pending for ${age(pod.created, pod.now)}`,
  ].filter(Boolean).join(" · "));
  asks.title = exactly(pod.units, pod.unit);
  const parts = [why, asks, ...others(pod, mates)];
  if (found?.queue) parts.push(element("p", "quiet", found.queue.text));
  if (found?.problem) parts.push(element("p", "quiet", `More is not known: ${found.problem}`));
  if (!found || found.problem) return parts;
  parts.push(...helping(found, pod));
  parts.push(...nearest(found, pod));
  return parts;
}

function others(pod, mates) {
  if (mates.length === 0) return [];
  const links = mates.slice(0, MATES_SHOWN).flatMap((each) => [" ", link({ pod: each.key }, "", each.name)]);
  const more = mates.length > MATES_SHOWN ? ` and ${number(mates.length - MATES_SHOWN)} more` : "";
  return [element("p", "quiet", `other Pending pods of gang ${gangName(pod.gang)}:`, [...links, more])];
}

// Return what makes room: pods that are evicted for it, a place that fits now, or pods whose end
// would help.
function helping({ pending, outlook }, pod) {
  if (pending?.evicting) return evictions(pending.evicting);
  const place = outlook?.fits && outlook.places[0];
  if (place) {
    const on = `GPU ${place.cards.join(", ")}`;
    return [element("p", "", "It would fit now on ", [link({ node: place.node }, "", place.node), `, ${on}.`])];
  }
  const evicted = outlook?.wouldHaveToGo;
  const ends = pending?.ends ?? evicted?.pods ?? [];
  if (ends.length === 0) return [];
  const all = !pending?.ends || pending.endsTogether;
  const more = (pending?.endsCount ?? 0) - ends.length;
  const title = all ? "It fits when all of these end" : "It fits when any one of these ends";
  const rows = ends.map((each) => [
    each.name ? link({ pod: `${each.namespace}/${each.name}` }, "", each.name) : "a pod that you may not see",
    each.namespace,
    exact(each.units * pod.unit, pod.unit),
    `${each.priority}${each.lower ? ", lower" : ""}`,
    each.terminating ? "is ending" : "running",
  ]);
  const heads = ["Pod", "Namespace", "Uses on each GPU", "Priority", "State"];
  const parts = [element("h3", "", title), table(title, heads, rows, new Set([2, 3]))];
  if (more > 0) parts.push(element("p", "quiet", `and ${counted(more, "more pod")}`));
  return parts;
}

function evictions({ pods = [] }) {
  const rows = pods.map((each) => [
    each.name ? link({ pod: `${each.namespace}/${each.name}` }, "", each.name) : "a pod that you may not see",
    each.namespace,
  ]);
  const title = "Evicted for it";
  return [element("h3", "", title), table(title, ["Pod", "Namespace"], rows)];
}

// Return the nearest nodes; those with the same reason together.
function nearest(found, pod) {
  const groups = new Map();
  for (const node of found.nodes) {
    const why = [...node.forbidden, node.why].filter(Boolean).join("; ") || "has room";
    groups.set(why, [...(groups.get(why) ?? []), node]);
  }
  if (groups.size === 0) return [];
  const parts = [element("h3", "", "Nearest nodes")];
  for (const [why, nodes] of groups) {
    const all = groups.size === 1 ? nodes.length + found.nodesLeftOut : (found.reasons[why] ?? nodes.length);
    parts.push(element("p", "near", "", [element("strong", "", counted(all, "node")), `: ${why}`]));
    const shown = nodes.slice(0, GROUP_SHOWN);
    if (nodes[0].forbidden.length > 0) parts.push(element("p", "quiet", shown.map((each) => each.name).join(", ")));
    else parts.push(table(why, ["Node", "Free on each GPU"], shown.map((node) => nearNode(node, pod))));
    if (all > shown.length) parts.push(element("p", "quiet", `and ${counted(all - shown.length, "more node")}`));
  }
  return parts;
}

function nearNode(node, pod) {
  const cards = node.cards.map((card) => {
    const isOther = card.why && card.why !== node.why && card.health !== "healthy";
    const made = element("span", `chip${card.fits ? " fits" : ""}`, isOther ? card.health : freeGiB(card.free * node.unitMiB));
    made.title = `GPU ${card.index}: ${exactly(card.free, node.unitMiB)} free, ${neededGiB(card.needed * pod.unit)} requested`;
    return made;
  });
  return [link({ node: node.name }, "", node.name), element("div", "chips", "", cards)];
}
