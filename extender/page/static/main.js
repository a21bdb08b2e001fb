// The live page: what is known, what is shown of it, and what the keys do.

import { Detail } from "./detail.js";
import { amount, counted } from "./format.js";
import { List } from "./list.js";
import { nodeHeight, podHeight, showNode, showPod } from "./rows.js";
import { Store } from "./store.js";
import { Follower } from "./stream.js";
import { switchedBy } from "./theme.js";

const AGES_MS = 10_000;
const SAY_MS = 1_000; // after the last letter of a filter

const at = (id) => document.getElementById(id);
const store = new Store();
const filter = at("filter");
let words = [];

const nodes = new List(at("nodes"), {
  key: (node) => node.name,
  height: nodeHeight,
  show: (row, node, width) => showNode(row, node, width, words),
  open: (node) => detail.openNode(node),
});
const waiting = new List(at("waiting"), {
  key: (pod) => pod.uid,
  height: podHeight,
  show: showPod,
  open: (pod) => detail.openPod(pod),
});
const follower = new Follower("changes", heard, connection);
const detail = new Detail(at("detail"), () => follower.headers);

let isDue = false;
let heardAt = 0;
function heard(kind, data) {
  heardAt = Date.now();
  if (kind === "begin") store.begin();
  if (kind === "whole") store.whole();
  const isOther = kind === "whole" || (kind === "changes" && store.change(data));
  if (!isOther || isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  const found = store.select(words);
  const sums = store.sums();
  nodes.set(found.nodes);
  waiting.set(found.pods);
  at("sum-nodes").textContent = amount(sums.nodes);
  at("sum-cards").textContent = amount(sums.cards);
  const part = sums.total ? Math.round((100 * sums.used) / sums.total) : 0;
  at("sum-used").textContent = `${part} %`;
  at("sum-used").style.setProperty("--part", `${Math.min(100, part)}%`);
  at("sum-used").title = `${amount(sums.used)} of ${amount(sums.total)} units`;
  at("sum-waiting").textContent = amount(sums.waiting);
  at("nodes-count").textContent = shownOf(found.nodes.length, sums.nodes);
  at("waiting-count").textContent = shownOf(found.pods.length, sums.waiting);
  at("nodes").dataset.empty = words.length ? "Nothing matches." : "No node shares GPUs by memory.";
  at("waiting").dataset.empty = words.length ? "Nothing matches." : "No pod waits.";
  document.body.classList.toggle("whole", store.isWhole);
  detail.follow(store);
}

function shownOf(shown, all) {
  return shown === all ? amount(all) : `${amount(shown)} of ${amount(all)}`;
}

function say(text) {
  if (at("say").textContent !== text) at("say").textContent = text;
}

const STATES = { connecting: "connecting", live: "live", lost: "not live", refused: "no access" };
function connection(state, why) {
  const shown = at("state");
  if (state === "connecting" && shown.dataset.state === "lost") return; // it is tried in silence
  shown.textContent = STATES[state];
  shown.title = why;
  shown.dataset.state = state;
  document.body.classList.toggle("stale", state !== "live");
  at("sign-in").hidden = state !== "refused";
  if (state === "refused") {
    at("sign-in-why").textContent = why;
    at("token").focus();
  }
  at("trouble").hidden = state !== "lost";
  if (state === "lost") {
    const known = heardAt ? ` What is shown is of ${new Date(heardAt).toLocaleTimeString()}.` : "";
    at("trouble").textContent = `Not live: ${why}. It is tried again.${known}`;
    say(`Not live any more: ${why}`);
  }
  if (state === "live") say("The page is live");
}

let saying = 0;
function filtered() {
  words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  draw();
  nodes.draw(true);
  clearTimeout(saying);
  saying = setTimeout(() => {
    say(`${counted(nodes.items.length, "node")}, ${counted(waiting.items.length, "waiting pod")}`);
  }, SAY_MS);
}

filter.addEventListener("input", filtered);
filter.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && filter.value) {
    filter.value = "";
    filtered();
    event.preventDefault();
  } else if (event.key === "ArrowDown" || event.key === "Enter" || event.key === "Escape") {
    at("nodes").focus();
    event.preventDefault();
  }
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, dialog[open]");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    filter.focus();
    filter.select();
    event.preventDefault();
  }
});
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = at("token").value.trim();
  at("token").value = "";
  follower.start(token);
});

switchedBy(at("theme"));
setInterval(() => waiting.draw(true), AGES_MS);
follower.start();
