// Formats amounts, numbers, times and names for people.

const numbers = new Intl.NumberFormat("en");
const naturally = new Intl.Collator("en", { numeric: true }).compare;

export const number = (value) => numbers.format(value);

export const byName = (a, b) => naturally(a.name, b.name);

// Return the name in a gang's key, NAMESPACE/SOURCE/NAME.
export const gangName = (key) => key.split("/")[2];

export function counted(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

// Return MiB as `39.9 GiB` or `512 MiB`. What is free rounds down and what is needed rounds up, so
// that an amount that reads as enough is enough. As in gpushare/text/amounts.py, which writes the
// sentences about Pending pods.
export const freeGiB = (mib) => written(mib, tenths(mib));
export const neededGiB = (mib) => written(mib, -tenths(-mib));

// Return what is used of a total: with what is free it makes up the total as written.
export function usedGiB(mib, total) {
  if (mib < 1024 || mib > total) return neededGiB(mib);
  return written(mib, tenths(total) - tenths(total - mib));
}

// Return `40 GiB on each of 2 GPUs`.
export function onEach(mib, gpus) {
  return `${neededGiB(mib)}${gpus > 1 ? ` on each of ${gpus} GPUs` : ""}`;
}

const tenths = (mib) => Math.floor((mib * 10) / 1024);

function written(mib, rounded) {
  return mib > 0 && mib < 1024 ? `${mib} MiB` : `${number(rounded / 10)} GiB`;
}

// Return the exact amount, for a tooltip.
export function exactly(units, unitMiB) {
  const unit = unitMiB % 1024 ? `${number(unitMiB)} MiB` : `${number(unitMiB / 1024)} GiB`;
  return `${counted(units, "unit")} of ${unit}`;
}

export function percent(part, whole) {
  return whole ? Math.round((100 * part) / whole) : 0;
}

// Return an SM utilization as `42 %`; "" where it is not known.
export const utilization = (found) => (found === undefined ? "" : `${found} %`);

// Return the time since an RFC 3339 time, in its largest unit; "" without one.
export function age(time, now = Date.now()) {
  return lasted(Math.floor((now - Date.parse(time)) / 1000));
}

export function lasted(seconds) {
  if (Number.isNaN(seconds)) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, seconds)} s`;
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
