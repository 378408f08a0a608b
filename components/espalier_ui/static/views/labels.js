// The labels given in the viewer, and the rows that they make.
import { href } from "../address.js";
import { useAnswer } from "../answers.js";
import { moment } from "../figures.js";
import { Pages, Table, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Label} Label */

const PAGE = 100;

/** @param {Given} given */
export function LabelsView({ run, at, mark }) {
  const offset = Number(at.offset ?? 0);
  const answer = useAnswer("/api/labels", { run: run.id, offset, limit: PAGE }, mark);
  const about = useAnswer("/api/about");
  const file = /** @type {any} */ (about.data)?.labels_file ?? "a file of the viewer\u2019s";
  return html`<h1>Labels</h1>
    <p>Kept in <span
        class="mono">${visible(file)}</span>, never in a run.
      In an attempt, g labels it good and b bad.</p>
    <p class="bar"><a download href="/api/labels/export?form=sft">SFT rows (JSON lines)</a>
      <a download href="/api/labels/export?form=preferences">Preference rows (JSON lines)</a></p>
    ${whenThere(
      answer,
      (/** @type {{total: number, labels: Label[]}} */ said) => html`
      <${Table} caption=${`${said.total} labels of this run`} columns=${[
        { name: "attempt", label: "Attempt" },
        { name: "label", label: "Label" },
        { name: "note", label: "Note" },
        { name: "task", label: "Task" },
        { name: "time", label: "Given (UTC)" },
      ]}
        rows=${said.labels.map((label) => ({
          key: label.attempt,
          cells: [
            html`<a data-row
              href=${href({
                run: label.run,
                view: "attempt",
                attempt: label.attempt,
                group: label.group,
              })}>${brief(label.attempt, 40)}</a>`,
            visible(label.label),
            brief(label.note, 200),
            label.task
              ? html`<a
                href=${href({ run: label.run, view: "lineage", task: label.task })}
                >${brief(label.task, 40)}</a>`
              : "\u2013",
            moment(label.time),
          ],
        }))} />
      <${Pages} offset=${offset} count=${PAGE} total=${said.total} />`,
    )}`;
}
