// Two to four runs, sources or steps beside each other, paired per question.
import { useState } from "../vendor/hooks.mjs";
import { changed, go, href } from "../address.js";
import { address, useAnswer, useAnswers, runPath } from "../answers.js";
import { Chart } from "../chart.js";
import { figure, percent } from "../figures.js";
import { Choice, Pages, Table, html, whenThere } from "../parts.js";
import { nameOf } from "../rows.js";
import { brief, visible } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Comparison} Comparison
 * @typedef {import("../contract.js").Figure} Figure
 * @typedef {import("../contract.js").Run} Run
 * @typedef {import("../contract.js").Steps} Steps */

const PAGE = 50;
const MOST = 4;
const SOURCES = ["trained", "warm_start", "untrained", "train", "demonstrations"];

/** @param {Given["run"]} run @returns {string[]} what is compared where nothing is chosen */
function usual(run) {
  const names = run.sources.map((source) => source.name);
  return ["untrained", "warm_start", "trained"]
    .filter((name) => names.includes(name))
    .slice(-2)
    .map((name) => `${run.id}:${name}`);
}

/** @param {string} side  RUN:SOURCE:STEPS @param {string} attempt @returns {string} */
function attemptOf(side, attempt) {
  const [run, source] = side.split(":");
  return href({ run, view: "attempt", source, attempt });
}

/** @param {{sides: string[], run: Given["run"]}} given */
function Sides({ sides, run }) {
  const runs = useAnswer("/api/runs", { limit: 200 });
  const [other, setOther] = useState(run.id);
  const [source, setSource] = useState("trained");
  const [steps, setSteps] = useState("");
  /** @param {string[]} next */
  const kept = (next) => changed({ sides: next.join(",") || null, offset: null });
  /** @param {SubmitEvent} event */
  const added = (event) => {
    event.preventDefault();
    const side = `${other}:${source}${source === "train" && steps ? `:${steps}` : ""}`;
    go(kept([...sides.filter((one) => one !== side), side].slice(-MOST)));
  };
  /** @param {Event} event @returns {string} */
  const value = (event) => /** @type {HTMLInputElement} */ (event.target).value;
  return html`<ul class="notices">${sides.map(
    (side, at) => html`<li key=${side}>
      <span class=${`swatch series-${at}`}></span><strong>${"ABCD"[at]}</strong> <span
          class="mono">${visible(side)}</span>
      ${at === 0 ? html` <span class="quiet">the others are compared with it</span>` : html` <a
        href=${kept([side, ...sides.filter((one) => one !== side)])}>put first</a>`}
      ${" "}<a href=${kept(sides.filter((one) => one !== side))}
        aria-label=${`Remove ${side}`}>\u2715 remove</a></li>`,
  )}</ul>
    <form class="bar" onSubmit=${added}>
      <label>Run <select onChange=${(/** @type {Event} */ event) => setOther(value(event))}>
        ${/** @type {Run[]} */ (/** @type {any} */ (runs.data)?.runs ?? [run]).map(
          (one) => html`
          <option key=${one.id} value=${one.id}
              selected=${one.id === other}>${brief(one.name, 50)}</option>`,
        )}</select></label>
      <label>Attempts <select onChange=${(/** @type {Event} */ event) => setSource(value(event))}>
        ${SOURCES.map((one) => html`<option key=${one} value=${one}
          selected=${one === source}>${one}</option>`)}</select></label>
      ${
        source === "train" &&
        html`<label>Steps <input size="9" placeholder="12 or 1-20" pattern="\\d+(-\\d+)?"
          value=${steps}
        onInput=${(/** @type {Event} */ event) => setSteps(value(event))} /></label>`
      }
      <button type="submit" disabled=${sides.length >= MOST}>Add</button>
    </form>`;
}

/** The overview's curves of all runs that are compared, on one axis each.
 * @param {{runs: string[]}} given */
function Curves({ runs }) {
  const answers = /** @type {import("../answers.js").Answer<Steps[]>} */ (
    useAnswers(runs.map((id) => address(`${runPath(id)}/steps`)))
  );
  const figures = useAnswer("/api/figures", { run: runs[0] });
  if (!answers.data?.some((steps) => steps.steps.length)) return null;
  const all = answers.data;
  return whenThere(
    figures,
    (/** @type {{figures: Figure[]}} */ said) => html`<h2>Curves</h2>
    <p class="legend">${runs.map((id, at) => html`<span key=${id}><span
        class=${`swatch series-${at % 4}`}></span>${visible(id)}</span>`)}</p>
    <div class="curves">${said.figures
      .filter((one) => one.overview && all.some((steps) => steps.series[one.name]))
      .map(
        (one) => html`
      <section class="curve" key=${one.name}><h3>${one.name}</h3><p class="quiet">${one.scale}</p>
        <${Chart} label=${`${one.name} of ${runs.length} runs`} sync="compare"
            zero=${one.range !== null}
          lines=${runs.map((id, at) => ({
            label: id,
            steps: all[at]?.steps ?? [],
            values: all[at]?.series[one.name] ?? [],
          }))}
          onStep=${(/** @type {number} */ step, /** @type {number} */ line) =>
            go(href({ run: runs[line], view: "step", step }))} />
      </section>`,
      )}</div>`,
  );
}

