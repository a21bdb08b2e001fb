// What the page shows, as the part of its URL after #: filters, order, and the open node or pod.

import { NODE_ORDERS, POD_ORDERS } from "./choose.js";

const DEFAULTS = {
  q: "", // words of the filter
  only: "", // namespace that the stream is about; all without it
  ns: "", // namespace
  problems: "", // "1": only nodes with problems
  sort: "name", // of nodes
  order: "queue", // of Pending pods
  view: "nodes", // of narrow screens
  node: "", // open in the dialog
  pod: "", // the same: namespace/name
  step: "", // of a simulation
};

// The keys that have only certain values; a URL with another value means the default.
const oneOf = (...values) => (value) => values.includes(value);
const CHOICES = {
  problems: oneOf("1"),
  sort: oneOf(...Object.keys(NODE_ORDERS)),
  order: oneOf(...Object.keys(POD_ORDERS)),
  view: oneOf("overview", "nodes", "pending"),
  step: (value) => /^[1-9][0-9]{0,8}$/.test(value),
};

export class Route {
  // `changed(now, before)` is called after each change, also by the browser's Back and Forward.
  constructor(changed) {
    this.changed = changed;
    this.now = parse(location.hash);
    addEventListener("popstate", () => this.#apply(parse(location.hash)));
    document.addEventListener("click", (event) => this.#click(event));
  }

  // Change some parts. With `replace` the browser's Back skips the place before.
  go(change, { replace = false } = {}) {
    const next = { ...this.now, ...change };
    if (same(next, this.now)) return;
    const url = written(next);
    if (replace) history.replaceState(null, "", url);
    else history.pushState(null, "", url);
    this.#apply(next);
  }

  #apply(next) {
    const before = this.now;
    if (same(next, before)) return;
    this.now = next;
    this.changed(next, before);
  }

  #click(event) {
    const to = event.target.closest?.("a[href^='#']")?.getAttribute("href");
    if (!to || event.defaultPrevented || event.button !== 0) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return; // another tab
    event.preventDefault();
    const found = new URLSearchParams(to.slice(1));
    this.go({ node: found.get("node") ?? "", pod: found.get("pod") ?? "" });
  }
}

function parse(hash) {
  const found = new URLSearchParams(hash.slice(1));
  const read = (name, usual) => {
    const value = found.get(name);
    const isKnown = value !== null && (!Object.hasOwn(CHOICES, name) || CHOICES[name](value));
    return isKnown ? value : usual;
  };
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, usual]) => [name, read(name, usual)]));
}

function written(now) {
  const set = Object.entries(now).filter(([name, value]) => value !== DEFAULTS[name]);
  const text = set.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return text ? `#${text}` : location.pathname + location.search;
}

function same(one, other) {
  return Object.keys(DEFAULTS).every((name) => one[name] === other[name]);
}
