// The live page: connects the stream, the lists, the filter and the keys.

import { Detail } from "./detail.js";
import { amount, counted } from "./format.js";
import { List } from "./list.js";
import { nodeHeight, podHeight, showNode, showPod } from "./rows.js";
import { Store } from "./store.js";
import { Follower } from "./stream.js";
import { switchTheme } from "./theme.js";

const AGES_MS = 10_000;
const ANNOUNCE_MS = 1_000; // after the last key of a filter

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
const pending = new List(at("waiting"), {
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
  const isChanged = kind === "whole" || (kind === "changes" && store.change(data));
  if (!isChanged || isDue) return;
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
  pending.set(found.pods);
  at("sum-nodes").textContent = amount(sums.nodes);
  at("sum-cards").textContent = amount(sums.cards);
  const part = sums.total ? Math.round((100 * sums.used) / sums.total) : 0;
  at("sum-used").textContent = `${part} %`;
  at("sum-used").style.setProperty("--part", `${Math.min(100, part)}%`);
  at("sum-used").title = `${amount(sums.used)} of ${amount(sums.total)} units`;
  at("sum-waiting").textContent = amount(sums.pending);
  at("nodes-count").textContent = shownOf(found.nodes.length, sums.nodes);
  at("waiting-count").textContent = shownOf(found.pods.length, sums.pending);
  at("nodes").dataset.empty = words.length ? "Nothing matches." : "No node shares its GPUs by memory.";
  at("waiting").dataset.empty = words.length ? "Nothing matches." : "No pods are pending.";
  document.body.classList.toggle("whole", store.isWhole);
  detail.follow(store);
}

function shownOf(shown, all) {
  return shown === all ? amount(all) : `${amount(shown)} of ${amount(all)}`;
}

function announce(text) {
  if (at("say").textContent !== text) at("say").textContent = text;
}

const STATES = { connecting: "connecting", live: "live", lost: "not live", refused: "no access" };
function connection(state, why) {
  const shown = at("state");
  if (state === "connecting" && shown.dataset.state === "lost") return; // silent retry
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
    const last = heardAt ? ` Last update: ${new Date(heardAt).toLocaleTimeString()}.` : "";
    at("trouble").textContent = `Not live: ${why}. Reconnecting.${last}`;
    announce(`No longer live: ${why}`);
  }
  if (state === "live") announce("The page is live");
}

let announcing = 0;
function filtered() {
  words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  draw();
  nodes.draw(true);
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    announce(`${counted(nodes.items.length, "node")}, ${counted(pending.items.length, "pending pod")}`);
  }, ANNOUNCE_MS);
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

switchTheme(at("theme"));
setInterval(() => pending.draw(true), AGES_MS);
follower.start();
