// What each namespace uses, as buttons that filter by it.

import { attribute, element, keyed, set } from "../dom.js";
import { counted, neededGiB, percent } from "../format.js";

const SHOWN = 50;

export function showNamespaces(box, found, chosen, total) {
  const most = Math.max(1, ...found.map((each) => each.mib));
  keyed(box, found.slice(0, SHOWN), (each) => each.name, (item, each) => {
    const button = item.firstChild;
    set(button.children[0], each.name);
    set(button.children[1], neededGiB(each.mib));
    const pending = each.pending ? `, ${counted(each.pending, "pending pod")} for ${neededGiB(each.asked)}` : "";
    const part = percent(each.mib, total);
    attribute(button, "title", `${part} % of all GPU memory, ${counted(each.pods, "pod")}${pending}`);
    attribute(button, "aria-pressed", `${each.name === chosen}`);
    button.dataset.name = each.name;
    button.style.setProperty("--part", `${(100 * each.mib) / most}%`);
  }, () => {
    const button = element("button", "namespace", "", [element("span"), " ", element("b")]);
    button.type = "button";
    return element("li", "", "", [button]);
  });
}
