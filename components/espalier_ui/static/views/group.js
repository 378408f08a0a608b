// A group side by side, with the first token where its attempts part.
import { changed } from "../address.js";
import { address, useAnswer, useAnswers, runPath } from "../answers.js";
import { figure } from "../figures.js";
import { Verdict, html, whenThere } from "../parts.js";
import { Attempts, attemptAddress, terms } from "../rows.js";
import { brief, visible, visibleToken } from "../visible.js";

/** @typedef {import("../app.js").Given} Given
 * @typedef {import("../contract.js").Attempt} Attempt
 * @typedef {import("../contract.js").Parting} Parting
 * @typedef {import("../contract.js").Row} Row
 * @typedef {import("../contract.js").Rows} Rows
 * @typedef {import("../contract.js").Tokens} Tokens */

const COLUMNS = 4;
const BEFORE_TOKENS = 40;
const AFTER_TOKENS = 400;
const AFTER_MESSAGES = 12;
const AFTER_CHARACTERS = 1500;

/** The tokens around the place where the attempts part.
 * @param {{tokens: Tokens, parts: number, alone: number | null}} given  the first token that not
 *   all have, and the first from which this attempt is like no other */
function PartingTokens({ tokens, parts, alone }) {
  const at = parts - tokens.offset;
  const texts = tokens.text ?? [];
  return html`<div class="tokens" tabindex="0" role="group" aria-label="Tokens around the parting">
    ${tokens.offset > 0 && html`<span class="quiet">\u2026 </span>`}
    ${texts.map((text, index) => {
      const kinds = [
        index < at ? "same" : "",
        index === at ? "parts" : index + tokens.offset === alone ? "alone" : "",
        tokens.sampled[index] ? "" : "masked",
      ];
      return html`<span class=${kinds.join(" ").trim() || null}>${visibleToken(text)}</span>`;
    })}
    ${tokens.offset + texts.length < tokens.total && html`<span class="quiet"> \u2026</span>`}
  </div>`;
}

/** The messages from the parting on, where tokens cannot be shown.
 * @param {{attempt: Attempt, parting: Parting}} given */
function PartingText({ attempt, parting: { message, character } }) {
  const from = message ?? 0;
  if (attempt.messages.length <= from) return html`<p class="quiet">It ends here.</p>`;
  const shown = attempt.messages.slice(from, from + AFTER_MESSAGES).map((one, at) => {
    const calls = (one.tool_calls ?? []).map(
      (call) => `${call.name} ${JSON.stringify(call.arguments)}`,
    );
    const text = [one.thought, ...calls, one.content].filter(Boolean).join("\n");
    const cut = at === 0 ? (character ?? 0) : 0;
    const marked = message !== null && at === 0;
    return html`<div key=${at} class="message"><header>${visible(one.role)}</header><pre>
      <span class="same">${visible(text.slice(0, cut))}</span>
      ${marked && html`<span
        class="parts">${visible(text.slice(cut, cut + 1))}</span>`}
      ${visible(text.slice(cut + (marked ? 1 : 0), cut + AFTER_CHARACTERS))}
      ${text.length > cut + AFTER_CHARACTERS && "\u2026"}</pre></div>`;
  });
  const more = attempt.messages.length - from - AFTER_MESSAGES;
  return html`${shown}${more > 0 && html`<p class="quiet">Messages not shown here: ${more}.</p>`}`;
}

