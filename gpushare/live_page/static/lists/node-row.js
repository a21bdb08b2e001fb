// The row of a node: a bar for each GPU, with a segment for each share.

import { attribute, element, keyed, pointTo, set } from "../dom.js";
import { counted, exactly, freeGiB, hue, neededGiB, usedGiB, utilization } from "../format.js";
import { takesNew } from "../store.js";

const CARD_WIDTH = 118; // the least at which an amount is readable
const LINE = 48;
const GAP = 10;
const NAME_WIDTH = 34; // of a segment, the least for a name
const AMOUNT_WIDTH = 116; // the least for a name and an amount

// Return the width of name, sum and margins; as in the style sheets.
const beside = () => (innerWidth <= 640 ? 28 : innerWidth <= 1000 ? 314 : 378);

function cardsPerLine(width, cards) {
  const fit = Math.max(1, Math.floor((width - beside()) / CARD_WIDTH));
  const lines = Math.ceil(cards / fit) || 1;
  return Math.ceil(cards / lines) || 1;
}

export function nodeHeight(node, width) {
  const lines = Math.ceil(node.cards.length / cardsPerLine(width, node.cards.length)) || 1;
  return lines * LINE + (innerWidth <= 640 ? 42 : 14);
}

// `look` has the words of the filter, the namespace, new shares, and the measured use.
export function showNode(row, node, width, look) {
  if (!row.firstChild) {
    const name = element("div", "name", "", [element("strong"), element("small")]);
    name.setAttribute("role", "rowheader");
    row.append(name, element("div", "cards"), element("div", "sum", "", [element("b"), element("small")]));
    row.children[2].setAttribute("role", "gridcell");
    row.children[1].setAttribute("role", "presentation");
  }
  const [name, cards, sum] = row.children;
  const many = node.cards.length;
  attribute(row, "aria-label", nodeLabel(node));
  set(name.children[0], node.name);
  attribute(name.children[0], "title", node.name);
  set(name.children[1], node.problem || `${many} × ${node.models.join(", ") || "GPU"}`);
  attribute(name.children[1], "title", name.children[1].textContent);
  name.classList.toggle("problem", Boolean(node.problem));
  const columns = cardsPerLine(width, many);
  cards.style.setProperty("--columns", columns);
  const wide = (width - beside() - GAP * (columns - 1)) / columns;
  const measured = look.measured(node.name);
  keyed(cards, node.cards, (card) => card.uuid, (box, card) => {
    showCard(box, card, wide, look, measured?.get(card.uuid));
  });
  const isSearched = Boolean(look.ns || cards.querySelector(".found"));
  row.classList.toggle("has-found", isSearched);
  set(sum.children[0], many ? freeGiB(node.free) : "");
  set(sum.children[1], many ? `free of ${freeGiB(node.total)}` : "");
}

export function nodeLabel(node) {
  const parts = [node.name, counted(node.cards.length, "GPU")];
  parts.push(`${usedGiB(node.used, node.total)} of ${freeGiB(node.total)} used`);
  parts.push(counted(node.shares.size, "pod"), ...node.problems);
  return parts.join(", ");
}

export function cardState(card) {
  const words = [];
  if (card.health !== "healthy") words.push(card.goneSince ? "gone" : card.health);
  if (card.cordoned) words.push("cordoned");
  if (card.over) words.push(`${neededGiB(card.over)} over`);
  return words.join(", ");
}

function showCard(box, card, wide, look, measured) {
  if (!box.firstChild) {
    box.className = "card";
    box.setAttribute("role", "gridcell");
    const name = element("b", "", "", [element("span", "unseen", "GPU "), element("span")]);
    const head = element("div", "head", "", [name, element("em"), element("span")]);
    box.append(head, element("div", "bar"));
  }
  const [head, bar] = box.children;
  const state = cardState(card);
  box.classList.toggle("unhealthy", card.health !== "healthy");
  box.classList.toggle("cordoned", card.cordoned);
  set(head.children[0].lastChild, `${card.id}`);
  set(head.children[1], state);
  set(head.children[2], takesNew(card) ? (card.free ? `${freeGiB(card.free)} free` : "full") : "");
  const whole = Math.max(card.total, ...card.segments.map((each) => each.at + each.mib));
  keyed(bar, card.segments, (each) => each.key, (part, each) => {
    const [left, share] = [each.at, each.mib].map((mib) => (whole ? (100 * mib) / whole : 0));
    showSegment(part, each, left, share, look, measured);
    part.classList.toggle("narrow", (share * wide) / 100 < NAME_WIDTH);
    part.classList.toggle("roomy", (share * wide) / 100 > AMOUNT_WIDTH);
  }, makeSegment);
}

function makeSegment({ kind }) {
  if (kind === "pod") return element("a");
  const made = element("div");
  made.setAttribute("role", "img");
  return made;
}

function spoken({ kind, key, label }) {
  if (kind === "pod") return key;
  return kind === "unplaced" ? `${label} on an unknown GPU` : label;
}

function showSegment(part, segment, left, share, look, measured) {
  const really = measured?.pods[segment.key];
  const computing = utilization(measured?.sm?.[segment.key]);
  part.className = `segment ${segment.kind}${part.classList.contains("active") ? " active" : ""}`;
  const holds = neededGiB(segment.mib);
  const uses = (really === undefined ? "" : `, really uses ${neededGiB(really)}`) + (computing && `, SM ${computing}`);
  if (!part.firstChild) part.append(element("span"), " ", element("small"));
  if (segment.kind === "pod") {
    part.style.setProperty("--h", hue(segment.key));
    part.tabIndex = -1; // the arrow keys go there
    pointTo(part, { pod: segment.key });
    const text = segment.key.toLowerCase();
    const isOf = look.ns ? segment.key.startsWith(`${look.ns}/`) : false;
    part.classList.toggle("found", isOf || look.words.some((word) => text.includes(word)));
    part.classList.toggle("fresh", look.fresh.has(segment.key));
    showUse(part, segment, really);
  }
  attribute(part, "aria-label", `${spoken(segment)} ${holds}${uses}`);
  part.style.left = `${left}%`;
  part.style.width = `${share}%`;
  attribute(part, "title", `${spoken(segment)}: ${holds}${uses} (${exactly(segment.units, segment.unit)})`);
  set(part.children[0], segment.label);
  set(part.children[1], holds);
}

// Draw what a pod really uses as a line in its segment.
function showUse(part, segment, really) {
  part.classList.toggle("measured", really !== undefined);
  if (really === undefined) return;
  const used = segment.mib ? Math.min(100, (100 * really) / segment.mib) : 100;
  part.style.setProperty("--really", `${used}%`);
  part.classList.toggle("exceeds", really > segment.mib);
}
