// One attempt: its transcript, tokens and times, and why it has its reward.
import { useState } from "../vendor/hooks.mjs";
import { changed, exported, href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure, moment, percent, seconds } from "../figures.js";
import { KindLegend, Lanes, byKind, spanText } from "../lanes.js";
import { Choice, Facts, Verdict, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";
import { EvidenceOf } from "./evidence.js";
import { LabelForm } from "./label.js";
import { Replay } from "./replay.js";
import { TokensOf } from "./tokens.js";
import { Transcript, scheduled } from "./transcript.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Attempt} Attempt */

/** Parameters that belong to one attempt and not to the next. */
const OWN = { token: null, time: null, message: null, offset: null };
const OTHER = { ...OWN, group: null, step: null };

/** @param {{attempt: Attempt}} given */
function Neighbours({ attempt }) {
  return html`<nav class="bar" aria-label="Other attempts">
    ${attempt.previous && html`<a data-key="previous"
      href=${changed({ ...OTHER, attempt: attempt.previous })}>\u2190 previous</a>`}
    ${attempt.next && html`<a data-key="next"
      href=${changed({ ...OTHER, attempt: attempt.next })}>next \u2192</a>`}
    ${attempt.group && html`<a href=${changed({
      ...OWN,
      view: "group",
      source: attempt.source,
      step: attempt.step,
      group: attempt.group,
      attempt: null,
    })}>Its group</a>`}
    ${
      attempt.siblings.length > 1 &&
      html`<div class="choice" role="group"
        aria-label="Attempts of its group">${attempt.siblings.map(
        (one, at) => html`<a key=${one.id}
        href=${changed({ ...OWN, attempt: one.id })}
          aria-current=${one.id === attempt.id ? "true" : null}
        aria-label=${`${at + 1}, ${one.right ? "right" : "wrong"}, reward ${figure(one.reward)}`}>
        ${one.right ? "\u2713" : "\u2717"}</a>`,
      )}</div>`
    }
  </nav>`;
}

/** @param {{attempt: Attempt}} given */
function Times({ attempt }) {
  if (!attempt.spans.length) return html`<p>No times were kept of this attempt.</p>`;
  const kinds = [...new Set(attempt.spans.map((span) => span.kind))];
  const whole = byKind(attempt.spans);
  const total = whole.reduce((sum, [, time]) => sum + time, 0);
  return html`<${KindLegend} kinds=${kinds} />
    <${Lanes} lanes=${kinds}
        label=${`Time-line: ${whole.map(([kind, time]) => `${kind} ${seconds(time)}`).join(", ")}`}
      bars=${attempt.spans.map((span) => ({
        ...span,
        lane: span.kind,
        text: spanText(span, span.turn === null ? null : `turn ${span.turn + 1}`),
      }))} />
    <${Facts}
        facts=${whole.map(([kind, time]) => [kind, `${seconds(time)}, ${percent(time / total)}`])}
    />`;
}

/** @param {{run: Given["run"], attempt: Attempt}} given */
function About({ run, attempt }) {
  const { lineage } = attempt;
  const trained = lineage.trained_in;
  return html`<h2>About</h2><${Facts} facts=${[
    [
      "Ended",
      html`${visible(attempt.finish)}${attempt.failure && html`<br /><span
        class="quiet">${visible(attempt.failure)}</span>`}`,
    ],
    ["Answer", brief(attempt.answer ?? "\u2013", 200)],
    ["Gold", brief((attempt.gold ?? []).join(" | ") || "\u2013", 200)],
    [
      "Turns, calls, failed",
      `${figure(attempt.turns.length)}, ${figure(attempt.calls)}, ${figure(attempt.failed_calls)}`,
    ],
    ["Tokens, sampled", `${figure(attempt.tokens)}, ${figure(attempt.sampled_tokens)}`],
    ["Mean log-prob", figure(attempt.mean_logprob)],
    ["Advantage", figure(attempt.advantage)],
    ["Weight version", figure(attempt.policy_version)],
    ["Sampled (UTC)", moment(attempt.time)],
    [
      "Task",
      html`<a
        href=${href({ run: run.id, view: "lineage", task: attempt.task })}
        >${brief(attempt.task, 60)}</a>${!exported && html`, ${" "}
        <a href=${href({ run: run.id, view: "talk", task: attempt.task })}>play it</a>`}`,
    ],
    [
      "Trained in",
      trained === null
        ? "not known"
        : trained.length === 0
          ? "no step"
          : trained.map(
              (step) =>
                html`<a key=${step}
                  href=${href({ run: run.id, view: "step", step })}>step ${step}</a> `,
            ),
    ],
  ]} />`;
}

/** @param {{run: Given["run"], at: Given["at"], attempt: Attempt}} given */
function One({ run, at, attempt }) {
  const show = at.show ?? "transcript";
  const [time, setTime] = useState(at.time ? Number(at.time) : null);
  const { schedule, measured, length } = scheduled(attempt);
  return html`<h1><${Verdict} right=${attempt.right} lost=${attempt.lost}
      /> ${brief(attempt.question, 200)}</h1>
    <${Neighbours} attempt=${attempt} />
    <div class="two"><div>
      <${Choice} name="show" label="What to show" now=${show}
        values=${[
          ["transcript", "transcript"],
          ["tokens", "tokens"],
          ["times", "time-line"],
        ]} />
      ${
        show === "tokens"
          ? html`<${TokensOf} run=${run.id} attempt=${attempt} />`
          : show === "times"
            ? html`<${Times} attempt=${attempt} />`
            : html`<${Replay} length=${length} measured=${measured} time=${time}
              speed=${Number(at.speed ?? 1)} setTime=${setTime} />
          <${Transcript} run=${run.id} attempt=${attempt} marked=${at.q ?? ""} time=${time}
              schedule=${schedule}
            chosen=${at.message ? Number(at.message) : null} />`
      }
    </div><aside aria-label="About the attempt">
      <${EvidenceOf} attempt=${attempt} />
      <${About} run=${run} attempt=${attempt} />
      <${LabelForm} run=${run.id} attempt=${attempt} />
    </aside></div>`;
}

/** @param {Given} given */
export function AttemptView({ run, at }) {
  const path = `${runPath(run.id)}/attempts/${encodeURIComponent(at.attempt ?? "")}`;
  const answer = useAnswer(at.attempt ? path : null);
  if (!at.attempt) return html`<h1>Attempt</h1><p>Choose one from a list.</p>`;
  return whenThere(
    answer,
    (/** @type {Attempt} */ attempt) =>
      html`<${One} key=${attempt.id} run=${run} at=${at} attempt=${attempt} />`,
  );
}
