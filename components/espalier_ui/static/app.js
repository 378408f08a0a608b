// The frame around the views: head, bar of views, help, keyboard.
import { h, render } from "./vendor/preact.mjs";
import { useEffect, useErrorBoundary, useRef } from "./vendor/hooks.mjs";
import { exported, followed, href, useAddress } from "./address.js";
import { useAnswer, useLive, runPath } from "./answers.js";
import { KEYS, pressed } from "./keys.js";
import { html, whenThere } from "./parts.js";
import { nextTheme, showTheme } from "./theme.js";
import { brief, visible } from "./visible.js";
import { AttemptView } from "./views/attempt.js";
import { AttemptsView } from "./views/attempts.js";
import { CompareView } from "./views/compare.js";
import { FailuresView } from "./views/failures.js";
import { GroupView } from "./views/group.js";
import { LabelsView } from "./views/labels.js";
import { LineageView } from "./views/lineage.js";
import { OverviewView } from "./views/overview.js";
import { ReportView } from "./views/report.js";
import { RunsView } from "./views/runs.js";
import { SearchView } from "./views/search.js";
import { StepView } from "./views/step.js";
import { TalkView } from "./views/talk.js";
import { TimelineView } from "./views/timeline.js";

/** @typedef {import("./address.js").State} State
 * @typedef {import("./contract.js").RunDetail} RunDetail */

/** What a view is given: the run, the state in the address, and a mark that changes as it runs.
 * @typedef {{run: RunDetail, at: State, mark: string}} Given */

/** @type {Record<string, [string, (given: Given) => unknown]>} */
const VIEWS = {
  overview: ["Overview", OverviewView],
  report: ["Report", ReportView],
  step: ["Steps", StepView],
  attempts: ["Attempts", AttemptsView],
  failures: ["Failures", FailuresView],
  search: ["Search", SearchView],
  timeline: ["Time-line", TimelineView],
  compare: ["Compare", CompareView],
  lineage: ["Lineage", LineageView],
  labels: ["Labels", LabelsView],
  talk: ["Talk", TalkView],
  group: ["Group", GroupView],
  attempt: ["Attempt", AttemptView],
};
const IN_BAR = Object.keys(VIEWS).slice(0, 11);
const NEED_SERVER = ["search", "labels", "talk"];

/** The way from all runs to what is shown: each a name and its address.
 * @param {State} at @param {string} view @param {RunDetail | null} run @returns {[string,
 *   string][]} */
function crumbs(at, view, run) {
  /** @type {[string, string][]} */
  const way = [["Runs", href({})]];
  if (!at.run) return way;
  way.push([brief(run?.name ?? at.run, 40), href({ run: at.run })]);
  const inGroup = view === "attempt" && at.group;
  if (["step", "group", "attempt"].includes(view) && at.step)
    way.push([`Step ${at.step}`, href({ run: at.run, view: "step", step: at.step })]);
  else if (["group", "attempt"].includes(view) && at.source)
    way.push([visible(at.source), href({ run: at.run, view: "attempts", source: at.source })]);
  if (view === "group" || inGroup) {
    const { source, step, group } = at;
    way.push([
      `Group ${brief(group, 24)}`,
      href({ run: at.run, view: "group", source, step, group }),
    ]);
  }
  const name = VIEWS[view]?.[0] ?? "Overview";
  if (view === "attempt") way.push([`Attempt ${brief(at.attempt, 24)}`, ""]);
  else if (!["overview", "step", "group"].includes(view)) way.push([name, ""]);
  return way;
}

/** @param {{at: State, view: string, run: RunDetail | null, help: () => void}} given */
function Head({ at, view, run, help }) {
  const way = crumbs(at, view, run);
  return html`<header class="top">
    <a class="name" href=${href({})}>espalier</a>
    <nav class="crumbs" aria-label="Where you are">${way.map(([name, address], index) => {
      const last = index === way.length - 1;
      return last
        ? html`<span key=${name} aria-current="page">${name}</span>`
        : html`<span key=${name}><a href=${address}
            data-key=${index === way.length - 2 ? "up" : null}>${name}</a></span>`;
    })}</nav>
    <div class="tools">
      <button type="button" onClick=${nextTheme} title="Dark or light (t)">Theme</button>
      <button type="button" onClick=${help} title="Keys (?)">Keys</button>
    </div>
  </header>`;
}

