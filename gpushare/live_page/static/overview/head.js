// The sums of the whole cluster, in the page's head.

import { at, attribute, set } from "../dom.js";
import { age, counted, freeGiB, number, percent, usedGiB } from "../format.js";

export function showHead(sum, pods) {
  set(at("sum-nodes"), number(sum.nodes));
  set(at("sum-cards"), number(sum.cards));
  set(at("note-cards"), sum.broken ? `${number(sum.broken)} unhealthy` : "");
  set(at("note-cordoned"), sum.cordoned ? `${number(sum.cordoned)} cordoned` : "");
  const part = percent(sum.used, sum.total);
  set(at("sum-used"), `${part} %`);
  at("sum-used").style.setProperty("--part", `${Math.min(100, part)}%`);
  set(at("note-used"), `${usedGiB(sum.used, sum.total)} of ${freeGiB(sum.total)}`);
  const lost = sum.lost ? `; ${freeGiB(sum.lost)} more are free on GPUs that take no new pods` : "";
  attribute(at("note-used"), "title", `${number(sum.used)} of ${number(sum.total)} MiB used${lost}`);
  set(at("sum-largest"), freeGiB(sum.largest));
  attribute(at("sum-largest"), "title", `${number(sum.largest)} MiB: the most that a pod on one GPU can get now`);
  set(at("sum-waiting"), number(sum.pending));
  const oldest = pods.reduce((first, pod) => (first && first < pod.created ? first : pod.created), "");
  set(at("note-waiting"), oldest ? `longest ${age(oldest, pods[0].now)}` : "");
  set(at("problem-count"), number(sum.problems));
  attribute(at("problems"), "title", `Show only nodes with problems: ${counted(sum.problems, "node")}`);
}
