// The steps of a simulation: what happened in the shown one, and buttons to the others.

import { at, element } from "./dom.js";

const EVERY_MS = 1_500;
const HAPPENED = 4; // lines shown at once

export class Player {
  #timer = 0;
  #shown = null;

  constructor(go) {
    this.go = go;
    at("player-first").addEventListener("click", () => this.#move(1));
    at("player-back").addEventListener("click", () => this.#move(this.#step - 1));
    at("player-next").addEventListener("click", () => this.#move(this.#step + 1));
    at("player-last").addEventListener("click", () => this.#move(this.#steps));
    at("player-play").addEventListener("click", () => (this.#timer ? this.#pause() : this.#play()));
    at("player-step").addEventListener("input", () => this.#move(Number(at("player-step").value), true));
  }

  get #step() {
    return this.#shown?.step ?? 1;
  }

  get #steps() {
    return this.#shown?.steps ?? 1;
  }

  // `simulation` is of the stream; undefined if a real cluster is shown.
  show(simulation) {
    at("player").hidden = !simulation;
    if (!simulation || simulation === this.#shown) return;
    this.#shown = simulation;
    for (const each of ["player-buttons", "player-step", "player-where"]) at(each).hidden = simulation.steps < 2;
    const { step, steps, at: time, happened } = simulation;
    at("player-step").max = steps;
    at("player-step").value = step;
    at("player-step").setAttribute("aria-valuetext", `step ${step} of ${steps}, ${time}`);
    at("player-where").textContent = `step ${step} of ${steps}, ${time}`;
    at("player-first").disabled = at("player-back").disabled = step <= 1;
    at("player-last").disabled = at("player-next").disabled = step >= steps;
    const lines = happened.slice(0, HAPPENED).map((text) => element("li", "", text));
    if (happened.length > HAPPENED) lines.push(element("li", "", `and ${happened.length - HAPPENED} more`));
    at("player-happened").replaceChildren(...lines);
    at("player-happened").title = happened.join("\n");
    if (this.#timer && step >= steps) this.#pause();
    else if (this.#timer) this.#later();
  }

  #move(step, replace = false) {
    this.#pause();
    this.#go(step, replace);
  }

  #go(step, replace) {
    this.go({ step: `${Math.max(1, Math.min(this.#steps, step))}` }, { replace });
  }

  #play() {
    at("player-play").textContent = "Pause";
    if (this.#step >= this.#steps) this.#go(1, true);
    this.#later();
  }

  #pause() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    at("player-play").textContent = "Play";
  }

  #later() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#go(this.#step + 1, true), EVERY_MS);
  }
}
