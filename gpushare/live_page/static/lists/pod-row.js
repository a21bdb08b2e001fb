// The row of a Pending pod, or of the Pending members of a gang: what it requests, since when, and why it is Pending.

import { attribute, element, set } from "../dom.js";
import { age, counted, exactly, neededGiB, number, onEach } from "../format.js";

const LETTER = 6.4; // pixels; wider than most
const REASON_LINES = 8;

export function podHeight(pod, width) {
  const lines = Math.ceil((reason(pod).length * LETTER) / Math.max(100, width - 40));
  return 46 + 17 * Math.max(1, Math.min(REASON_LINES, lines));
}

export function showPod(row, pod) {
  if (!row.firstChild) {
    const name = element("div", "name", "", [element("strong"), element("small")]);
    name.setAttribute("role", "rowheader");
    row.append(name, element("div", "asks"), element("div", "why"));
    for (const cell of [...row.children].slice(1)) cell.setAttribute("role", "gridcell");
  }
  const [name, asks, why] = row.children;
  set(name.children[0], pod.members ? `Gang ${pod.name}` : pod.name);
  set(name.children[1], pod.namespace);
  const waited = pod.created && age(pod.created, pod.now);
  const place = pod.place && `position ${number(pod.place)}`;
  const asked = pod.members ? `${counted(pod.members.length, "pod")} · ${neededGiB(pod.mib)} in all` : requested(pod);
  set(asks, [asked, waited, place].filter(Boolean).join(" · "));
  attribute(asks, "title", exactly(pod.units, pod.unit));
  set(why, reason(pod));
  row.classList.toggle("refused", pod.state === "refused");
  const spoken = [pod.members ? `gang ${pod.namespace}/${pod.name}` : pod.key, asked, place && `${place} in the queue`, reason(pod)];
  attribute(row, "aria-label", spoken.filter(Boolean).join(", "));
}

export function requested(pod) {
  if (!pod.units) return pod.cards ? counted(pod.cards, "whole GPU") : "invalid amount";
  return onEach(pod.mib / pod.cards, pod.cards);
}

export function reason(pod) {
  const state = pod.state === "waiting" ? "" : `${pod.state}: `;
  return state + (pod.why || "no reason from kube-scheduler yet");
}
