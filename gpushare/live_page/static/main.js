// The live page: connects the stream, the URL, the lists, the overview and the dialog.

import { countsOf, isFiltered, namespaces, NODE_ORDERS, POD_ORDERS, rows, select, sums, wordsOf } from "./choose.js";
import { Dialog } from "./dialog/dialog.js";
import { at, element } from "./dom.js";
import { counted, number } from "./format.js";
import { ordered, showGangs } from "./lists/gangs.js";
import { List } from "./lists/list.js";
import { nodeHeight, showNode } from "./lists/node-row.js";
import { podHeight, showPod } from "./lists/pod-row.js";
import { HeatMap } from "./overview/heat.js";
import { showHead } from "./overview/head.js";
import { showHistory } from "./overview/history.js";
import { showNamespaces } from "./overview/namespaces.js";
import { Player } from "./player.js";
import { Route } from "./route.js";
import { Store } from "./store.js";
import { Follower } from "./stream.js";
import { switchTheme } from "./theme.js";
import { Usage } from "./usage.js";

const AGES_MS = 10_000;
const ANNOUNCE_MS = 1_000; // after the last change of a filter

const store = new Store();
const route = new Route(routed);
const player = new Player((change, how) => route.go(change, how));
const look = { words: [], ns: "", fresh: new Set(), measured: (node) => usage.of(node)?.cards };

const nodes = new List(at("nodes"), {
  key: (node) => node.name,
  height: nodeHeight,
  show: (row, node, width) => showNode(row, node, width, look),
  open: (node) => route.go({ node: node.name, pod: "" }),
});
const pending = new List(at("waiting"), {
  key: (pod) => pod.uid,
  height: podHeight,
  show: showPod,
  open: (pod) => route.go({ node: "", pod: pod.key }),
});
const heat = new HeatMap(at("heat"));
const follower = new Follower(streamPath(), heard, connection);
const usage = new Usage({ path: () => ofNamespace("usage"), names: visibleNodes, headers: () => follower.headers, changed: measured });
const dialog = new Dialog(at("detail"), {
  store,
  measured: usage,
  headers: () => follower.headers,
  query: () => (route.now.step ? `&step=${encodeURIComponent(route.now.step)}` : ""),
  close: () => route.go({ node: "", pod: "" }),
});

function streamPath() {
  const { step } = route.now;
  return step ? `changes?step=${encodeURIComponent(step)}` : ofNamespace("changes");
}

// Return the path of a page about the one namespace of the URL, or about all.
function ofNamespace(path) {
  const { only } = route.now;
  return only ? `${path}/${encodeURIComponent(only)}` : path;
}

function visibleNodes() {
  if (!store.isWhole || !store.about.usage) return [];
  const open = route.now.node || store.share(route.now.pod)?.node;
  return [...(open && store.nodes.has(open) ? [open] : []), ...nodes.visible().map((node) => node.name)];
}

