// Every node as a cell: how full it is, and whether it has a problem. A click opens the node.

import { attribute, element, keyed, pointTo } from "../dom.js";
import { percent } from "../format.js";
import { nodeLabel } from "../lists/node-row.js";
import { takesNew } from "../store.js";

// The height of a cell in pixels, by the number of nodes up to which it is used.
const SIZES = [[30, 38], [100, 28], [300, 17], [Infinity, 8]];
const EACH_GPU = 100; // nodes up to which a cell has a column for each GPU

export class HeatMap {
  #shown = new WeakMap(); // the node that a cell shows
  #active = ""; // name

  constructor(box) {
    this.box = box;
    box.addEventListener("keydown", (event) => this.#key(event));
    box.addEventListener("focusin", (event) => this.#activate(event.target));
  }

  // Show all nodes; those that are not `chosen` are dimmed.
  show(nodes, chosen) {
    const [, size] = SIZES.find(([most]) => nodes.length <= most);
    this.box.style.setProperty("--cell", `${size}px`);
    const isFine = nodes.length <= EACH_GPU;
    this.box.classList.toggle("fine", isFine);
    this.box.classList.toggle("coarse", size < 12);
    if (isFine !== this.isFine) this.#shown = new WeakMap();
    this.isFine = isFine;
    const found = new Set(chosen.map((node) => node.name));
    keyed(this.box, nodes, (node) => node.name, (cell, node) => {
      cell.firstChild.classList.toggle("dim", !found.has(node.name));
      if (this.#shown.get(cell) === node) return;
      this.#shown.set(cell, node);
      showCell(cell.firstChild, node, isFine);
    }, () => element("li", "", "", [makeCell()]));
    if (!nodes.some((node) => node.name === this.#active)) this.#activate(this.box.querySelector("a"));
  }

  #activate(cell) {
    if (!cell?.matches("a")) return;
    for (const each of this.box.querySelectorAll("a[tabindex='0']")) each.tabIndex = -1;
    cell.tabIndex = 0;
    this.#active = cell.parentElement.dataset.key;
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const cells = [...this.box.querySelectorAll("a")];
    const place = cells.indexOf(event.target);
    const line = cells.filter((each) => each.offsetTop === cells[0].offsetTop).length;
    const to = {
      ArrowRight: place + 1,
      ArrowLeft: place - 1,
      ArrowDown: place + line,
      ArrowUp: place - line,
      Home: 0,
      End: cells.length - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    cells[Math.max(0, Math.min(cells.length - 1, to))]?.focus();
  }
}

function makeCell() {
  const made = element("a", "cell");
  made.tabIndex = -1;
  return made;
}

function showCell(cell, node, isFine) {
  pointTo(cell, { node: node.name });
  const part = percent(node.used, node.total);
  cell.style.setProperty("--used", `${Math.min(100, part)}%`);
  keyed(cell, isFine ? node.cards : [], (card) => card.uuid, showColumn, () => element("i"));
  cell.classList.toggle("bad", node.problems.length > 0);
  cell.classList.toggle("closed", !node.cards.some(takesNew));
  attribute(cell, "aria-label", nodeLabel(node));
  attribute(cell, "title", `${node.name}: ${part} % used${node.problems.map((each) => `\n${each}`).join("")}`);
}

function showColumn(column, card) {
  column.className = card.health !== "healthy" ? "bad" : takesNew(card) ? "" : "closed";
  column.style.setProperty("--used", `${Math.min(100, percent(card.total - card.free, card.total))}%`);
}