/** @param {{at: State, view: string}} given */
function Bar({ at, view }) {
  const shown = IN_BAR.filter((name) => !exported || !NEED_SERVER.includes(name));
  const bar = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    // on a phone the bar is wider than the page
    const now = bar.current?.querySelector("[aria-current]");
    if (bar.current && now instanceof HTMLElement)
      bar.current.scrollLeft = now.offsetLeft - bar.current.clientWidth / 2;
  }, [view]);
  return html`<nav class="views" ref=${bar} aria-label="Views of the run"><ul>${shown.map(
    (name) => html`<li key=${name}><a href=${href({ run: at.run, view: name })}
      aria-current=${name === view ? "page" : null}>${VIEWS[name]?.[0]}</a></li>`,
  )}</ul></nav>`;
}

/** What the page says where a view fails, instead of an empty page.
 * @param {{children?: unknown, key?: string}} given */
function Caught({ children }) {
  const [error] = useErrorBoundary();
  if (!error) return children;
  return html`<p class="problem" role="alert">This view failed: ${visible(String(error))}.
    The others still work.</p>`;
}

/** @param {{at: State, view: string, mark: string,
 *   answer: import("./answers.js").Answer<RunDetail>}} given */
function RunFrame({ at, view, mark, answer }) {
  const [name, View] = VIEWS[view] ?? ["Overview", OverviewView];
  const title = brief(answer.data?.name ?? at.run, 40);
  useEffect(() => {
    document.title = `${name} \u00b7 ${title} \u00b7 espalier`;
  }, [name, title]);
  return whenThere(answer, (run) => html`<${Caught} key=${view}>${h(View, { run, at, mark })}<//>`);
}

function App() {
  const at = useAddress();
  const first = exported ? "report" : "overview";
  const view = at.run ? (at.view && at.view in VIEWS ? at.view : first) : "runs";
  const help = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const show = () => help.current?.showModal();
    /** @param {KeyboardEvent} event */
    const listener = (event) => pressed(event, { help: show, theme: nextTheme });
    addEventListener("keydown", listener);
    document.addEventListener("click", followed);
    return () => {
      removeEventListener("keydown", listener);
      document.removeEventListener("click", followed);
    };
  }, []);
  const { mark } = useLive(at.run);
  const path = at.run ? runPath(at.run) : null;
  const detail = /** @type {import("./answers.js").Answer<RunDetail>} */ (
    useAnswer(path, {}, mark)
  );
  useEffect(() => {
    if (!at.run) document.title = "Runs \u00b7 espalier";
  }, [at.run]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>To the content</a>
    <${Head} at=${at} view=${view} run=${detail.data} help=${() => help.current?.showModal()} />
    ${at.run && html`<${Bar} at=${at} view=${view} />`}
    <main id="main" tabindex="-1">
      ${
        at.run
          ? html`<${RunFrame} key=${at.run} at=${at} view=${view} mark=${mark} answer=${detail} />`
          : html`<${Caught}><${RunsView} at=${at} /><//>`
      }
    </main>
    <dialog ref=${help} aria-label="Keys">
      <h2>Keys</h2>
      <table><tbody>${KEYS.map(
        ([key, does]) =>
          html`<tr key=${key}><th scope="row"><kbd>${key}</kbd></th><td>${does}</td></tr>`,
      )}</tbody></table>
      <form method="dialog"><p><button>Close</button></p></form>
    </dialog>`;
}

/** @param {MouseEvent} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

showTheme();
const place = /** @type {HTMLElement} */ (document.getElementById("app"));
place.replaceChildren();
render(h(App, null), place);
