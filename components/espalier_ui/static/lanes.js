// Spans of time, a lane each for what ran beside each other.
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import { seconds } from "./figures.js";
import { html } from "./parts.js";
import { visible } from "./visible.js";

/** @typedef {{lane: string, kind: string, start: number, end: number, text: string,
 *   address?: string | undefined}} Bar
 * @typedef {{at: number, text: string}} Tick */

const LANE_PX = 26;
const NAME_PX = 92;
const AXIS_PX = 20;
const TICKS_PX = 14;
const KINDS = [
  ...["sampling", "tools", "update", "waiting"],
  ...["evaluation", "scoring", "checkpoint", "other"],
];

/** @param {string} kind @returns {string} its class in the style sheet */
export const classOf = (kind) => `kind-${KINDS.includes(kind) ? kind : "other"}`;

/** @param {number} span @returns {number} a round distance of ticks, about six to a span */
function tickEvery(span) {
  const rough = span / 6 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return ([1, 2, 5, 10].find((step) => step * power >= rough) ?? 10) * power;
}

/** @param {{kind: string, start: number, end: number}} span @param {string | null} where
 * @returns {string} */
export function spanText(span, where) {
  return [span.kind, seconds(span.end - span.start), where].filter(Boolean).join(", ");
}

/** @param {{kinds: string[]}} given */
export function KindLegend({ kinds }) {
  return html`<p class="legend">${kinds.map(
    (kind) => html`<span key=${kind}>
    <span class=${`swatch ${classOf(kind)}`}></span>${visible(kind)}</span>`,
  )}</p>`;
}

/** @param {{lanes: string[], bars: Bar[], label: string, ticks?: Tick[], cursor?: number |
 *  null}} given */
export function Lanes({ lanes, bars, label, ticks = [], cursor = null }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const box = /** @type {HTMLDivElement} */ (place.current);
    const sized = new ResizeObserver(() => setWidth(Math.max(box.clientWidth, 280)));
    sized.observe(box);
    return () => sized.disconnect();
  }, []);
  const begin = bars.reduce((least, bar) => Math.min(least, bar.start), Infinity);
  const end = bars.reduce((most, bar) => Math.max(most, bar.end), -Infinity);
  const span = Math.max(end - begin, 1e-6);
  /** @param {number} time @returns {number} */
  const x = (time) => NAME_PX + ((time - begin) / span) * (width - NAME_PX - 8);
  const every = tickEvery(span);
  const axis = Array.from({ length: Math.floor(span / every) + 1 }, (_, at) => at * every);
  const top = ticks.length ? TICKS_PX : 0;
  const height = top + lanes.length * LANE_PX + AXIS_PX;
  return html`<div ref=${place}>
    <svg class="lanes" role="group" aria-label=${label} width=${width} height=${height}
        viewBox=${`0 0 ${width} ${height}`}>
      ${axis.map(
        (time) => html`<g key=${time}>
        <line class="axis" x1=${x(begin + time)} x2=${x(begin + time)} y1="0"
            y2=${height - AXIS_PX} />
        <text x=${x(begin + time)} y=${height - 6}>${seconds(time)}</text></g>`,
      )}
      ${ticks.map((tick) => html`<text key=${tick.at} x=${x(tick.at)} y="10">${tick.text}</text>`)}
      ${lanes.map(
        (lane, at) => html`<g key=${lane}>
        <text x="0" y=${top + at * LANE_PX + 18}>${visible(lane).slice(0, 14)}</text>
        ${bars
          .filter((bar) => bar.lane === lane)
          .map((bar) => {
            const rect = html`<rect class=${classOf(bar.kind)} x=${x(bar.start)}
              y=${top + at * LANE_PX + 4}
            width=${Math.max(x(bar.end) - x(bar.start), 1)}
              height=${LANE_PX - 8}><title>${bar.text}</title></rect>`;
            return bar.address ? html`<a href=${bar.address} tabindex="-1">${rect}</a>` : rect;
          })}</g>`,
      )}
      ${
        cursor !== null &&
        html`<line x1=${x(begin + cursor)} x2=${x(begin + cursor)} y1="0" y2=${height - AXIS_PX}
        stroke="currentColor" />`
      }
    </svg></div>`;
}

/** @param {{kind: string, start: number, end: number}[]} bars @returns {[string, number][]}
 *  seconds by kind */
export function byKind(bars) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const bar of bars) sums.set(bar.kind, (sums.get(bar.kind) ?? 0) + bar.end - bar.start);
  return [...sums].sort((a, b) => b[1] - a[1]);
}
