// How a figure is spread over attempts: bins that open the attempts within them.
import { href } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure } from "../figures.js";
import { html, whenThere } from "../parts.js";

/** @typedef {import("../contract.js").Histogram} Histogram */

const BINS = 10;

/** @param {{run: string, source: string, step?: number | null, mark: string}} given */
export function Spread({ run, source, step = null, mark }) {
  const path = `${runPath(run)}/histogram`;
  const answer = useAnswer(path, { source, step, of: "reward", bins: BINS }, mark);
  return html`<h2>Rewards</h2>${whenThere(answer, (/** @type {Histogram} */ said) => {
    const counts = said.right.map((right, at) => right + (said.wrong[at] ?? 0));
    const most = Math.max(1, ...counts);
    if (!counts.some(Boolean)) return html`<p class="quiet">No attempt with a reward.</p>`;
    return html`<div class="histogram" role="list" aria-label="Attempts by reward">${counts.flatMap(
      (count, at) => {
        if (!count) return [];
        const [low, high] = [said.edges[at] ?? 0, said.edges[at + 1] ?? 0];
        // a bin does not hold its right edge, but for the last
        const below = at === counts.length - 1 ? high : Number((high - 1e-9).toPrecision(12));
        const [from, to] = [figure(low), figure(high)];
        const address = href({
          run,
          view: "attempts",
          source,
          step,
          min_reward: low,
          max_reward: below,
        });
        return [
          html`<div role="listitem" key=${at} class="bin">
        <a href=${address}>${from === to ? from : `${from} \u2013 ${to}`}</a>
        <span class="bar-of" style=${`width:${(count / most) * 100}%`}></span>
        <span class="number">${count} <span class="quiet">(${said.right[at]} right)</span></span>
      </div>`,
        ];
      },
    )}</div>`;
  })}`;
}
