// What each namespace uses, as buttons that filter by it.

import { attribute, element, keyed, set } from "../dom.js";
import { counted, freeGiB, neededGiB, percent, usedGiB } from "../format.js";

const SHOWN = 50;

const quota = ([, used, limit]) => `${usedGiB(used, limit)} of ${freeGiB(limit)}`;

export function showNamespaces(box, found, chosen, total) {
  const most = Math.max(1, ...found.map((each) => each.mib));
  keyed(box, found.slice(0, SHOWN), (each) => each.name, (item, each) => {
    const button = item.firstChild;
    set(button.children[0], each.name);
    const [whole] = each.quota?.parts ?? [];
    set(button.children[1], whole && !whole[0] ? quota(whole) : neededGiB(each.mib));
    button.classList.toggle("problem", Boolean(each.quota?.problem));
    const pending = each.pending ? `, ${counted(each.pending, "pending pod")} for ${neededGiB(each.asked)}` : "";
    const part = percent(each.mib, total);
    const said = [`${part} % of all GPU memory, ${counted(each.pods, "pod")}${pending}`];
    for (const limit of each.quota?.parts ?? []) said.push(`Quota${limit[0] && ` for ${limit[0]}`}: ${quota(limit)} used`);
    if (each.quota?.problem) said.push(`Nothing is placed: ${each.quota.problem}`);
    attribute(button, "title", said.join("\n"));
    attribute(button, "aria-pressed", `${each.name === chosen}`);
    button.dataset.name = each.name;
    button.style.setProperty("--part", `${(100 * each.mib) / most}%`);
  }, () => {
    const button = element("button", "namespace", "", [element("span"), " ", element("b")]);
    button.type = "button";
    return element("li", "", "", [button]);
  });
}
