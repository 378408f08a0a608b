// The pieces that views are made of.
import { h } from "./vendor/preact.mjs";
import { useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";
import { changed } from "./address.js";
import { figure } from "./figures.js";
import { beginning, visible } from "./visible.js";

export const html = htm.bind(h);
const MOST_MARKS = 400;
export const JUDGED = "as the verifier judged, which may be mistaken";

/** @typedef {import("./vendor/preact.mjs").Node} Node */

/** Text that a model or a tool wrote, cut with a button for more.
 * @param {{value: unknown, label?: string, marked?: string}} given */
export function Hostile({ value, label, marked }) {
  const [pages, setPages] = useState(0);
  const text = visible(value);
  const shown = beginning(text, pages);
  const left = text.length - shown.length;
  return html`<div class="hostile">
    <pre aria-label=${label} tabindex=${text.includes("\n") || text.length > 80 ? 0 : null}
      role=${label ? "group" : null}>${marked ? emphasised(shown, marked) : shown}</pre>
    ${
      left > 0 &&
      html`<button type="button" onClick=${() => setPages(pages + 1)}>
      Show more (${left.toLocaleString("en")} characters left)</button>`
    }
  </div>`;
}

/** @param {string} text @param {string} words
 *  @returns {Node} the text, with each of the words marked */
export function emphasised(text, words) {
  const wanted = visible(words).toLowerCase().split(/\s+/).filter(Boolean);
  const low = text.toLowerCase();
  // some letters change their length with their case: then nothing can be marked by position
  if (!wanted.length || low.length !== text.length) return text;
  /** @type {Node[]} */
  const parts = [];
  let at = 0;
  while (parts.length < MOST_MARKS) {
    const found = wanted
      .map((word) => ({ begin: low.indexOf(word, at), length: word.length }))
      .filter(({ begin }) => begin >= 0)
      .sort((a, b) => a.begin - b.begin)[0];
    if (!found) break;
    const end = found.begin + found.length;
    parts.push(text.slice(at, found.begin), html`<mark>${text.slice(found.begin, end)}</mark>`);
    at = end;
  }
  return [...parts, text.slice(at)];
}

/** What is shown before there is an answer, or instead of one.
 * @template T
 * @param {import("./answers.js").Answer<T>} answer
 * @param {(data: T) => Node} shown @returns {Node} */
export function whenThere(answer, shown) {
  if (answer.error) return html`<p class="problem" role="alert">${visible(answer.error)}</p>`;
  if (answer.data === null) return html`<p class="quiet" role="status">Loading\u2026</p>`;
  return shown(answer.data);
}

/** A switch between a few values of one parameter of the address.
 * @param {{name: string, label: string, values: [string, string][], now: string}} given */
export function Choice({ name, label, values, now }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${values.map(
      ([value, text]) => html`<a key=${value} href=${changed({ [name]: value })}
        aria-current=${value === now ? "true" : null}>${text}</a>`,
    )}
  </div>`;
}

/** @param {{right: boolean | null | undefined, lost?: boolean | undefined}} given  sign and
 *  word: never colour alone */
export function Verdict({ right, lost }) {
  if (lost) return html`<span class="verdict lost">\u2205 lost</span>`;
  if (right === null || right === undefined) return html`<span class="verdict">\u2013</span>`;
  return right
    ? html`<span class="verdict right" title=${JUDGED}>\u2713 right</span>`
    : html`<span class="verdict wrong" title=${JUDGED}>\u2717 wrong</span>`;
}

/** @typedef {{name: string, label: Node, number?: boolean, title?: string}} Column */

/** A table that scrolls by itself on narrow pages.
 * @param {{caption: string, columns: Column[], rows: {key: string, cells: Node[], current?:
 *   boolean}[], csv?: Node}} given */
export function Table({ caption, columns, rows, csv }) {
  return html`<div class="wide" tabindex="0" role="region" aria-label=${caption}><table>
    <caption>${caption} ${csv}</caption>
    <thead><tr>${columns.map(
      (column) => html`<th key=${column.name} scope="col" class=${column.number ? "number" : null}
        title=${column.title}>${column.label}</th>`,
    )}</tr></thead>
    <tbody>${rows.map(
      (row) =>
        html`<tr key=${row.key} class=${row.current ? "current" : null}>${row.cells.map(
          (cell, at) => html`<td class=${columns[at]?.number ? "number" : null}>${cell}</td>`,
        )}</tr>`,
    )}</tbody>
  </table></div>`;
}

/** Name and value, one below the other.
 * @param {{facts: [string, Node][]}} given */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(
    ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`,
  )}</dl>`;
}

/** Links to the pages of a long list.
 * @param {{offset: number, count: number, total: number}} given */
export function Pages({ offset, count, total }) {
  if (total <= count && offset === 0) return null;
  const last = Math.min(offset + count, total);
  return html`<nav class="pages" aria-label="Pages of this list">
    ${offset > 0 && html`<a
      href=${changed({ offset: Math.max(0, offset - count) || null })}>\u2190 before</a>`}
    <span>${`${total ? offset + 1 : 0}\u2013${last} of ${figure(total)}`}</span>
    ${offset + count < total && html`<a
      href=${changed({ offset: offset + count })}>next \u2192</a>`}
  </nav>`;
}

/** @typedef {string | number | null | undefined} Cell */

/** A link to a table as a file. A text that a spreadsheet would take for a formula begins with '.
 * @param {{name: string, columns: string[], rows: Cell[][]}} given */
export function Csv({ name, columns, rows }) {
  /** @param {Cell} cell */
  const quoted = (cell) => {
    const text = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
    return `"${String(text ?? "").replaceAll('"', '""')}"`;
  };
  const text = [columns, ...rows].map((row) => row.map(quoted).join(",")).join("\n");
  return html`<a download=${`${name.slice(0, 60).toLowerCase().replace(/\W+/g, "_")}.csv`}
    aria-label=${`${visible(name)} as CSV`}
    href=${`data:text/csv;charset=utf-8,${encodeURIComponent(text)}`}>CSV</a>`;
}