/** @param {{run: string, rows: Row[], parting: Parting}} given */
function Columns({ run, rows, parting }) {
  const base = `${runPath(run)}/attempts`;
  const parts = parting.parts ?? 0;
  const tokens = /** @type {import("../answers.js").Answer<Tokens[]>} */ (
    useAnswers(
      rows.map((row) =>
        address(`${base}/${encodeURIComponent(row.id)}/tokens`, {
          offset: Math.max(0, parts - BEFORE_TOKENS),
          limit: BEFORE_TOKENS + AFTER_TOKENS,
        }),
      ),
    )
  );
  const readable = !tokens.error && (tokens.data?.every((one) => one.text?.length) ?? true);
  const attempts = useAnswers(
    readable ? [] : rows.map((row) => `${base}/${encodeURIComponent(row.id)}`),
  );
  return whenThere(/** @type {typeof attempts} */ (readable ? tokens : attempts), (all) => {
    const shared = readable
      ? html`The first ${figure(parting.common)} sampled tokens are the same in all attempts.
          Filled: the first token that not all have. Framed: the first from which an attempt is
          like no other.`
      : `Messages at the beginning that all attempts share, left out: ${parting.message ?? 0}.`;
    return html`<p class="quiet">${shared} Right and wrong attempts take turns.</p>
      <div class="side">${rows.map((row, at) => {
        const place = parting.attempts.indexOf(row.id);
        const twin = parting.same_as[place] ?? null;
        return html`<article key=${row.id}>
          <h3><a data-row href=${attemptAddress(run, row)}>#${row.sample ?? brief(row.id, 20)}</a>
            ${" "}<${Verdict} right=${row.right} lost=${row.lost} /> ${figure(row.reward)}</h3>
          <p class="quiet">${terms(row)}
            ${row.answer !== null && html`<br />answer: ${brief(row.answer, 100)}`}
            ${twin !== null && html`<br />The same messages as #${visible(twin)}.`}</p>
          ${
            readable
              ? html`<${PartingTokens} tokens=${all[at]} parts=${parts}
                  alone=${parting.first[place] ?? null} />`
              : html`<${PartingText} attempt=${all[at]} parting=${parting} />`
          }</article>`;
      })}</div>`;
  });
}

/** @param {Row[]} rows @returns {Row[]} right and wrong ones in turn */
function mixed(rows) {
  const [right, wrong] = [rows.filter((row) => row.right), rows.filter((row) => !row.right)];
  return rows.flatMap((_, at) => [right[at], wrong[at]].flatMap((row) => (row ? [row] : [])));
}

/** @param {Given} given */
export function GroupView({ run, at, mark }) {
  const base = runPath(run.id);
  const source = at.source ?? "train";
  const rows = useAnswer(`${base}/attempts`, { source, group: at.group, limit: 200 }, mark);
  const parting = useAnswer(`${base}/groups/parting`, { source, group: at.group });
  const column = Number(at.column ?? 0);
  return whenThere(rows, (/** @type {Rows} */ said) => {
    const shown = mixed(said.attempts).slice(column, column + COLUMNS);
    const count = said.attempts.length;
    const right = said.attempts.filter((row) => row.right).length;
    return html`<h1>${brief(said.attempts[0]?.question ?? at.group, 200)}</h1>
      <p>${right} of ${said.attempts.length} attempts right, as the verifier judged.
        ${said.attempts[0] && html` <a
          href=${changed({ view: "lineage", task: said.attempts[0].task })}
          >Where the task comes from</a>`}</p>
      <div class="bar"><h2>Side by side</h2>
        ${column > 0 && html`<a data-key="previous"
          href=${changed({ column: Math.max(0, column - COLUMNS) || null })}>\u2190</a>`}
        <span class="quiet">${`${column + 1}\u2013${column + shown.length} of ${count}`}</span>
        ${column + COLUMNS < said.attempts.length && html`<a data-key="next"
          href=${changed({ column: column + COLUMNS })}>\u2192</a>`}
      </div>
      ${whenThere(
        parting,
        (/** @type {Parting} */ where) =>
          html`<${Columns} run=${run.id} rows=${shown} parting=${where} />`,
      )}
      <h2>Attempts</h2>
      <${Attempts} run=${run.id} rows=${said.attempts} asked=${false}
          caption=${`${said.attempts.length} attempts at this task`} />`;
  });
}
