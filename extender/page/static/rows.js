// The rows of both lists. Users choose the names in them: they are set as text, never parsed.

import { age, amount, counted, hue } from "./format.js";
import { takesNew } from "./store.js";

const CARD_WIDTH = 118; // the least at which an amount is readable
const LINE = 44;
const MARGINS = 358; // name and sum of a row
const GAP = 10;
const NAME_WIDTH = 34; // of a segment, the least for a name
const AMOUNT_WIDTH = 116; // the least for a name and an amount

export function element(tag, className = "", text = "", children = []) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function cardsPerLine(width, cards) {
  const fit = Math.max(1, Math.floor((width - MARGINS) / CARD_WIDTH));
  const lines = Math.ceil(cards / fit) || 1;
  return Math.ceil(cards / lines) || 1;
}

export function nodeHeight(node, width) {
  const lines = Math.ceil(node.cards.length / cardsPerLine(width, node.cards.length)) || 1;
  return lines * LINE + 14;
}

export function showNode(row, node, width, words) {
  if (!row.firstChild) {
    const name = element("div", "name", "", [element("strong"), element("small")]);
    name.setAttribute("role", "rowheader");
    row.append(name, element("div", "cards"), element("div", "sum"));
    row.children[2].setAttribute("role", "gridcell");
    row.children[1].setAttribute("role", "presentation");
  }
  const [name, cards, sum] = row.children;
  const many = node.cards.length;
  row.setAttribute("aria-label", nodeLabel(node));
  set(name.children[0], node.name);
  set(name.children[1], node.problem || `${many} × ${node.models.join(", ") || "GPU"}`);
  name.classList.toggle("problem", Boolean(node.problem));
  const columns = cardsPerLine(width, many);
  cards.style.setProperty("--columns", columns);
  const wide = (width - MARGINS - GAP * (columns - 1)) / columns;
  keyed(cards, node.cards, (card) => card.uuid, (box, card) => showCard(box, card, wide, words));
  row.classList.toggle("has-found", cards.querySelector(".found") !== null);
  set(sum, `${amount(node.free)} free`);
}

function nodeLabel(node) {
  const parts = [node.name, counted(node.cards.length, "GPU")];
  parts.push(`${amount(node.usedGPU)} of ${amount(node.totalGPU)} units used`);
  parts.push(counted(node.pods, "pod"));
  if (node.problem) parts.push(node.problem);
  return parts.join(", ");
}

export function cardState(card) {
  const words = [];
  if (card.health !== "healthy") words.push(card.health);
  if (card.cordoned) words.push("cordoned");
  const over = card.usedGPU + card.reserved - card.totalGPU;
  if (over > 0) words.push(`${amount(over)} over`);
  return words.join(", ");
}

function showCard(box, card, wide, words) {
  if (!box.firstChild) {
    box.className = "card";
    box.setAttribute("role", "gridcell");
    const head = element("div", "head", "", [element("b"), element("em"), element("span")]);
    box.append(head, element("div", "bar"));
  }
  const [head, bar] = box.children;
  const state = cardState(card);
  box.classList.toggle("unhealthy", card.health !== "healthy");
  box.classList.toggle("cordoned", card.cordoned);
  set(head.children[0], `${card.id}`);
  set(head.children[1], state);
  set(head.children[2], takesNew(card) ? (card.free ? `${amount(card.free)} free` : "full") : "");
  const parts = card.segments.map((each) => `${spoken(each)} ${amount(each.units)}`);
  const free = `${amount(card.free)} of ${amount(card.totalGPU)} free`;
  const label = [`GPU ${card.id}`, state, takesNew(card) ? free : "takes no new pods"];
  box.setAttribute("aria-label", [...label, ...parts].filter(Boolean).join(", "));
  const whole = Math.max(card.totalGPU, card.segments.reduce((sum, each) => sum + each.units, 0));
  let left = 0;
  keyed(bar, card.segments, (each) => each.key, (part, each) => {
    const share = whole ? (100 * each.units) / whole : 0;
    showSegment(part, each, left, share, words);
    part.classList.toggle("narrow", (share * wide) / 100 < NAME_WIDTH);
    part.classList.toggle("roomy", (share * wide) / 100 > AMOUNT_WIDTH);
    left += share;
  });
}

function spoken({ kind, key, label }) {
  if (kind === "pod") return key;
  return kind === "unplaced" ? `${label} on an unknown GPU` : label;
}

function showSegment(part, segment, left, share, words) {
  part.className = `segment ${segment.kind}`;
  if (segment.kind === "pod") {
    part.style.setProperty("--h", hue(segment.key));
    const text = segment.key.toLowerCase();
    part.classList.toggle("found", words.some((word) => text.includes(word)));
  }
  part.style.left = `${left}%`;
  part.style.width = `${share}%`;
  part.title = `${spoken(segment)}: ${amount(segment.units)}`;
  if (!part.firstChild) part.append(element("span"), element("small"));
  set(part.children[0], segment.label);
  set(part.children[1], amount(segment.units));
}

const LETTER = 6.6; // pixels; wider than most
const REASON_LINES = 3;

export function podHeight(pod, width) {
  const lines = Math.ceil((reason(pod).length * LETTER) / Math.max(100, width - 40));
  return 44 + 17 * Math.max(1, Math.min(REASON_LINES, lines));
}

export function showPod(row, pod) {
  if (!row.firstChild) {
    const name = element("div", "name", "", [element("strong"), element("small")]);
    name.setAttribute("role", "rowheader");
    row.append(name, element("div", "asks"), element("div", "why"));
    for (const cell of [...row.children].slice(1)) cell.setAttribute("role", "gridcell");
  }
  const [name, asks, why] = row.children;
  set(name.children[0], pod.name);
  set(name.children[1], pod.namespace);
  const waited = pod.created ? ` · ${age(pod.created)}` : "";
  set(asks, `${requested(pod)}${waited}`);
  set(why, reason(pod));
  row.classList.toggle("refused", pod.state === "refused");
  row.setAttribute("aria-label", `${pod.namespace}/${pod.name}, ${requested(pod)}, ${reason(pod)}`);
}

export function requested(pod) {
  if (!pod.units) return "invalid amount";
  const on = pod.cards > 1 ? ` on ${pod.cards} GPUs` : "";
  return `${counted(pod.units, "unit")}${on}`;
}

export function reason(pod) {
  const ours = Object.entries(pod.reasons).sort(([, a], [, b]) => b - a);
  if (ours.length > 0) {
    return ours.map(([text, count]) => `${counted(count, "node")}: ${text}`).join("; ");
  }
  const state = pod.state === "waiting" ? "" : `${pod.state}: `;
  return state + (pod.why || "no reason from kube-scheduler yet");
}

// Give `box` one child for each item, and reuse the child of the same key.
function keyed(box, items, key, show) {
  const old = new Map([...box.children].map((each) => [each.dataset.key, each]));
  let next = box.firstChild;
  for (const item of items) {
    const name = key(item);
    let child = old.get(name);
    if (child === undefined) {
      child = element("div");
      child.dataset.key = name;
    }
    old.delete(name);
    show(child, item);
    if (child === next) next = next.nextSibling;
    else box.insertBefore(child, next);
  }
  for (const child of old.values()) child.remove();
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
