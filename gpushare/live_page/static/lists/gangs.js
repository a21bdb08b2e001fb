// The gangs: how many members each has, where it is on its way, and what would help.

import { at, attribute, element, keyed, set } from "../dom.js";
import { age, number } from "../format.js";

// The phases, those first in which something has to be done.
const PHASES = {
  Broken: "broken",
  Invalid: "invalid",
  WaitingForRoom: "waiting for room",
  WaitingForMembers: "waiting for members",
  Starting: "starting",
  Placed: "placed",
};
const ORDER = Object.keys(PHASES);

// Return the gangs in the order in which they are shown.
export function ordered(gangs) {
  const place = ({ phase }) => (ORDER.includes(phase) ? ORDER.indexOf(phase) : ORDER.length);
  return gangs.sort((a, b) => place(a) - place(b) || (a.key < b.key ? -1 : 1));
}

// `found` are those that match the filters, `all` is the number of all, `more` of those not sent.
export function showGangs(found, all, more) {
  at("gangs").hidden = all === 0;
  at("gang-table").hidden = found.length === 0;
  at("gang-box").hidden = found.length === 0 && !more;
  at("no-gangs").hidden = found.length > 0;
  const shown = number(found.length);
  set(at("gangs-count"), found.length === all && !more ? shown : `${shown} of ${number(all + more)}`);
  set(at("more-gangs"), more ? `${number(more)} more are not sent: \`gpushare gangs -n NAMESPACE\` lists them.` : "");
  const box = at("gang-table");
  keyed(box, [{ key: "" }, ...found], (gang) => gang.key, (made, gang) => gang.key && showGang(made, gang), makeGang);
}

// A gang has two rows: the second one is for the sentence, which needs the whole width.
function makeGang() {
  const name = element("th", "name", "", [element("strong"), element("small")]);
  name.scope = "rowgroup";
  const state = element("td", "", "", [element("b"), element("small")]);
  const says = element("td", "says");
  says.colSpan = 3;
  const rows = [[name, element("td", "number"), state], [says]];
  return element("tbody", "", "", rows.map((cells) => element("tr", "", "", cells)));
}

function showGang(body, gang) {
  const [name, members, state] = body.children[0].children;
  set(name.children[0], gang.name);
  set(name.children[1], gang.namespace);
  set(members, `${number(gang.bound)} of ${number(gang.members)}`);
  const together = gang.minimum ? `, at least ${number(gang.minimum)} start together` : "";
  attribute(members, "title", `${number(gang.bound)} bound${together}`);
  set(state.children[0], PHASES[gang.phase] ?? gang.phase);
  const more = [gang.zone && `zone ${gang.zone}`, gang.created && age(gang.created, gang.now)];
  set(state.children[1], more.filter(Boolean).join(" · "));
  set(body.children[1].firstChild, gang.said);
  body.classList.toggle("refused", gang.phase === "Broken" || gang.phase === "Invalid");
}
