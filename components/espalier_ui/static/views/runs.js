// All runs, newest first, with a search and a choice of some to compare.
import { useRef } from "../vendor/hooks.mjs";
import { changed, go, href } from "../address.js";
import { useAnswer } from "../answers.js";
import { figure, heldOut, moment, percent } from "../figures.js";
import { Pages, Table, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";

/** @typedef {import("../contract.js").Run} Run
 * @typedef {import("../address.js").State} State */

const PAGE = 50;
const MOST_COMPARED = 4;

/** @param {string | undefined} chosen @returns {string[]} */
const listed = (chosen) => (chosen ? chosen.split(",") : []);

/** @param {string[]} chosen @param {string} id @returns {string} the choice with the run put in
 *  or out */
function toggled(chosen, id) {
  const others = chosen.filter((one) => one !== id);
  return (others.length < chosen.length ? others : [...others, id].slice(-MOST_COMPARED)).join(",");
}

/** @param {Run} run */
function state(run) {
  const kind = run.state === "running" ? "live" : run.state === "stopped" ? "failed" : "";
  return html`<span class=${`badge ${kind}`}>${run.state}</span>
    ${run.stage && html` <span class="quiet">${visible(run.stage)}</span>`}`;
}

/** @param {Run} run */
function notices(run) {
  const found = Object.entries(run.notices).filter(([level, count]) => count && level !== "note");
  return found.map(
    ([level, count]) => html`<span class=${`badge ${level}`}>${count} ${level}</span> `,
  );
}

/** @param {{at: State}} given */
export function RunsView({ at }) {
  const offset = Number(at.offset ?? 0);
  const answer = useAnswer("/api/runs", { q: at.q, offset, limit: PAGE });
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  const chosen = listed(at.chosen);
  /** @param {InputEvent} event */
  const typed = (event) => {
    const q = /** @type {HTMLInputElement} */ (event.target).value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go(changed({ q, offset: null }), { replace: true }), 150);
  };
  return html`<h1>Runs</h1>
    <div class="bar">
      <input type="search" aria-label="Search in runs" placeholder="Name, folder, family, model"
        value=${at.q ?? ""} onInput=${typed} />
      ${
        chosen.length > 1 &&
        html`<a href=${href({
          run: chosen[0],
          view: "compare",
          sides: chosen.map((id) => `${id}:trained`).join(","),
        })}>Compare ${chosen.length} runs</a>`
      }
    </div>
    ${whenThere(
      answer,
      (/** @type {{runs: Run[], total: number}} */ said) => html`
      <${Table} caption=${`${said.total} runs`} columns=${[
        { name: "pick", label: "Compare" },
        { name: "name", label: "Run" },
        { name: "state", label: "State" },
        { name: "step", label: "Step", number: true },
        { name: "reward", label: "Reward", number: true, title: "mean of the newest step" },
        {
          name: "pass",
          label: "Pass rate",
          number: true,
          title: "share of trajectories, newest step",
        },
        { name: "dev", label: "Dev", number: true, title: "share of dev questions, newest known" },
        {
          name: "held",
          label: "Held-out",
          number: true,
          title: "share of held-out questions: untrained, warm start, trained",
        },
        { name: "notices", label: "Notices" },
        { name: "updated", label: "Written (UTC)" },
      ]} rows=${said.runs.map((run) => ({
        key: run.id,
        cells: [
          html`<input type="checkbox" aria-label=${`Compare ${brief(run.name, 40)}`}
            checked=${chosen.includes(run.id)}
            onChange=${() =>
              go(changed({ chosen: toggled(chosen, run.id) }), { replace: true })} />`,
          html`<a data-row href=${href({ run: run.id })}>${brief(run.name, 60)}</a>
            <div class="quiet">${[run.family, run.model]
              .flatMap((name) => (name ? [brief(name, 40)] : []))
              .join(", ")}</div>`,
          state(run),
          run.step === null ? "\u2013" : `${run.step}${run.steps ? `/${run.steps}` : ""}`,
          figure(run.figures.reward),
          percent(run.figures.pass_rate),
          percent(run.figures.dev_em),
          heldOut(run.heldout),
          notices(run),
          moment(run.updated),
        ],
      }))} />
      <${Pages} offset=${offset} count=${PAGE} total=${said.total} />
      ${said.runs.length === 0 && html`<p>${at.q ? "No run matches." : "No run was given."}</p>`}
    `,
    )}`;
}
