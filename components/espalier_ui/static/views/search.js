// Search in the messages and results of all attempts of a run.
import { useEffect, useRef } from "../vendor/hooks.mjs";
import { changed, go } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure, percent } from "../figures.js";
import { Choice, Pages, Verdict, html, whenThere } from "../parts.js";
import { attemptAddress } from "../rows.js";
import { brief, visible } from "../visible.js";
import { Select, VERDICTS } from "./attempts.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Hits} Hits */

const PAGE = 30;
const WAIT_MS = 200;
const ROLES = ["system", "user", "assistant", "tool"];

/** The words around a hit; the marks count characters of the text as it was written.
 * @param {string} snippet @param {[number, number][]} marks */
function marked(snippet, marks) {
  /** @type {import("../parts.js").Node[]} */
  const parts = [];
  let at = 0;
  for (const [begin, end] of marks) {
    parts.push(
      visible(snippet.slice(at, begin)),
      html`<mark>${visible(snippet.slice(begin, end))}</mark>`,
    );
    at = end;
  }
  return [...parts, visible(snippet.slice(at))];
}

/** @param {import("../contract.js").Hit} hit @returns {string} */
function placeOf({ attempt, role }) {
  const step = !attempt.step ? "" : `step ${attempt.step}`;
  return [visible(attempt.source), step, visible(role)].filter(Boolean).join(", ");
}

/** @param {Hits} said @returns {string} */
function counted(said) {
  const exact = typeof said.total === "number";
  const total = figure(typeof said.total === "number" ? said.total : said.total.at_least);
  const among = said.indexed === null || said.indexed >= 1 ? ""
    : `, among the ${percent(said.indexed)} of attempts that can be searched by now`;
  return `${exact ? "" : "at least "}${total} messages${among}`;
}

/** @param {Given} given */
export function SearchView({ run, at, mark }) {
  const offset = Number(at.offset ?? 0);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  useEffect(() => field.current?.focus(), []);
  const answer = useAnswer(
    at.q ? `${runPath(run.id)}/search` : null,
    { q: at.q, source: at.source, role: at.role, right: at.right, offset, limit: PAGE },
    mark,
  );
  /** @param {InputEvent} event */
  const typed = (event) => {
    const q = /** @type {HTMLInputElement} */ (event.target).value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go(changed({ q, offset: null }), { replace: true }), WAIT_MS);
  };
  return html`<h1>Search</h1>
    <div class="bar">
      <input ref=${field} type="search" aria-label="Words in messages and results"
          value=${at.q ?? ""} onInput=${typed}
        placeholder='Words, or "a phrase"' />
      <${Select} name="source" label="In" now=${at.source ?? ""}
        values=${[["", "all attempts"], ...run.sources.map(({ name }) => [name, name])]} />
      <${Select} name="role" label="Written by" now=${at.role ?? ""}
        values=${[["", "anyone"], ...ROLES.map((role) => [role, role])]} />
      <${Choice} name="right" label="Verdict" now=${at.right ?? ""} values=${VERDICTS} />
    </div>
    ${!at.q && html`<p
      class="quiet">All words must occur in one message; the last may be the beginning of a
      word.</p>`}
    ${
      at.q &&
      whenThere(answer, (/** @type {Hits} */ said) => {
        const total = typeof said.total === "number" ? said.total : said.total.at_least;
        return html`<p role="status">${counted(said)}</p>
        ${said.hits.map(
          (
            hit,
          ) => html`<article key=${`${hit.attempt.id}/${hit.message}/${hit.role}`} class="message">
          <header><a data-row
              href=${attemptAddress(run.id, hit.attempt, {
                message: hit.message,
                q: at.q?.replaceAll('"', "") ?? null,
              })}>
            ${brief(hit.attempt.question, 100) || visible(hit.attempt.id)}</a>
            <${Verdict} right=${hit.attempt.right} lost=${hit.attempt.lost} />
            <span>${placeOf(hit)}</span></header>
          <pre>${marked(hit.snippet, hit.marks)}</pre></article>`,
        )}
        <${Pages} offset=${offset} count=${PAGE} total=${total} />`;
      })
    }`;
}
