// The state of the page is its address: what is shown, of which run, in which order.
import { useEffect, useState } from "./vendor/hooks.mjs";

/** Parameters of the address: `view`, `run`, and what the view adds.
 * @typedef {Record<string, string>} State */

/** What a file that was exported holds instead of a server; its state follows the `#`.
 * @type {{run: string, answers: Record<string, unknown>} | null} */
export const exported = JSON.parse(
  document.getElementById("recorded-answers")?.textContent ?? "null",
);

/** @type {Set<() => void>} */
const listeners = new Set();

/** The state, for a frame that may not change its address.
 * @type {State | null} */
let kept = null;

/** @returns {State} */
export function state() {
  if (kept) return kept;
  const text = exported ? location.hash.replace(/^#\??/, "") : location.search;
  const found = Object.fromEntries(new URLSearchParams(text));
  return exported && !found.run ? { run: exported.run } : found;
}

/** @param {Record<string, string | number | null | undefined>} wanted @returns {string} */
export function href(wanted) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(wanted))
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  return `${exported ? "#" : ""}?${query}`;
}

/** The address of this state with some parameters changed; null removes one.
 * @param {Record<string, string | number | null | undefined>} changes @returns {string} */
export function changed(changes) {
  return href({ ...state(), ...changes });
}

/** @param {string} address  from `href` @param {{replace?: boolean}} [how] */
export function go(address, { replace = false } = {}) {
  try {
    history[replace ? "replaceState" : "pushState"](null, "", address);
  } catch (error) {
    // a sandboxed frame keeps its address
    if (!(error instanceof DOMException)) throw error;
    kept = Object.fromEntries(new URLSearchParams(address.replace(/^#?\??/, "")));
  }
  if (!replace) scrollTo(0, 0);
  for (const listener of listeners) listener();
}

/** @returns {State} the state, followed as it changes */
export function useAddress() {
  const [now, setNow] = useState(state);
  useEffect(() => {
    const listener = () => setNow(state());
    listeners.add(listener);
    addEventListener("popstate", listener);
    return () => {
      listeners.delete(listener);
      removeEventListener("popstate", listener);
    };
  }, []);
  return now;
}

/** Follow a link of ours without loading the page again.
 * @param {MouseEvent} event */
export function followed(event) {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  const address = link?.getAttribute("href");
  if (!link || !address || link.hasAttribute("download") || link.target) return;
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (!address.startsWith("?") && !address.startsWith("#?")) return;
  event.preventDefault();
  go(address);
}
