// Where the time goes: sampling, tools, update and waiting, by worker.
import { changed, href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure, percent, seconds } from "../figures.js";
import { KindLegend, Lanes, byKind, spanText } from "../lanes.js";
import { Table, html, whenThere } from "../parts.js";
import { visible } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Timeline} Timeline */

const STEPS = 5;

/** @param {Given} given */
export function TimelineView({ run, at, mark }) {
  const last = run.step ?? 0;
  const to = at.to ? Number(at.to) : last;
  const from = at.from ? Number(at.from) : Math.max(1, to - STEPS + 1);
  const answer = useAnswer(`${runPath(run.id)}/timeline`, { from, to }, mark);
  const count = to - from + 1;
  return html`<h1>Time-line</h1>
    <div class="bar">
      ${from > 1 && html`<a data-key="previous"
        href=${changed({ from: Math.max(1, from - count), to: from - 1 })}>\u2190 earlier</a>`}
      <span>Steps ${from}\u2013${to}</span>
      ${to < last && html`<a data-key="next"
        href=${changed({ from: to + 1, to: Math.min(last, to + count) })}>later \u2192</a>`}
      ${count > 1 && html`<a
        href=${changed({ from: to - Math.ceil(count / 2) + 1, to })}>fewer steps</a>`}
      ${count < last && html`<a
        href=${changed({ from: Math.max(1, to - count * 2 + 1), to })}>more steps</a>`}
    </div>
    ${whenThere(answer, (/** @type {Timeline} */ said) => {
      if (!said.spans.length) return html`<p>No times were kept of these steps.</p>`;
      const kinds = [...new Set(said.spans.map((span) => span.kind))];
      return html`${said.cut && html`<p>Only the first ${figure(said.spans.length)} spans are
          drawn: choose fewer steps.</p>`}
        <${KindLegend} kinds=${kinds} />
        <${Lanes} lanes=${said.workers}
            label=${`Time of steps ${from} to ${to} by worker; the tables below have its sums`}
          ticks=${said.steps.map((step) => ({ at: step.start, text: String(step.step) }))}
          bars=${said.spans.map((span) => ({
            ...span,
            lane: span.worker,
            text: spanText(span, span.step === null ? null : `step ${span.step}`),
            address: span.attempt
              ? href({
                  run: run.id,
                  view: "attempt",
                  source: "train",
                  step: span.step,
                  attempt: span.attempt,
                })
              : undefined,
          }))} />
        <${Table} caption="Seconds by worker and kind" columns=${[
          { name: "worker", label: "Worker" },
          ...kinds.map((kind) => ({ name: kind, label: visible(kind), number: true })),
        ]}
          rows=${said.workers.map((worker) => {
            const own = new Map(byKind(said.spans.filter((span) => span.worker === worker)));
            const whole = [...own.values()].reduce((a, b) => a + b, 0);
            return {
              key: worker,
              cells: [
                visible(worker),
                ...kinds.map((kind) =>
                  own.has(kind)
                    ? `${seconds(own.get(kind))}, ${percent((own.get(kind) ?? 0) / whole)}`
                    : "\u2013",
                ),
              ],
            };
          })} />
        <${Table} caption="Steps" columns=${[
          { name: "step", label: "Step" },
          { name: "time", label: "Time", number: true },
          ...kinds.map((kind) => ({ name: kind, label: visible(kind), number: true })),
        ]}
          rows=${said.steps.map((step) => {
            const own = new Map(byKind(said.spans.filter((span) => span.step === step.step)));
            return {
              key: String(step.step),
              cells: [
                html`<a data-row
                  href=${href({ run: run.id, view: "step", step: step.step })}
                  >step ${step.step}</a>`,
                seconds(step.end - step.start),
                ...kinds.map((kind) => (own.has(kind) ? seconds(own.get(kind)) : "\u2013")),
              ],
            };
          })} />`;
    })}`;
}