let gangs = []; // that are shown
let isDue = false;
let heardAt = 0;
function heard(kind, data) {
  heardAt = Date.now();
  if (kind === "begin") store.begin(data);
  if (kind === "whole") store.whole();
  if (kind === "history") store.history = data;
  if (kind === "whole") {
    draw(); // at once: the page says next that it is live
    usage.ask();
    return;
  }
  const isChanged = kind === "history" || (kind === "changes" && store.change(data));
  if (!isChanged || isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  const { ns, only } = route.now;
  const found = select(store, route.now);
  const sum = sums(store);
  look.fresh = new Set(store.about.simulation?.placed ?? []);
  player.show(store.about.simulation);
  nodes.set(found.nodes);
  const waiting = rows(store, found.pods);
  pending.set(waiting);
  if (!store.isWhole) return; // no figure is known yet
  showHead(sum, [...store.pods.values()]);
  heat.show(store.byName(), found.nodes);
  showHistory(at("history"), at("history-text"), store.history, Date.now() / 1000);
  gangs = ordered(found.gangs);
  showGangs(gangs, store.gangs.size, store.moreGangs);
  showNamespaces(at("namespaces"), namespaces(store, only), ns, sum.total);
  at("nodes-count").textContent = shownOf(found.nodes.length, sum.nodes);
  const { pods, inGangs, gangs: ofGangs } = countsOf(waiting);
  const more = ofGangs ? `, ${number(inGangs)} in ${counted(ofGangs, "gang")}` : "";
  at("waiting-count").textContent = `${shownOf(pods, sum.pending)}${more}`;
  at("view-waiting-count").textContent = number(sum.pending);
  const isEmpty = sum.nodes === 0;
  at("next-step").hidden = !isEmpty;
  at("overview").hidden = isEmpty;
  at("no-nodes").hidden = isEmpty || found.nodes.length > 0;
  at("no-pods").hidden = found.pods.length > 0;
  at("no-pods").textContent = sum.pending ? "No Pending pod matches." : `No pods${only && ` of namespace ${only}`} are pending.`;
  dialog.update();
}

function shownOf(shown, all) {
  return shown === all ? number(all) : `${number(shown)} of ${number(all)}`;
}

function measured() {
  nodes.draw(true);
  dialog.update();
}

// Show what the URL says: at first, after a change of it, and after Back.
function routed(now, before = {}) {
  look.words = wordsOf(now.q);
  look.ns = now.ns;
  if (at("filter").value.trim() !== now.q.trim()) at("filter").value = now.q;
  at("sort").value = now.sort;
  at("order").value = now.order;
  at("problems").setAttribute("aria-pressed", `${Boolean(now.problems)}`);
  at("clear").hidden = !isFiltered(now);
  at("chosen-namespace").hidden = !now.ns;
  at("chosen-namespace").textContent = now.ns && `namespace ${now.ns} ✕`;
  document.body.dataset.view = now.view;
  for (const each of document.querySelectorAll("#views button")) {
    each.setAttribute("aria-pressed", `${each.dataset.view === now.view}`);
  }
  showOnly(now.only);
  if (before.step !== undefined && (now.step !== before.step || now.only !== before.only)) {
    follow();
  }
  draw();
  nodes.draw(true);
  if (now.node !== before.node || now.pod !== before.pod) dialog.show(now);
  if (isFiltered(now) || isFiltered({ q: "", ...before })) announceFound();
}

function follow() {
  usage.clear();
  follower.path = streamPath();
  follower.start();
}

// Say of which namespace the page shows the pods, if not of all.
function showOnly(only) {
  at("only").textContent = only && `namespace ${only}`;
  at("only").hidden = !only;
  at("others").hidden = !only;
  at("sums").ariaLabel = only ? `GPUs of the cluster, pods of namespace ${only}` : "The whole cluster";
  at("namespace").value = only;
  document.title = only ? `gpushare: ${only}` : "gpushare";
}

let announcing = 0;
function announceFound() {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    const found = [counted(nodes.items.length, "node"), counted(countsOf(pending.items).pods, "pending pod")];
    if (store.gangs.size > 0) found.push(counted(gangs.length, "gang"));
    announce(found.join(", "));
  }, ANNOUNCE_MS);
}

function announce(text) {
  if (at("say").textContent !== text) at("say").textContent = text;
}

const STATES = { connecting: "connecting", live: "live", lost: "not live", refused: "no access" };
function connection(state, why) {
  const shown = at("state");
  if (state === "connecting" && shown.dataset.state) return; // silent retry, or another step
  const wasLive = shown.dataset.state === "live";
  shown.textContent = STATES[state];
  shown.title = why;
  if (state !== "connecting") shown.dataset.state = state;
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
  if (state === "live" && !wasLive) announce("The page is live");
}

for (const [box, orders] of [[at("sort"), NODE_ORDERS], [at("order"), POD_ORDERS]]) {
  for (const [value, [text]] of Object.entries(orders)) {
    const made = element("option", "", text);
    made.value = value;
    box.append(made);
  }
}
const filter = at("filter");
filter.addEventListener("input", () => route.go({ q: filter.value }, { replace: true }));
filter.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && filter.value) {
    filter.value = "";
    route.go({ q: "" }, { replace: true });
    event.preventDefault();
  } else if (["ArrowDown", "Enter", "Escape"].includes(event.key)) {
    at("nodes").focus();
    event.preventDefault();
  }
});
at("sort").addEventListener("change", () => route.go({ sort: at("sort").value }));
at("order").addEventListener("change", () => route.go({ order: at("order").value }));
at("problems").addEventListener("click", () => route.go({ problems: route.now.problems ? "" : "1" }));
at("chosen-namespace").addEventListener("click", () => route.go({ ns: "" }));
at("clear").addEventListener("click", () => route.go({ q: "", ns: "", problems: "" }));
at("namespaces").addEventListener("click", (event) => {
  const name = event.target.closest("button")?.dataset.name;
  if (name) route.go({ ns: name === route.now.ns ? "" : name });
});
at("views").addEventListener("click", (event) => {
  const view = event.target.closest("button")?.dataset.view;
  if (view) route.go({ view });
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, dialog[open]");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    filter.focus();
    filter.select();
    event.preventDefault();
  }
});
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = at("token").value.trim();
  const only = at("namespace").value.trim();
  const isOther = only !== route.now.only;
  at("token").value = "";
  follower.token = token;
  if (isOther) route.go({ only });
  else follow();
});

switchTheme(at("theme"));
routed(route.now);
setInterval(() => {
  pending.draw(true);
  showGangs(gangs, store.gangs.size, store.moreGangs);
  showHead(sums(store), [...store.pods.values()]);
}, AGES_MS);
follower.start();
