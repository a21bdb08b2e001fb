// What the dialog says about a node: its GPUs, and the pods that hold their memory.

import { element, link, table } from "../dom.js";
import { counted, exactly, freeGiB, lasted, neededGiB, onEach, usedGiB, utilization } from "../format.js";
import { cardState } from "../lists/node-row.js";

// `measured` is what is really used of each GPU, or why that is not known.
export function nodeParts(node, measured) {
  const parts = [];
  for (const text of node.problems) parts.push(element("p", "why problem", text));
  const sum = `${usedGiB(node.used, node.total)} of ${freeGiB(node.total)} used, ${freeGiB(node.free)} free`;
  const models = node.models.join(", ");
  parts.push(element("p", "quiet", [counted(node.cards.length, "GPU"), models, sum].filter(Boolean).join(" · ")));
  if (node.cards.length > 0) parts.push(cards(node, measured));
  const none = node.used ? "Only pods of other namespaces use this node's GPUs." : "No pod uses this node's GPUs.";
  parts.push(node.shares.size > 0 ? pods(node, measured) : element("p", "quiet", none));
  parts.push(...whyNotMeasured(measured));
  return parts;
}

export function whyNotMeasured(measured) {
  return measured?.why ? [element("p", "quiet note", `Real use: ${measured.why}`)] : [];
}

// Return an amount of MiB with its exact units in a tooltip.
export function exact(mib, unit, write = neededGiB) {
  const made = element("span", "", write(mib));
  made.title = exactly(mib / unit, unit);
  return made;
}

// Return for how long a GPU is gone and will be remembered; empty if it is there.
function cardFate(card) {
  if (!card.goneSince) return "";
  const now = Math.floor(Date.now() / 1000);
  return `gone for ${lasted(now - card.goneSince)}, forgotten in ${lasted(card.forgottenAt - now)} if unused`;
}

// Return what keeps containers to their share of a GPU, with a tooltip why the driver does not.
function limit(card) {
  const made = element("span", "", { driver: "driver", framework: "frameworks", nothing: "none" }[card.enforces] ?? "–");
  made.title = card.whyNotMore;
  return made;
}

function cards(node, measured) {
  const heads = ["GPU", "State", "Used", "Free", "Size", "Model", "UUID"];
  const kept = [["Reserved", "reserved"], ["Claimed", "claimed"]].filter(([, name]) =>
    node.cards.some((card) => card[name]),
  );
  heads.splice(3, 0, ...kept.map(([head]) => head));
  if (measured?.cards) heads.splice(3, 0, "Really used");
  const limits = node.cards.some((card) => card.enforces);
  if (limits) heads.push("Memory limit");
  const rows = node.cards.map((card) => {
    const row = [
      `${card.id}`,
      cardFate(card) || cardState(card) || "healthy",
      exact(card.used, node.unit, (mib) => usedGiB(mib, card.total)),
      exact(card.free, node.unit, freeGiB),
      exact(card.total, node.unit, freeGiB),
      card.model || "GPU",
      card.uuid,
    ];
    row.splice(3, 0, ...kept.map(([, name]) => exact(card[name], node.unit)));
    if (measured?.cards) row.splice(3, 0, usedOf(measured.cards.get(card.uuid)));
    if (limits) row.push(limit(card));
    return row;
  });
  return table("GPUs", heads, rows, numbers(heads));
}

function pods(node, measured) {
  const heads = ["Pod", "Namespace", "Uses", "On GPU"];
  if (measured?.cards) heads.splice(3, 0, "Really uses", "SM utilization");
  const rows = [...node.shares].map(([key, share]) => {
    const row = [
      link({ pod: key }, "", share.name),
      share.namespace,
      held(share),
      share.why ? `unknown: ${share.why}` : share.cards.join(", "),
    ];
    if (measured?.cards) {
      row.splice(3, 0, usedBy(measured, key, share, node), computing(measured, key, share, node));
    }
    return row;
  });
  return table("Pods", heads, rows, numbers(heads));
}

// Return what a pod holds, with its exact units in a tooltip.
export function held(share) {
  const gpus = share.cards.length || 1;
  const made = exact(share.mib, share.unit, (mib) => onEach(mib / gpus, gpus));
  if (gpus > 1) made.title += " in total";
  return made;
}

// Return what a pod really uses of all its GPUs.
export function usedBy(measured, key, share, node) {
  const cards = cardsOf(share, node);
  const amounts = cards.map((card) => measured.cards.get(card.uuid)?.pods[key]).filter((mib) => mib !== undefined);
  return really(amounts, amounts.length < cards.length) + (cards.length > 1 && amounts.length ? " in total" : "");
}

// Return what part of the multiprocessors of each of its GPUs a pod uses.
export function computing(measured, key, share, node) {
  const known = cardsOf(share, node).map((card) => utilization(measured.cards.get(card.uuid)?.sm?.[key]));
  return known.some(Boolean) ? known.map((each) => each || "not known").join(", ") : "not known";
}

const cardsOf = (share, node) =>
  share.why ? node.cards : node.cards.filter((card) => share.cards.includes(card.id));

// Return what pods and other processes really use of a GPU.
function usedOf(card) {
  if (!card) return "not known";
  const amounts = Object.values(card.pods);
  if (card.others || !card.isPartial) amounts.push(card.others);
  return really(amounts, card.isPartial) + (card.others ? `, ${neededGiB(card.others)} of it outside of pods` : "");
}

function really(amounts, isPartial) {
  if (amounts.length === 0) return "not known";
  return (isPartial ? "at least " : "") + neededGiB(amounts.reduce((sum, each) => sum + each, 0));
}

function numbers(heads) {
  const amounts = new Set(["Used", "Free", "Size", "Reserved", "Claimed", "Uses", "Really used", "Really uses", "SM utilization"]);
  return new Set(heads.flatMap((name, place) => (amounts.has(name) ? [place] : [])));
}