/** @param {string} first @param {Comparison} said @returns {import("../parts.js").Column[]} */
function columnsOf(first, said) {
  const sides = said.sides.map((_, at) => ({ name: `side${at}`, label: "ABCD"[at], number: true }));
  return [{ name: "first", label: first }, ...sides];
}

/** @param {number} value @param {string} text @returns {string} with its sign */
const signed = (value, text) => `${value >= 0 ? "+" : ""}${text}`;

/** @param {Comparison["differences"][0]} one @returns {string} */
function difference(one) {
  const right = one.right === null ? "\u2013" : signed(one.right, percent(one.right));
  const [low, high] = (one.ci95 ?? []).map((end) => signed(end, percent(end)));
  const interval = low && high ? ` (95% interval ${low} to ${high})` : "";
  const counts = [`${figure(one.better)} better`, `${figure(one.worse)} worse`];
  return ` minus A, over the ${figure(one.tasks)} tasks of both: right ${right}${interval}; ` +
    `${counts.join(", ")}, ${figure(one.same)} the same.`;
}

/** @param {{said: Comparison}} given */
function Actions({ said }) {
  const names = [...new Set(said.sides.flatMap((side) => side.actions.map((one) => one.action)))];
  const of = (/** @type {number} */ side, /** @type {string} */ name) =>
    said.sides[side]?.actions.find((one) => one.action === name);
  return html`<h2>Actions</h2><${Table}
    caption="Share of attempts with it, times in one; in brackets the change from A"
    columns=${columnsOf("Action", said)}
    rows=${names.map((name) => ({
      key: name,
      cells: [
        visible(name),
        ...said.sides.map((_, at) => {
          const [own, first] = [of(at, name), of(0, name)];
          const change = (own?.per_attempt ?? 0) - (first?.per_attempt ?? 0);
          return html`${percent(own?.attempts ?? 0)}, ${figure(own?.per_attempt ?? 0)}
        ${at > 0 && html` <span
          class=${Math.abs(change) > 0.2 ? "" : "quiet"}
          >(${signed(change, figure(change))})</span>`}`;
        }),
      ],
    }))} />`;
}

/** @param {{said: Comparison}} given */
function Figures({ said }) {
  const others = [...new Set(said.sides.flatMap((side) => Object.keys(side.finish)))];
  const rows = /** @type {[string, (side: Comparison["sides"][0]) => unknown][]} */ ([
    ["Attempts", (side) => figure(side.attempts)],
    ["Tasks", (side) => figure(side.tasks)],
    ["Right", (side) => percent(side.right)],
    ["Reward", (side) => figure(side.reward)],
    ["Calls per attempt", (side) => figure(side.calls)],
    ["Sampled tokens per attempt", (side) => figure(side.sampled_tokens)],
    ...others.map((name) => [
      `Ended: ${visible(name)}`,
      (/** @type {Comparison["sides"][0]} */ side) => percent(side.finish[name] ?? 0),
    ]),
  ]);
  return html`<${Table} caption="Each side by itself"
    columns=${columnsOf("Figure", said)}
    rows=${rows.map(([name, of]) => ({ key: name, cells: [name, ...said.sides.map(of)] }))} />
    ${said.differences.map(
      (
        one,
      ) => html`<p key=${one.side}><strong>${"ABCD"[one.side]}</strong>${difference(one)}</p>`,
    )}`;
}

/** @param {Given} given */
export function CompareView({ run, at }) {
  const sides = at.sides ? at.sides.split(",") : usual(run);
  const offset = Number(at.offset ?? 0);
  const sort = at.sort ?? "differs";
  const answer = useAnswer(sides.length > 1 ? "/api/compare" : null, {
    side: sides,
    sort,
    offset,
    limit: PAGE,
  });
  const runs = [...new Set(sides.map((side) => side.split(":")[0] ?? ""))];
  return html`<h1>Compare</h1>
    <${Sides} sides=${sides} run=${run} />
    ${sides.length < 2 && html`<p>Add a second side: another run, another policy of this one, or
      steps of its training.</p>`}
    ${
      sides.length > 1 &&
      whenThere(
        answer,
        (/** @type {Comparison} */ said) => html`
      <${Figures} said=${said} />
      <${Actions} said=${said} />
      <h2>Question by question</h2>
      <div class="bar"><${Choice} name="sort" label="Order" now=${sort} values=${[
        ["differs", "most different"],
        ["worse", "worse than A"],
        ["better", "better than A"],
        ["position", "as asked"],
      ]} /></div>
      <${Table}
          caption=${`${figure(said.total)} questions; right of the attempts of each side`}
        columns=${columnsOf("Question", said)}
        rows=${said.pairs.map((pair) => ({
          key: pair.task,
          cells: [
            html`<a data-row
              href=${href({ run: run.id, view: "lineage", task: pair.task })}
              >${nameOf(pair)}</a>`,
            ...pair.sides.map((one, side) =>
              one === null
                ? "\u2013"
                : one.first === null
                  ? percent(one.right)
                  : html`<a
                    href=${attemptOf(sides[side] ?? "", one.first)}>${[
                      one.right === 1 ? "\u2713" : one.right === 0 ? "\u2717" : "",
                      percent(one.right),
                    ].join(" ")}</a>`,
            ),
          ],
        }))} />
      <${Pages} offset=${offset} count=${PAGE} total=${said.total} />`,
      )
    }
    <${Curves} key=${runs.join()} runs=${runs} />`;
}
