// Makes and updates elements. Users choose the names shown: they are set as text, never parsed.

export const at = (id) => document.getElementById(id);

export function element(tag, className = "", text = "", children = []) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

// Return a link to a place on this page; a click goes there and keeps the filters.
export function link(where, className = "", text = "", children = []) {
  const made = element("a", className, text, children);
  pointTo(made, where);
  return made;
}

export function pointTo(made, where) {
  const [[kind, name]] = Object.entries(where);
  const to = `#${kind}=${encodeURIComponent(name)}`;
  if (made.getAttribute("href") !== to) made.setAttribute("href", to);
}

// Change an attribute or a text only if it differs, so that the browser has nothing to do.
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Give `box` one child for each item, and reuse the child of the same key.
export function keyed(box, items, key, show, make = () => element("div")) {
  const old = new Map([...box.children].map((each) => [each.dataset.key, each]));
  let next = box.firstChild;
  for (const item of items) {
    const name = key(item);
    let child = old.get(name);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = name;
    }
    old.delete(name);
    show(child, item);
    if (child === next) next = next.nextSibling;
    else box.insertBefore(child, next);
  }
  for (const child of old.values()) child.remove();
}

export function table(caption, heads, rows, numbers = new Set()) {
  const cell = (tag) => (content, place) => {
    const made = element(tag, numbers.has(place) ? "number" : "");
    made.append(...[content].flat());
    return made;
  };
  const head = element("thead", "", "", [element("tr", "", "", heads.map(cell("th")))]);
  const body = element("tbody", "", "", rows.map((row) => element("tr", "", "", row.map(cell("td")))));
  for (const th of head.querySelectorAll("th")) th.scope = "col";
  const made = element("table", "", "", [element("caption", "", caption), head, body]);
  const box = element("div", "wide", "", [made]);
  box.tabIndex = 0; // it scrolls where it is too wide
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", caption);
  return box;
}
