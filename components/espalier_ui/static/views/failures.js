// Why answers failed: the attempts of a source grouped by their cause.
import { changed, href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { Chart } from "../chart.js";
import { figure, percent } from "../figures.js";
import { html, whenThere } from "../parts.js";
import { Attempts } from "../rows.js";
import { visible } from "../visible.js";
import { newestSource } from "./attempts.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Failures} Failures */

/** @param {Given} given */
export function FailuresView({ run, at, mark }) {
  const source = at.source ?? newestSource(run);
  const answer = useAnswer(
    `${runPath(run.id)}/failures`,
    { source, from: at.from, to: at.to },
    mark,
  );
  return html`<h1>Why answers failed</h1>
    <div class="bar"><div class="choice" role="group" aria-label="Source">${run.sources.map(
      (one) => html`
      <a key=${one.name} href=${changed({ source: one.name })}
          aria-current=${one.name === source ? "true" : null}>${visible(one.name)}</a>`,
    )}</div></div>
    ${whenThere(
      answer,
      (/** @type {Failures} */ said) => html`
      <p>${figure(said.failed)} of ${figure(said.attempts)} attempts were not right. Each has one
        cause: the first that fits.</p>
      ${said.causes
        .filter((cause) => cause.attempts)
        .map((cause) => {
          const all = href({
            run: run.id,
            view: "attempts",
            source,
            failure: cause.cause,
            from: at.from,
            to: at.to,
          });
          const steps = cause.by_step ?? [];
          return html`<section key=${cause.cause} class="card">
          <h2><a data-row href=${all}>${visible(cause.cause).replaceAll("_", " ")}</a>
            <span>${figure(cause.attempts)}, ${percent(cause.share)} of attempts</span></h2>
          <p class="quiet">${visible(cause.what)}</p>
          ${
            steps.length > 1 &&
            html`<${Chart} height=${90} zero label=${`Attempts by step: ${cause.cause}`}
            lines=${[
              {
                label: "attempts",
                steps: steps.map(([step]) => step),
                values: steps.map(([, count]) => count),
              },
            ]} />`
          }
          <${Attempts} run=${run.id} rows=${cause.examples}
              caption=${`Examples: ${visible(cause.cause)}`} />
        </section>`;
        })}`,
    )}`;
}
