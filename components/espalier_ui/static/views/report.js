// What a run made of what: sections of tables, each a CSV file too.
import { href } from "../address.js";
import { runPath, useAnswer } from "../answers.js";
import { Chart } from "../chart.js";
import { figure } from "../figures.js";
import { Csv, Facts, Hostile, Table, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";

/** @typedef {import("../contract.js").ReportTable} ReportTable */

const OPEN_ROWS = 30;

/** @param {import("../parts.js").Cell} cell @returns {string} */
const shown = (cell) =>
  typeof cell === "number" ? figure(cell, 4) : visible(cell ?? "").slice(0, 2000);

/** @param {ReportTable} table */
function rowsOf({ name, kind, columns, rows }) {
  const all = rows.flatMap((row) => row.slice(1).map(Number));
  const most = all.reduce((a, b) => Math.max(a, b || 0), 0);
  const table = html`<${Table} caption=${visible(name)} columns=${columns.map((label, at) => ({
    name: label,
    label: visible(label),
    number: rows.some((row) => typeof row[at] === "number"),
  }))} rows=${rows.map((row, key) => ({
    key,
    cells: row.map((cell, at) =>
      kind === "bars" && at && typeof cell === "number"
        ? html`<meter aria-hidden="true" max=${most || 1} value=${cell}></meter> ${shown(cell)}`
        : shown(cell),
    ),
  }))} csv=${html`<${Csv} name=${name} columns=${columns} rows=${rows} />`} />`;
  if (rows.length <= OPEN_ROWS) return table;
  return html`<details><summary>${visible(name)}: ${rows.length} rows</summary>${table}</details>`;
}

/** @param {ReportTable} table */
function linesOf({ name, columns, rows }) {
  const steps = rows.map((row) => Number(row[0]));
  return html`<div class="curves">${columns.slice(1).map((column, at) => {
    const [label, values] = [visible(`${name}: ${column}`), rows.map((row) => row[at + 1] ?? null)];
    return html`<section key=${column} class="curve"><h3>${label}</h3>
      <${Chart} label=${`${label}, by step`} zero lines=${[{ label, steps, values }]} /></section>`;
  })}</div>`;
}

/** @param {ReportTable} table */
function shownTable(table) {
  const { kind, name, rows } = table;
  const head = html`<h3>${visible(name)}</h3>`;
  if (kind === "lines") return html`${linesOf(table)}${rowsOf(table)}`;
  if (kind === "facts") return html`${head}<${Facts} facts=${rows.map((row) => row.map(shown))} />`;
  if (kind !== "texts") return rowsOf(table);
  return html`${head}${rows.map(
    ([title, text, more], key) => html`<details key=${key}><summary>${brief(title, 160)}</summary>
      <${Hostile} value=${text} /><p class="quiet">${shown(more)}</p></details>`,
  )}`;
}

/** @param {import("../app.js").Given} given */
export function ReportView({ run, mark }) {
  const report = useAnswer(`${runPath(run.id)}/report`, {}, mark);
  return html`<h1>${brief(run.name, 80)}</h1>
    <p class="quiet">Curves of training and notices are in the${" "}
      <a href=${href({ run: run.id, view: "overview" })}>Overview</a>.</p>
    ${whenThere(report, (/** @type {import("../contract.js").Report} */ said) =>
      said.sections.map(
        ({ title, note, tables }) => html`<section class="report" key=${title}>
          <h2>${visible(title)}</h2>${note && html`<p>${shown(note)}</p>`}
          ${tables.map(shownTable)}</section>`,
      ),
    )}`;
}
