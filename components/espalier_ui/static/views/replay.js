// An attempt as it went: the transcript grows at a chosen speed.
import { useEffect, useState } from "../vendor/hooks.mjs";
import { changed, go } from "../address.js";
import { seconds } from "../figures.js";
import { html } from "../parts.js";

const SPEEDS = [0.5, 1, 2, 4, 8, 16];

/** @param {{length: number, measured: boolean, time: number | null, speed: number,
 *   setTime: (time: number | null) => void}} given */
export function Replay({ length, measured, time, speed, setTime }) {
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    const begun = performance.now();
    const from = time === null || time >= length ? 0 : time;
    let frame = 0;
    const tick = (/** @type {number} */ now) => {
      const reached = from + (Math.max(now - begun, 0) / 1000) * speed;
      setTime(Math.min(reached, length));
      if (reached < length) frame = requestAnimationFrame(tick);
      else setPlaying(false);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, [playing, speed]);
  /** @param {number | null} next */
  const stand = (next) => {
    setPlaying(false);
    setTime(next);
    go(changed({ time: next === null ? null : next.toFixed(2) }), { replace: true });
  };
  /** @param {InputEvent} event */
  const moved = (event) => stand(Number(/** @type {HTMLInputElement} */ (event.target).value));
  return html`<div class="bar" role="group" aria-label="Replay">
    <button type="button" data-key="play" aria-pressed=${playing}
      onClick=${() => (playing ? stand(time) : setPlaying(true))}
      >${playing ? "Pause" : "Play"}</button>
    <input type="range" aria-label="Time in the attempt" min="0" max=${length} step="any"
        value=${time ?? length}
      onInput=${moved} />
    <span>${seconds(time ?? length)} of ${seconds(length)}</span>
    <div class="choice" role="group" aria-label="Speed">${SPEEDS.map(
      (one) => html`<a key=${one}
      href=${changed({ speed: one === 1 ? null : one })}
        aria-current=${one === speed ? "true" : null}>${one}\u00d7</a>`,
    )}</div>
    ${time !== null && html`<button type="button" onClick=${() => stand(null)}>Show all</button>`}
    <span class="quiet">${measured
      ? "At the pace that was measured."
      : "No times were kept: messages appear by their length."}</span>
  </div>`;
}
