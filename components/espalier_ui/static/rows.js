// Attempts in a table: the same columns wherever attempts are listed.
import { href } from "./address.js";
import { figure } from "./figures.js";
import { JUDGED, Table, Verdict, html } from "./parts.js";
import { brief, visible } from "./visible.js";

/** @typedef {import("./contract.js").Row} Row */

/** The address of an attempt; it names step and group, so that the way back up is known.
 * @param {string} run @param {Row} row @param {Record<string, string | number | null>} [more]
 *   @returns {string} */
export function attemptAddress(run, row, more = {}) {
  const { source, step, group, id } = row;
  return href({ run, view: "attempt", source, step: step || null, group, attempt: id, ...more });
}

/** @param {{question: string, task: string}} row @returns {string} question or task */
export const nameOf = (row) => brief(row.question, 120) || visible(row.task);

/** @param {Row} row @returns {string} step and sample */
function placeOf(row) {
  return `${row.step ? `step ${row.step}, ` : ""}sample ${row.sample ?? "\u2013"}`;
}

/** @param {Row} row @returns {string} the terms of the reward, in words */
export function terms(row) {
  const named = Object.entries(row.terms ?? {});
  return named.map(([name, value]) => `${visible(name)} ${figure(value)}`).join(", ");
}

/** @param {{run: string, rows: Row[], caption: string, asked?: boolean}} given  `asked` shows
 *  the question */
export function Attempts({ run, rows, caption, asked = true }) {
  return html`<${Table} caption=${caption} columns=${[
    { name: "what", label: asked ? "Question" : "Attempt" },
    { name: "verdict", label: "Verdict", title: JUDGED },
    { name: "reward", label: "Reward", number: true },
    { name: "answer", label: "Answer" },
    { name: "ended", label: "Ended" },
    { name: "calls", label: "Calls", number: true, title: "tool calls, failed ones in brackets" },
    { name: "tokens", label: "Tokens", number: true, title: "tokens that the policy sampled" },
    { name: "logprob", label: "Log-prob", number: true, title: "mean of the sampled tokens, nats" },
    { name: "trained", label: "Trained" },
  ]} rows=${rows.map((row) => ({
    key: row.id,
    cells: [
      html`<a data-row
        href=${attemptAddress(run, row)}>${asked ? nameOf(row) : `#${row.sample ?? row.id}`}</a>
      ${row.label && html`<div><span class="badge">${brief(row.label, 20)}</span></div>`}
      ${asked && html`<div
        class="quiet">${placeOf(row)}</div>`}`,
      html`<${Verdict} right=${row.right} lost=${row.lost} />`,
      html`<span title=${terms(row)}>${figure(row.reward)}</span>`,
      brief(row.answer ?? "\u2013", 60),
      html`${visible(row.finish)}${row.failure && html`<div
        class="quiet">${visible(row.failure)}</div>`}`,
      html`${figure(row.calls)}${row.failed_calls > 0 && ` (${row.failed_calls})`}`,
      figure(row.sampled_tokens),
      figure(row.mean_logprob),
      row.trained === null ? "\u2013" : row.trained ? "yes" : "no",
    ],
  }))} />`;
}
