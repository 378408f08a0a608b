// One step of training: its groups, and how its rewards are spread.
import { useEffect } from "../vendor/hooks.mjs";
import { changed, go, href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure, percent } from "../figures.js";
import { Choice, JUDGED, Pages, Table, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";
import { Spread } from "./spread.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Group} Group
 * @typedef {import("../contract.js").Groups} Groups */

const PAGE = 40;

/** Marks of a group's attempts: a tick or a cross each, in order.
 * @param {Group} group */
function marks(group) {
  const text = group.attempts
    .map((row) => (row.lost ? "\u2205" : row.right ? "\u2713" : "\u2717"))
    .join("");
  return html`<span class="mono" aria-hidden="true">${text}</span>`;
}

/** @param {{run: string, groups: Group[], caption: string}} given */
export function GroupTable({ run, groups, caption }) {
  return html`<${Table} caption=${caption} columns=${[
    { name: "question", label: "Question" },
    { name: "right", label: "Right", number: true, title: JUDGED },
    { name: "marks", label: "Attempts" },
    { name: "reward", label: "Reward, mean", number: true },
    { name: "range", label: "least \u2013 most", number: true },
    { name: "trained", label: "Trained" },
  ]} rows=${groups.map((group) => ({
    key: group.group,
    cells: [
      html`<a data-row href=${href({
        run,
        view: "group",
        source: group.attempts[0]?.source ?? "train",
        step: group.step,
        group: group.group,
      })}>${brief(group.question, 120) || visible(group.task)}</a>
      ${group.gold && html`<div class="quiet">gold: ${brief(group.gold.join(" | "), 80)}</div>`}`,
      `${group.right}/${group.size}`,
      marks(group),
      figure(group.reward_mean),
      `${figure(group.reward_min)} \u2013 ${figure(group.reward_max)}`,
      group.trained === null ? "\u2013" : group.trained ? "yes" : "no",
    ],
  }))} />`;
}

/** @param {{name: string, source: import("../contract.js").Source | undefined, step: number,
 *  run: string}} given */
function Neighbours({ source, step, run }) {
  const first = source?.first_step ?? step;
  const last = source?.last_step ?? step;
  return html`<nav class="bar" aria-label="Steps">
    ${step > first && html`<a data-key="previous"
      href=${href({ run, view: "step", step: step - 1 })}>\u2190 step ${step - 1}</a>`}
    ${step < last && html`<a data-key="next"
      href=${href({ run, view: "step", step: step + 1 })}>step ${step + 1} \u2192</a>`}
  </nav>`;
}

/** @param {Given} given */
export function StepView({ run, at, mark }) {
  const source = run.sources.find((one) => one.name === "train");
  const step = at.step ? Number(at.step) : (source?.last_step ?? run.step);
  const offset = Number(at.offset ?? 0);
  const kind = at.kind ?? "";
  const sort = at.sort ?? "position";
  const path = step === null ? null : `${runPath(run.id)}/groups`;
  const answer = useAnswer(path, { source: "train", step, kind, sort, offset, limit: PAGE }, mark);
  useEffect(() => {
    // the newest step stays the one that is read, also when a newer one comes
    if (!at.step && step !== null) go(changed({ step }), { replace: true });
  }, [at.step, step]);
  if (step === null) return html`<h1>Steps</h1><p>No step of training is written yet.</p>`;
  return html`<h1>Step ${step}</h1>
    <${Neighbours} source=${source} step=${step} run=${run.id} />
    <${Spread} run=${run.id} source="train" step=${step} mark=${mark} />
    <h2>Groups</h2>
    <div class="bar">
      <${Choice} name="kind" label="Which groups" now=${kind} values=${[
        ["", "all"],
        ["mixed", "mixed"],
        ["all_right", "all right"],
        ["all_wrong", "all wrong"],
      ]} />
      <${Choice} name="sort" label="Order" now=${sort} values=${[
        ["position", "as sampled"],
        ["-spread", "most spread"],
        ["spread", "least spread"],
        ["pass", "fewest right"],
        ["-pass", "most right"],
      ]} />
    </div>
    ${whenThere(
      answer,
      (/** @type {Groups} */ said) => html`
      <${GroupTable} run=${run.id} groups=${said.groups}
        caption=${`${said.total} groups; right on this page: ${percent(rate(said.groups))}`} />
      ${
        said.total === 0 &&
        html`<p>No attempts of this step are kept${
          source?.complete === false
            ? ` (the run kept those of step ${source.last_step} alone)`
            : ""
        }.
        ${source?.last_step && html` <a
          href=${changed({ step: source.last_step })}>Step ${source.last_step}</a>`}</p>`
      }
      <${Pages} offset=${offset} count=${PAGE} total=${said.total} />`,
    )}`;
}

/** @param {Group[]} groups @returns {number | null} */
function rate(groups) {
  const size = groups.reduce((sum, group) => sum + group.size, 0);
  return size ? groups.reduce((sum, group) => sum + group.right, 0) / size : null;
}
