// Talk to a checkpoint of the run: a process of its own plays, this page asks and shows.
import { useEffect, useState } from "../vendor/hooks.mjs";
import { changed } from "../address.js";
import { ask, runPath, send, useAnswer } from "../answers.js";
import { figure, seconds } from "../figures.js";
import { Facts, Hostile, html, whenThere } from "../parts.js";
import { brief, visible } from "../visible.js";
import { Select } from "./attempts.js";
import { Transcript } from "./transcript.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Exchange} Exchange
 * @typedef {import("../contract.js").Talk} Talk */

const LOOK_MS = 1000;
const WORDS = {
  loading: "The checkpoint is loaded into a process of its own\u2026",
  answering: "It plays\u2026",
  ready: "Ready.",
  ended: "No process runs: the next question starts one.",
};

/** @param {{one: Exchange, number: number}} given */
function Played({ one, number }) {
  const { answer } = one;
  const terms = Object.entries(answer?.terms ?? {});
  return html`<section class="card" aria-label=${`Question ${number}`}>
    <h2>${brief(one.task ? `Task ${one.task}` : (one.question ?? ""), 200)}</h2>
    ${!answer && html`<p class="quiet">Not answered yet.</p>`}
    ${answer?.error && html`<p class="problem"><${Hostile} value=${answer.error} /></p>`}
    ${
      answer?.messages &&
      html`<${Transcript} run="" attempt=${{ id: "", ...answer }} schedule=${[]} />
      <${Facts} facts=${[
        ["Answer", brief(answer.answer ?? "\u2013", 400)],
        ...(answer.gold ? [["Gold", brief(answer.gold.join(" | "), 400)]] : []),
        ...(answer.gold ? terms.map(([name, it]) => [visible(name), figure(it)]) : []),
        ["Ended", visible(answer.finish)],
        ["Time", seconds(answer.seconds)],
      ]} />`
    }
  </section>`;
}

/** @param {Given} given */
export function TalkView({ run, at }) {
  const found = useAnswer(`${runPath(run.id)}/checkpoints`);
  const [talk, setTalk] = useState(/** @type {Talk | null} */ (null));
  const [question, setQuestion] = useState("");
  const [task, setTask] = useState(at.task ?? "");
  const [problem, setProblem] = useState("");
  const waits = talk?.state === "loading" || talk?.state === "answering";
  /** @param {Promise<Talk>} said */
  const take = (said) =>
    said.then(
      (now) => {
        setTalk(now);
        setProblem("");
      },
      (error) => setProblem(String(error.message ?? error)),
    );
  const look = () => take(ask("/api/chat", {}, undefined, String(Date.now())));
  useEffect(() => void look(), []);
  useEffect(() => {
    if (!waits) return undefined;
    const timer = setTimeout(look, LOOK_MS);
    return () => clearTimeout(timer);
  }, [talk]);
  return whenThere(found, (/** @type {{checkpoints: {name: string}[]}} */ { checkpoints }) => {
    const names = checkpoints.map((one) => one.name);
    const checkpoint = at.checkpoint ?? names.at(-1) ?? "";
    const here = talk?.run === run.id && talk.checkpoint === checkpoint ? talk : null;
    /** @param {Event} event @param {Record<string, string>} what */
    const put = (event, what) => {
      event.preventDefault();
      take(send("/api/chat", { run: run.id, checkpoint, ...what }));
      setQuestion("");
    };
    /** @param {(text: string) => void} set */
    const typed = (set) => (/** @type {InputEvent} */ event) =>
      set(/** @type {HTMLInputElement} */ (event.target).value);
    if (!names.length)
      return html`<h1>Talk</h1><p>This run\u2019s folder holds no checkpoint.</p>`;
    return html`<h1>Talk</h1>
      <p class="quiet">The checkpoint plays an episode with the run\u2019s own tools, knowledge and
        sandboxes, greedily. It needs memory of this machine while the process runs.</p>
      <div class="bar"><${Select} name="checkpoint" label="Checkpoint" now=${checkpoint}
        values=${names.map((name) => [name, name])} /></div>
      <form class="bar" onSubmit=${(/** @type {Event} */ event) => put(event, { question })}>
        <label>Question <input size="50" maxlength="5000" required value=${question}
          onInput=${typed(setQuestion)} /></label> <button disabled=${waits}>Ask</button></form>
      <form class="bar" onSubmit=${(/** @type {Event} */ event) => put(event, { task })}>
        <label>Task <input size="30" maxlength="500" required value=${task}
          onInput=${typed(setTask)} /></label> <button disabled=${waits}>Play it</button></form>
      ${problem && html`<p class="problem" role="alert">${visible(problem)}</p>`}
      ${here?.problem && html`<p class="problem"><${Hostile} value=${here.problem} /></p>`}
      <p role="status">${here
        ? WORDS[here.state] + (here.step === null ? "" : ` Step ${here.step}.`)
        : talk?.run && talk.state !== "ended"
        ? html`Another checkpoint is loaded; a question here ends its process:
          <a href=${changed({ run: talk.run, checkpoint: talk.checkpoint })}>
          ${` ${visible(talk.run)}, ${visible(talk.checkpoint)}`}</a>.` : WORDS.ended}</p>
      ${here && here.state !== "ended" && html`<p><button type="button"
        onClick=${() => take(send("/api/chat", undefined, "DELETE"))}>End the process</button></p>`}
      ${here?.said.map((one, at) => html`<${Played} key=${at} one=${one} number=${at + 1} />`)
        .reverse()}`;
  });
}
