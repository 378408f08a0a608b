// A run in about twelve curves, with what happened on the axis of its steps.
import { changed, go, href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { Chart } from "../chart.js";
import { figure, heldOut, moment } from "../figures.js";
import { Choice, Csv, Facts, Table, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Figure} Figure
 * @typedef {import("../contract.js").Notice} Notice
 * @typedef {import("../contract.js").Steps} Steps
 * @typedef {import("../chart.js").Mark} Mark */

/** @param {Notice} notice @returns {string} the colour of its mark */
export function kindOf(notice) {
  if (notice.level === "action" || notice.cost !== null) return "operator";
  return ["warning", "critical", "restart"].includes(notice.level) ? notice.level : "info";
}

/** @param {Notice} notice @returns {string} how often it was said, and what it cost */
function further({ count, cost }) {
  return `${count > 1 ? `, ${count} times` : ""}${cost === null ? "" : `, cost ${figure(cost)}`}`;
}

/** @param {Notice} notice @returns {string} */
function markText(notice) {
  const source = brief(notice.source, 30);
  return `${notice.level} of ${source}: ${brief(notice.text, 90)}${further(notice)}`;
}

/** @param {Notice[]} notices @param {{step: number | null}[]} restarts @returns {Mark[]} */
function marksOf(notices, restarts) {
  const said = notices.flatMap((notice) => {
    if (notice.step === null || notice.level === "note") return [];
    // equal lines have one mark, where they begin
    const step = notice.count > 1 ? (notice.since ?? notice.step) : notice.step;
    return [{ step, kind: kindOf(notice), text: markText(notice) }];
  });
  const known = new Set(
    notices.filter((notice) => notice.level === "restart").map((one) => one.step),
  );
  const again = restarts.flatMap(({ step }) =>
    step === null || known.has(step) ? [] : [{ step, kind: "restart", text: "restart" }],
  );
  return [...said, ...again];
}

/** Definitions name columns in backticks.
 * @param {string} text */
export function defined(text) {
  return text
    .split("`")
    .map((part, at) => (at % 2 ? html`<code>${visible(part)}</code>` : visible(part)));
}

/** @param {{figure: Figure, steps: Steps, marks: Mark[], run: string}} given */
function Curve({ figure: one, steps, marks, run }) {
  const values = steps.series[one.name] ?? [];
  const newest = values.map((value) => value !== null).lastIndexOf(true);
  const older = newest >= 0 && newest < values.length - 1;
  const what = one.what || "a figure of a loss of your own";
  return html`<section class="curve">
    <h3><span>${one.name}</span><span>${figure(values[newest])}${older &&
    html` <span class="quiet">in step ${steps.steps[newest]}</span>`}</span></h3>
    <p class="defined" title=${visible(what)}>${defined(what)}</p>
    <p class="quiet">${one.scale || "\u00a0"}</p>
    <${Chart} label=${`${one.name}, ${one.scale}, by step`} marks=${marks} sync="overview"
      zero=${one.range !== null} lines=${[{ label: one.name, steps: steps.steps, values }]}
      onStep=${(/** @type {number} */ step) => go(href({ run, view: "step", step }))} />
    <details><summary>Definition, and what it is per</summary>
      <p>${defined(what)}.</p>
      ${one.per && html`<p class="quiet">Per ${one.per}: ${defined(one.covers)}.</p>`}
    </details>
  </section>`;
}

/** @param {{notices: Notice[], run: string}} given */
function Notices({ notices, run }) {
  return html`<ul class="notices">${notices.map(
    (notice, index) => html`<li key=${index}>
    <span class=${`badge ${kindOf(notice)}`}>${notice.level}</span>
    ${notice.step !== null && html` <a data-row
      href=${href({ run, view: "step", step: notice.step })}>step ${notice.step}</a>`}
    ${
      notice.since !== null &&
      notice.since !== notice.step &&
      html` <span class="quiet">since <a
        href=${href({ run, view: "step", step: notice.since })}>step ${notice.since}</a></span>`
    }
    <span class="quiet">${` ${visible(notice.source)}${further(notice)}, `}
      ${moment(notice.time)}</span>
    <div>${visible(notice.text).slice(0, 2000)}</div>
    ${notice.figure && html`<div
      class="quiet">Seen in <code>${visible(notice.figure)}</code></div>`}
    ${notice.key && html`<div
      class="quiet">Key to change: <code>${visible(notice.key)}</code></div>`}
    ${
      notice.attempts.length > 0 &&
      html`<div>Shown by ${notice.attempts.map(
        (id, at) => html`
      <a key=${id}
          href=${href({ run, view: "attempt", source: "train", attempt: id })}
          >${brief(notice.names[at] ?? id, 60)}</a> `,
      )}</div>`
    }
  </li>`,
  )}</ul>`;
}

/** @param {Given} given */
export function OverviewView({ run, at, mark }) {
  const all = at.figures === "all";
  const base = runPath(run.id);
  const figures = useAnswer("/api/figures", { run: run.id }, mark);
  const noticed = useAnswer(`${base}/notices`, { limit: 500 }, mark);
  const names =
    all && figures.data
      ? /** @type {any} */ (figures.data).figures
          .map((/** @type {Figure} */ one) => one.name)
          .join(",")
      : "";
  const steps = useAnswer(`${base}/steps`, { names }, mark);
  const notices = /** @type {Notice[]} */ (/** @type {any} */ (noticed.data)?.notices ?? []);
  const marks = marksOf(notices, run.restarts);
  return html`<h1>${brief(run.name, 80)}</h1>
    <${Facts} facts=${[
      ["State", html`${run.state}${run.stage ? `, ${visible(run.stage)}` : ""}`],
      ["Step", run.step === null ? "\u2013" : `${run.step}${run.steps ? ` of ${run.steps}` : ""}`],
      ["Family, model", brief([run.family, run.model].filter(Boolean).join(", ") || "\u2013", 80)],
      ["Held-out, untrained \u2192 warm start \u2192 trained", heldOut(run.heldout)],
      ["Started, last written (UTC)", `${moment(run.started)}, ${moment(run.updated)}`],
      ["Folder", html`<span class="mono">${brief(run.path, 200)}</span>`],
    ]} />
    <div class="bar">
      <h2>Curves</h2>
      <${Choice} name="figures" label="Which curves" now=${all ? "all" : ""}
        values=${[
          ["", "overview"],
          ["all", "all figures"],
        ]} />
      <span class="quiet">Click a point, or press Enter on it, to open its step. Nothing is
        smoothed.</span>
    </div>
    ${whenThere(figures, (/** @type {{figures: Figure[]}} */ said) =>
      whenThere(steps, (/** @type {Steps} */ drawn) => {
        if (!drawn.steps.length) return html`<p>No step of training is written yet.</p>`;
        const shown = said.figures.filter((one) => (all || one.overview) && drawn.series[one.name]);
        return html`${drawn.stride > 1 && html`<p
          class="quiet">Every ${drawn.stride}th step is drawn.</p>`}
          <${Csv} name="curves" columns=${["step", ...shown.map((one) => one.name)]}
            rows=${drawn.steps.map((step, at) => [
              step,
              ...shown.map((one) => drawn.series[one.name]?.[at]),
            ])} />
          <div class="curves">${shown.map(
            (one) => html`<${Curve} key=${one.name} figure=${one}
            steps=${drawn} marks=${marks} run=${run.id} />`,
          )}</div>`;
      }),
    )}
    <h2>Notices, restarts and operators</h2>
    ${noticed.error && html`<p class="problem">${visible(noticed.error)}</p>`}
    ${notices.length ? html`<${Notices} notices=${notices} run=${run.id} />` : html`<p
      class="quiet">None.</p>`}
    <h2>Attempts</h2>
    <${Table} caption="Where attempts were kept" columns=${[
      { name: "source", label: "Source" },
      { name: "attempts", label: "Attempts", number: true },
      { name: "steps", label: "Steps" },
      { name: "kept", label: "Kept" },
    ]} rows=${run.sources.map((source) => ({
      key: source.name,
      cells: [
        html`<a data-row
          href=${href({ run: run.id, view: "attempts", source: source.name })}
            >${visible(source.name)}</a>`,
        figure(source.attempts),
        source.first_step === null ? "\u2013" : `${source.first_step}\u2013${source.last_step}`,
        source.complete ? "all" : source.name === "train" ? "those of the last step" : "some",
      ],
    }))} />
    <p class="quiet"><a href=${changed({ view: "labels" })}>${run.labels} labels</a></p>`;
}
