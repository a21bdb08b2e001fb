// Formats numbers, times and names for people.

const numbers = new Intl.NumberFormat("en");
const naturally = new Intl.Collator("en", { numeric: true }).compare;

export const amount = (value) => numbers.format(value);

export const byName = (a, b) => naturally(a.name, b.name);

export function counted(count, one, many = `${one}s`) {
  return `${amount(count)} ${count === 1 ? one : many}`;
}

// Return the time since an RFC 3339 time, in its largest unit; "" without one.
export function age(time, now = Date.now()) {
  const seconds = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  if (Number.isNaN(seconds)) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

// Return one of a few calm hues, always the same for the same text.
const HUES = [160, 255, 300, 205, 335, 230, 180, 280, 140, 318];
export function hue(text) {
  let hash = 0;
  for (let place = 0; place < text.length; place += 1) {
    hash = (hash * 31 + text.charCodeAt(place)) >>> 0;
  }
  return HUES[hash % HUES.length];
}
