// Attempts of one source, filtered and ordered: all of them, held-out ones as well.
import { changed, go } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { Choice, Pages, html, whenThere } from "../parts.js";
import { Attempts } from "../rows.js";
import { visible } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Rows} Rows */

const PAGE = 50;
const FILTERS = [
  "step",
  "from",
  "to",
  "task",
  "group",
  "right",
  "finish",
  "failure",
  "tool",
  "min_reward",
  "max_reward",
];
const ORDERS = [
  ["", "as sampled"],
  ["-reward", "highest reward"],
  ["reward", "lowest reward"],
  ["-tokens", "longest"],
  ["tokens", "shortest"],
  ["-calls", "most calls"],
  ["calls", "fewest calls"],
  ["logprob", "least likely"],
  ["-logprob", "most likely"],
];

/** @type {[string, string][]} */
export const VERDICTS = [
  ["", "all"],
  ["true", "right"],
  ["false", "wrong"],
];

/** A field that changes one parameter of the address.
 * @param {{name: string, label: string, values: string[][], now: string}} given */
export function Select({ name, label, values, now }) {
  /** @param {Event} event */
  const chosen = (event) =>
    go(changed({ [name]: /** @type {HTMLSelectElement} */ (event.target).value, offset: null }));
  return html`<label>${label} <select onChange=${chosen}>${values.map(
    ([value, text]) =>
      html`<option key=${value} value=${value} selected=${value === now}>${text}</option>`,
  )}</select></label>`;
}

/** The source that is shown where none is chosen: the policy that was trained last.
 * @param {Given["run"]} run @returns {string} */
export function newestSource(run) {
  const names = run.sources.map((source) => source.name);
  return (
    ["trained", "warm_start", "untrained", "train"].find((name) => names.includes(name)) ??
    names[0] ??
    "train"
  );
}

/** @param {Given} given */
export function AttemptsView({ run, at, mark }) {
  const source = at.source ?? newestSource(run);
  const offset = Number(at.offset ?? 0);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, at[name]]));
  const set = FILTERS.filter((name) => at[name] && name !== "right");
  const answer = useAnswer(
    `${runPath(run.id)}/attempts`,
    { source, ...filters, sort: at.sort, offset, limit: PAGE },
    mark,
  );
  const cleared = Object.fromEntries(FILTERS.map((name) => [name, null]));
  return html`<h1>Attempts</h1>
    <div class="bar">
      <div class="choice" role="group" aria-label="Source">${run.sources.map(
        (one) => html`
        <a key=${one.name} href=${changed({ ...cleared, source: one.name, offset: null })}
          aria-current=${one.name === source ? "true" : null}>${visible(one.name)}
          <span class="quiet"> ${one.attempts.toLocaleString("en")}</span></a>`,
      )}</div>
      <${Choice} name="right" label="Verdict" now=${at.right ?? ""} values=${VERDICTS} />
      <${Select} name="sort" label="Order" now=${at.sort ?? ""} values=${ORDERS} />
    </div>
    ${
      set.length > 0 &&
      html`<p>Only with ${set.map(
        (name) => html`<a key=${name} class="badge"
      href=${changed({ [name]: null, offset: null })} title="Remove this filter">
      ${name.replace("_", " ")}: ${visible(at[name])} \u2715</a> `,
      )}</p>`
    }
    ${whenThere(
      answer,
      (/** @type {Rows} */ said) => html`
      <${Attempts} run=${run.id} rows=${said.attempts}
          caption=${`${said.total.toLocaleString("en")} attempts`} />
      <${Pages} offset=${offset} count=${PAGE} total=${said.total} />`,
    )}`;
}
