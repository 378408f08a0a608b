// The keyboard alone suffices: rows are links that j and k move between.
import { go, href, state } from "./address.js";

/** What each key does, as the help shows it. */
export const KEYS = /** @type {[string, string][]} */ ([
  ["j / k", "next / previous row"],
  ["Enter", "open the row"],
  ["Backspace", "up: from an attempt to its group, its step, the run, all runs"],
  ["[ / ]", "previous / next attempt, step or page of this list"],
  ["/", "search in the messages of all attempts; on the list of runs, search in it"],
  ["1 \u2026 9, 0", "views of the run, in the order of the bar"],
  ["c", "next colouring of the tokens"],
  ["space", "play or pause the replay"],
  ["g / b", "label the attempt good / bad"],
  ["t", "dark, light, as the system has it"],
  ["?", "this help"],
  ["Esc", "close the help, leave a field"],
]);

/** @param {number} by  1 or -1 */
function moveRow(by) {
  const rows = /** @type {HTMLElement[]} */ ([
    ...document.querySelectorAll("main [data-row]"),
  ]).filter((row) => row.getClientRects().length);
  const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** @param {string} selector @returns {boolean} whether there was something to press */
function press(selector) {
  const found = /** @type {HTMLElement | null} */ (document.querySelector(selector));
  found?.click();
  return found !== null;
}

function search() {
  const field = /** @type {HTMLInputElement | null} */ (
    document.querySelector("main input[type=search]")
  );
  if (field) {
    field.focus();
    field.select();
  } else if (state().run) go(href({ run: state().run, view: "search" }));
  else go("?");
}

/** @param {KeyboardEvent} event @param {{help: () => void, theme: () => void}} does */
export function pressed(event, does) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape") target.blur();
  if (target.closest("input, textarea, select, dialog, [contenteditable]")) return;
  const { key } = event;
  if (key === " " && target.closest("button, a, summary")) return;
  let done = true;
  if (key === "j") moveRow(1);
  else if (key === "k") moveRow(-1);
  else if (key === "Backspace") done = press("[data-key=up]");
  else if (key === "[") done = press("[data-key=previous]");
  else if (key === "]") done = press("[data-key=next]");
  else if (key === "c") done = press("[data-key=colour]");
  else if (key === " ") done = press("[data-key=play]");
  else if (key === "g") done = press("[data-key=good]");
  else if (key === "b") done = press("[data-key=bad]");
  else if (key === "/") search();
  else if (key === "t") does.theme();
  else if (key === "?") does.help();
  else if (/^[0-9]$/.test(key)) done = press(`nav.views li:nth-child(${Number(key) || 10}) a`);
  else done = false;
  if (done) event.preventDefault();
}
