// What verifier and judges said of an attempt, and what gives it its reward.
import { figure } from "../figures.js";
import { Facts, Hostile, html } from "../parts.js";
import { visible } from "../visible.js";

/** @typedef {import("../contract.js").Attempt} Attempt
 * @typedef {import("../contract.js").Evidence} Evidence */

/** @param {unknown} value */
function shown(value) {
  const names = Array.isArray(value) && value.every((one) => typeof one === "string");
  return html`<${Hostile}
    value=${names ? value.join(" | ") : value} />`;
}

/** @param {{attempt: Attempt}} given */
export function EvidenceOf({ attempt }) {
  const known = new Set(attempt.evidence.map((one) => one.term));
  const others = Object.entries(attempt.terms ?? {}).filter(([name]) => !known.has(name));
  return html`<h2>Why this reward</h2>
    <${Facts}
        facts=${[
          ["Reward", figure(attempt.reward)],
          ...others.map(([name, value]) => [visible(name), figure(value)]),
        ]} />
    ${attempt.evidence.map(
      (/** @type {Evidence} */ one, at) => html`<div key=${at} class="card">
      <h3><span>${visible(one.term)}</span><span>${figure(one.value)}</span></h3>
      ${one.verifier && html`<p class="quiet">by ${visible(one.verifier)}</p>`}
      ${one.gold !== null && one.gold !== undefined && html`<div><span
        class="quiet">gold</span>${shown(one.gold)}</div>`}
      ${one.answer !== null && one.answer !== undefined && html`<div><span
        class="quiet">answer</span>${shown(one.answer)}</div>`}
      ${one.judges !== null && one.judges !== undefined && html`<div><span
        class="quiet">judges</span>${shown(one.judges)}</div>`}
      ${one.text && html`<${Hostile} value=${one.text} label="Evidence" />`}
    </div>`,
    )}
    ${attempt.evidence.length === 0 && html`<p
      class="quiet">No evidence was kept of this attempt.</p>`}`;
}
