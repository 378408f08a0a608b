// An attempt as the messages that were read and written, with what its tools gave back.
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { ask, runPath } from "../answers.js";
import { figure, seconds } from "../figures.js";
import { Hostile, html } from "../parts.js";
import { visible } from "../visible.js";

/** @typedef {import("../contract.js").Attempt} Attempt
 * @typedef {import("../contract.js").Message} Message
 * @typedef {import("../contract.js").Result} Result
 * @typedef {{begin: number, end: number}} Shown  when a message begins and ends in the replay, s */

const ROLES = ["system", "user", "assistant", "tool"];

/** @param {Result} result @returns {string} */
function outcome(result) {
  if (!result.exists) return "no such tool";
  return result.succeeded ? "succeeded" : "failed";
}

/** @param {{call: {name: string, arguments: unknown}}} given */
function Call({ call }) {
  const simple = typeof call.arguments === "object" && call.arguments !== null;
  const lines = simple
    ? Object.entries(/** @type {object} */ (call.arguments))
        .map(
          ([name, value]) =>
            `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`,
        )
        .join("\n")
    : String(call.arguments);
  return html`<div class="call"><strong>\u2192 ${visible(call.name)}</strong><${Hostile}
    value=${lines} /></div>`;
}

/** @param {{message: Message, index: number, results: Result[], marked: string, chosen: boolean,
 *   share: number, path: string}} given  share of its characters that the replay has reached */
function OneMessage({ message: given, path, index, results, marked, chosen, share }) {
  const [whole, setWhole] = useState(/** @type {Message | null} */ (null));
  const [problem, setProblem] = useState("");
  const message = whole ?? given;
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (chosen) place.current?.scrollIntoView({ block: "center" });
  }, [chosen]);
  const load = () =>
    ask(path).then(setWhole, (error) => setProblem(String(error.message ?? error)));
  /** @param {string} text */
  const reached = (text) => (share >= 1 ? text : text.slice(0, Math.floor(text.length * share)));
  const role = ROLES.includes(message.role) ? message.role : "";
  const failed = results.some((result) => !result.succeeded);
  return html`<section ref=${place}
    class=${["message", role, share <= 0 ? "later" : ""].join(" ")}
    aria-label=${`Message ${index + 1}, ${visible(message.role)}`}>
    <header><strong>${visible(message.role)}</strong>
      ${results.map(
        (result) => html`<span key=${result.call}>${visible(result.name)}:${" "}
        <span class=${`verdict ${result.succeeded ? "right" : "wrong"}`}
        >${outcome(result)}</span></span>`,
      )}
      ${typeof message.turn === "number" && html`<span>turn ${message.turn + 1}</span>`}
      ${typeof message.seconds === "number" && html`<span>${seconds(message.seconds)}</span>`}
    </header>
    ${message.thought && html`<div class="thought"><${Hostile} value=${reached(message.thought)}
      marked=${marked} /></div>`}
    ${
      message.content &&
      (message.role === "tool"
        ? html`<div class=${`call${failed ? " failed" : ""}`}><${Hostile}
          value=${reached(message.content)} marked=${marked} label="Result" /></div>`
        : html`<${Hostile} value=${reached(message.content)} marked=${marked} />`)
    }
    ${share > 0.5 && (message.tool_calls ?? []).map((call, at) => html`<${Call}
      key=${at} call=${call} />`)}
    ${message.cut ? html`<p><button type="button" onClick=${load}>Load the
      ${` ${figure(message.cut)} `}characters that were left out</button>
      <span role="status">${visible(problem)}</span></p>` : null}
  </section>`;
}

/** @param {{run: string, attempt: Pick<Attempt, "id" | "messages" | "results">,
 *   marked?: string, chosen?: number | null, time?: number | null,
 *   schedule: Shown[]}} given  `time` of the replay; null shows all */
export function Transcript({ run, attempt, marked = "", chosen = null, time = null, schedule }) {
  const path = `${runPath(run)}/attempts/${encodeURIComponent(attempt.id)}/messages`;
  const loose = attempt.results.filter((result) => result.message === null);
  return html`${attempt.messages.map((message, index) => {
    const when = schedule[index] ?? { begin: 0, end: 0 };
    const share = time === null ? 1 : (time - when.begin) / Math.max(when.end - when.begin, 1e-6);
    return html`<${OneMessage} key=${index} message=${message} index=${index} marked=${marked}
      path=${`${path}/${index}`} chosen=${chosen === index} share=${Math.min(share, 1)}
      results=${attempt.results.filter((result) => result.message === index)} />`;
  })}
  ${
    loose.length > 0 &&
    html`<h3>Results that no message holds</h3>${loose.map(
      (result) => html`
    <div key=${result.call}
        class=${`call${result.succeeded ? "" : " failed"}`}>
        <strong>${visible(result.name)}: ${outcome(result)}</strong>
      <${Hostile} value=${result.content} marked=${marked} /></div>`,
    )}`
  }`;
}

const CHARACTERS_PER_S = 60;

/** When each message is written: as it was measured, or else by its length.
 * @param {Attempt} attempt @returns {{schedule: Shown[], measured: boolean, length: number}} */
export function scheduled(attempt) {
  const measured = attempt.messages.some((message) => typeof message.start === "number");
  const first = attempt.messages.find((message) => typeof message.start === "number")?.start ?? 0;
  let clock = 0;
  const schedule = attempt.messages.map((message) => {
    if (measured) {
      const start = typeof message.start === "number" ? Math.max(0, message.start - first) : clock;
      clock = start + (message.seconds ?? 0);
      // a result is there at once, at the end of its call
      return { begin: message.role === "assistant" ? start : clock, end: clock };
    }
    const begin = clock;
    const characters = (message.content?.length ?? 0) + (message.thought?.length ?? 0) + 40;
    // what the policy read is there at once
    clock += message.role === "assistant" ? characters / CHARACTERS_PER_S : 0.3;
    return { begin, end: clock };
  });
  return { schedule, measured, length: Math.max(clock, 0.1) };
}
