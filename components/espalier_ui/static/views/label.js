// A label for an attempt: it is written to a file of the viewer's, never to the run.
import { useState } from "../vendor/hooks.mjs";
import { exported } from "../address.js";
import { send } from "../answers.js";
import { html } from "../parts.js";
import { visible } from "../visible.js";

/** @param {{run: string, attempt: import("../contract.js").Attempt}} given */
export function LabelForm({ run, attempt }) {
  const [label, setLabel] = useState(attempt.label);
  const [note, setNote] = useState("");
  const [said, setSaid] = useState("");
  if (exported) return null;
  const path = `/api/labels/${encodeURIComponent(run)}/${encodeURIComponent(attempt.id)}`;
  /** @param {string | null} wanted */
  const write = async (wanted) => {
    try {
      if (wanted === null) await send(path, undefined, "DELETE");
      else await send(path, { label: wanted, note }, "PUT");
      setLabel(wanted);
      setSaid(wanted === null ? "Label removed." : `Labelled ${visible(wanted)}.`);
    } catch (error) {
      setSaid(error instanceof Error ? visible(error.message) : String(error));
    }
  };
  /** @param {InputEvent} event */
  const typed = (event) => setNote(/** @type {HTMLInputElement} */ (event.target).value);
  return html`<h2>Label</h2>
    <p class="quiet">An attempt labelled good is a row for SFT; good and bad ones at one task are
      pairs of preferences.</p>
    <div class="bar">
      <button type="button" data-key="good" aria-pressed=${label === "good"}
          onClick=${() => write("good")}>\u2713 Good</button>
      <button type="button" data-key="bad" aria-pressed=${label === "bad"}
          onClick=${() => write("bad")}>\u2717 Bad</button>
      ${label !== null && html`<button type="button" onClick=${() => write(null)}>Remove</button>`}
    </div>
    <label>Note <input value=${note} maxlength="500"
      onInput=${typed} /></label>
    <p role="status">${said || (label === null ? "No label." : `Labelled ${visible(label)}.`)}</p>`;
}
