// A list of thousands of rows, of which only the visible ones are in the document.

const SPARE = 4; // rows above and below, so that scrolling shows no gap

let lists = 0;

// `show(row, item, width)` fills a row's element, which may be new or reused; `height(item, width)`
// is in pixels, as is the list's width. Nothing is measured while rows are filled: the browser would
// lay out the whole page for each.
export class List {
  items = [];
  #tops = [0];
  #rows = new Map(); // element by key
  #shown = new WeakMap(); // the item that an element shows
  #active = null; // key
  #inside = 0; // 0 for the active row, n for its n-th link
  #name = `list${(lists += 1)}`;
  #ids = 0;

  constructor(box, { key, height, show, open }) {
    Object.assign(this, { box, key, height, show, open });
    this.inside = document.createElement("div");
    this.inside.className = "rows";
    this.inside.setAttribute("role", "rowgroup");
    box.replaceChildren(this.inside);
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    box.addEventListener("keydown", (event) => this.#key(event));
    box.addEventListener("click", (event) => this.#click(event));
    box.addEventListener("focus", () => {
      // A press of the mouse must not scroll another row below the pointer.
      if (box.matches(":focus-visible")) this.#move(this.#place());
    });
    this.width = box.clientWidth;
    new ResizeObserver(() => {
      const isOther = this.width !== box.clientWidth;
      this.width = box.clientWidth;
      if (isOther) this.set(this.items);
      this.draw(isOther);
    }).observe(box);
  }

  // Replace the items with these, in this order.
  set(items) {
    this.items = items;
    const wasHidden = this.box.hidden;
    this.box.hidden = items.length === 0; // a grid without rows says nothing
    if (wasHidden) this.width = this.box.clientWidth;
    this.#tops = new Array(items.length + 1);
    this.#tops[0] = 0;
    items.forEach((item, place) => {
      this.#tops[place + 1] = this.#tops[place] + this.height(item, this.width);
    });
    this.inside.style.height = `${this.#tops[items.length]}px`;
    this.box.setAttribute("aria-rowcount", items.length);
    this.draw();
  }

  // Return the items that are in view.
  visible() {
    const { scrollTop: top, clientHeight: tall } = this.box;
    return this.items.slice(this.#at(top), this.#at(top + tall) + 1);
  }

  // Update the visible rows; with `all`, also those whose item has not changed.
  draw(all = false) {
    const { scrollTop: top, clientHeight: tall } = this.box;
    const first = Math.max(0, this.#at(top) - SPARE);
    const last = Math.min(this.items.length, this.#at(top + tall) + 1 + SPARE);
    const left = new Map(this.#rows);
    let before = null;
    for (let place = first; place < last; place += 1) {
      const item = this.items[place];
      const key = this.key(item);
      const row = this.#rows.get(key) ?? this.#make(key);
      left.delete(key);
      if (all || this.#shown.get(row) !== item) {
        this.show(row, item, this.width);
        this.#shown.set(row, item);
      }
      row.style.transform = `translateY(${this.#tops[place]}px)`;
      row.style.height = `${this.#tops[place + 1] - this.#tops[place]}px`;
      row.setAttribute("aria-rowindex", place + 1);
      const next = before === null ? this.inside.firstChild : before.nextSibling;
      if (next !== row) this.inside.insertBefore(row, next);
      before = row;
    }
    for (const [key, row] of left) {
      row.remove();
      this.#rows.delete(key);
    }
    this.#mark();
  }

  #make(key) {
    const row = document.createElement("div");
    row.className = "row";
    row.setAttribute("role", "row");
    row.id = `${this.#name}-${(this.#ids += 1)}`;
    row.dataset.key = key;
    this.#rows.set(key, row);
    return row;
  }

  // Return the index of the row at this distance from the top.
  #at(pixels) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#tops[middle + 1] <= pixels) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #place() {
    return Math.max(0, this.items.findIndex((item) => this.key(item) === this.#active));
  }

  #move(place) {
    if (this.items.length === 0) return;
    const at = Math.max(0, Math.min(this.items.length - 1, place));
    this.#active = this.key(this.items[at]);
    this.#inside = 0;
    const { scrollTop, clientHeight } = this.box;
    if (this.#tops[at] < scrollTop) this.box.scrollTop = this.#tops[at];
    if (this.#tops[at + 1] > scrollTop + clientHeight) {
      this.box.scrollTop = this.#tops[at + 1] - clientHeight;
    }
    this.draw();
  }

  #mark() {
    let active = null;
    for (const [key, row] of this.#rows) {
      row.classList.toggle("active", key === this.#active);
      if (key === this.#active) active = row;
    }
    this.inside.querySelector("a.active")?.classList.remove("active");
    if (active !== null && this.#inside > 0) active = this.#enter(active);
    if (active === null) this.box.removeAttribute("aria-activedescendant");
    else this.box.setAttribute("aria-activedescendant", active.id);
  }

  // Return the link that is active in this row; the row if it has none.
  #enter(row) {
    const links = row.querySelectorAll("a");
    this.#inside = Math.min(this.#inside, links.length);
    const chosen = links[this.#inside - 1];
    if (!chosen) return row;
    chosen.id ||= `${row.id}-${(this.#ids += 1)}`;
    chosen.classList.add("active");
    return chosen;
  }

  #aside(by) {
    this.#inside = Math.max(0, this.#inside + by);
    this.#mark();
  }

  #open(place) {
    const chosen = this.#inside > 0 && this.inside.querySelector("a.active");
    if (chosen) chosen.click();
    else this.open(this.items[place]);
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const place = this.#place();
    const end = this.items.length - 1;
    const page = Math.max(1, this.#at(this.#tops[place] + this.box.clientHeight) - place - 1);
    const to = {
      ArrowDown: place + 1,
      ArrowUp: place - 1,
      PageDown: place + page,
      PageUp: place - page,
      Home: 0,
      End: end,
    }[event.key];
    if (to !== undefined) this.#move(to);
    else if (event.key === "ArrowRight") this.#aside(1);
    else if (event.key === "ArrowLeft") this.#aside(-1);
    else if (event.key === "Enter" && this.items.length > 0) this.#open(place);
    else return;
    event.preventDefault();
  }

  #click(event) {
    const row = event.target.closest(".row");
    const item = row && this.items.find((each) => this.key(each) === row.dataset.key);
    if (!item) return;
    this.#active = row.dataset.key;
    this.#inside = 0;
    this.#mark();
    if (!event.target.closest("a")) this.open(item);
  }
}
