// The last hour: memory used and Pending pods as a small chart, with the same as text.

import { attribute, set } from "../dom.js";
import { counted, percent } from "../format.js";

const WIDTH = 300;
const HEIGHT = 76;
const SPACE = "http://www.w3.org/2000/svg";

let shown = null;

// `history` has the samples [time in seconds, used, total, pending pods], the oldest first, and
// `steps` if they are the steps of a simulation. It is only drawn again when it has changed.
export function showHistory(box, text, history, now) {
  const samples = history?.samples ?? [];
  const said = described(history, samples, now);
  set(text, said);
  if (history !== shown) box.replaceChildren(...(samples.length > 1 ? [drawn(history, samples)] : []));
  shown = history;
  if (box.firstChild) attribute(box.firstChild, "aria-label", said);
}

function described(history, samples, now) {
  if (!history) return "No history yet.";
  if (samples.length < 2) {
    return history.steps ? "It has one value for each step." : "It begins now: one value a minute, kept since the extender started.";
  }
  const parts = samples.map(([, used, total]) => percent(used, total));
  const [first, last] = [parts[0], parts.at(-1)];
  const most = Math.max(...samples.map(([, , , pending]) => pending));
  const since = history.steps ? `${counted(samples.length, "step")}` : lastMinutes(samples, now);
  return `${since}: ${first} % to ${last} % used, at most ${Math.max(...parts)} %; up to ${counted(most, "pending pod")}.`;
}

function lastMinutes(samples, now) {
  const minutes = Math.max(1, Math.round((now - samples[0][0]) / 60));
  return minutes >= 59 ? "Last hour" : `Last ${counted(minutes, "minute")}, since the extender started`;
}

function drawn(history, samples) {
  const [begin, end] = [samples[0][0], samples.at(-1)[0]];
  const across = (time) => (end > begin ? (WIDTH * (time - begin)) / (end - begin) : 0);
  const up = (part) => HEIGHT - (HEIGHT - 4) * Math.min(1, part);
  const line = samples.map(([at, used, total]) => `${across(at).toFixed(1)},${up(total ? used / total : 0).toFixed(1)}`);
  const most = Math.max(1, ...samples.map(([, , , pending]) => pending));
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  svg.append(make("line", { class: "limit", x1: 0, x2: WIDTH, y1: up(1), y2: up(1) }));
  svg.append(make("polygon", { class: "area", points: `0,${HEIGHT} ${line.join(" ")} ${WIDTH},${HEIGHT}` }));
  svg.append(make("polyline", { class: "line", points: line.join(" ") }));
  const wide = WIDTH / samples.length;
  samples.forEach(([at, used, total, pending], place) => {
    const x = place * wide;
    if (pending) {
      const tall = Math.max(2, (18 * pending) / most);
      svg.append(make("rect", { class: "pending", x: x + wide * 0.2, width: wide * 0.6, y: HEIGHT - tall, height: tall }));
    }
    const spot = make("rect", { class: "spot", x, width: wide, y: 0, height: HEIGHT });
    const when = history.steps ? history.steps[place] : new Date(at * 1000).toLocaleTimeString([], { timeStyle: "short" });
    const title = make("title", {});
    title.textContent = `${when}: ${percent(used, total)} % used, ${counted(pending, "pending pod")}`;
    spot.append(title);
    svg.append(spot);
  });
  return svg;
}

function make(tag, attributes) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
