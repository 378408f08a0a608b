// From a document to the task made from it, the attempts at it and the steps that trained on them.
import { changed, go, href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure } from "../figures.js";
import { Facts, Hostile, Table, html, whenThere } from "../parts.js";
import { nameOf } from "../rows.js";
import { brief, visible } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Document} Document
 * @typedef {import("../contract.js").Groups} Groups
 * @typedef {import("../contract.js").Task} Task */

/** @param {{run: string, task: Task}} given */
function TaskLineage({ run, task }) {
  const { pattern, difficulty, synthesis, extra } = task;
  return html`<h1>${brief(task.question, 300) || visible(task.task)}</h1>
    <ol class="steps">
      <li><h2>Documents</h2>${
        task.documents.length
          ? task.documents.map(
              (one) => html`<div key=${one.id} class="card">
            <h3><a data-row
                href=${href({ run, view: "lineage", document: one.id })}
                >${brief(one.title || one.id, 100)}</a></h3>
            <${Hostile} value=${one.text} /></div>`,
            )
          : html`<p class="quiet">The run has no document that this task names.</p>`
      }</li>
      <li><h2>Synthesis</h2><${Facts} facts=${[
        ["Task", visible(task.task)],
        ["Split", task.split ?? "\u2013"],
        ["Source", visible(task.source ?? "\u2013")],
        ["Gold", brief((task.gold ?? []).join(" | ") || "\u2013", 200)],
      ]} />
        <details><summary>How it was made</summary><${Hostile}
          value=${{ pattern, difficulty, synthesis, extra }} /></details></li>
      <li><h2>Attempts</h2><ul>${task.sources.map(
        (one) => html`<li key=${one.source}><a data-row
          href=${href({ run, view: "attempts", source: one.source, task: task.task })}
          >${figure(one.attempts)} of ${visible(one.source)}</a></li>`,
      )}</ul>${task.sources.length === 0 && html`<p class="quiet">None is kept.</p>`}</li>
      <li><h2>Training</h2>${
        task.steps.length
          ? html`<${Table} caption="Steps that sampled it" columns=${[
              { name: "step", label: "Step" },
              { name: "attempts", label: "Attempts", number: true },
              { name: "right", label: "Right", number: true },
              { name: "trained", label: "Trained on" },
            ]}
        rows=${task.steps.map((step) => ({
          key: String(step.step),
          cells: [
            html`<a data-row
              href=${href({
                run,
                view: "attempts",
                source: "train",
                step: step.step,
                task: task.task,
              })}>step ${step.step}</a>`,
            figure(step.attempts),
            figure(step.right),
            step.trained === null ? "not known" : step.trained ? "yes" : "no",
          ],
        }))} />`
          : html`<p class="quiet">No step of training sampled it.</p>`
      }</li>
    </ol>`;
}

/** @param {{run: string, document: Document}} given */
function DocumentLineage({ run, document }) {
  return html`<h1>${brief(document.title || document.id, 200)}</h1>
    <${Hostile} value=${document.text} label="Document" />
    <h2>Tasks made from it</h2>
    ${
      document.tasks.length
        ? html`<ul>${document.tasks.map(
            (one) => html`<li key=${one.task}>
      <a data-row
          href=${href({ run, view: "lineage", task: one.task })}>${nameOf(one)}</a></li>`,
          )}</ul>`
        : html`<p class="quiet">None that is kept.</p>`
    }`;
}

/** @param {Given} given */
export function LineageView({ run, at, mark }) {
  const base = runPath(run.id);
  const task = useAnswer(at.task ? `${base}/tasks/${encodeURIComponent(at.task)}` : null);
  const document = useAnswer(
    at.document && !at.task ? `${base}/documents/${encodeURIComponent(at.document)}` : null,
  );
  const source = run.sources.find((one) => one.name === "train");
  const none = !at.task && !at.document;
  const groups = useAnswer(
    none && source ? `${base}/groups` : null,
    { source: "train", step: source?.last_step, limit: 50 },
    mark,
  );
  if (at.task)
    return whenThere(
      task,
      (/** @type {Task} */ said) => html`<${TaskLineage} run=${run.id} task=${said} />`,
    );
  if (at.document)
    return whenThere(
      document,
      (/** @type {Document} */ said) => html`<${DocumentLineage} run=${run.id} document=${said} />`,
    );
  /** @param {SubmitEvent} event */
  const asked = (event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    go(changed({ [String(form.get("what"))]: String(form.get("id")) }));
  };
  return html`<h1>Lineage</h1>
    <p>From a document to the questions made from it, their attempts and the steps that trained on
      them, and back.</p>
    <form class="bar" onSubmit=${asked}>
      <label>Id of a <select name="what"><option value="task">task</option><option
          value="document">document</option></select></label>
      <input name="id" required aria-label="Id" /> <button type="submit">Show</button></form>
    ${
      source &&
      whenThere(
        groups,
        (/** @type {Groups} */ said) => html`<h2>Tasks of step ${source.last_step}</h2>
      <ul>${said.groups.map(
        (group) => html`<li key=${group.group}><a data-row
        href=${changed({ task: group.task })}>${nameOf(group)}</a></li>`,
      )}</ul>`,
      )
    }`;
}
