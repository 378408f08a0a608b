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
 * @param {{attempt: Attempt, message: number | null, character: number | null}} given */
function PartingText({ attempt, message, character }) {
  const from = message ?? 0;
  return attempt.messages.slice(from, from + 6).map((one, at) => {
    const calls = (one.tool_calls ?? []).map(
      (call) => `${call.name} ${JSON.stringify(call.arguments)}`,
    );
    const text = [one.thought, one.content, ...calls].filter(Boolean).join("\n");
    const cut = at === 0 ? (character ?? 0) : 0;
    const marked = message !== null && at === 0;
    return html`<div key=${at} class="message"><header>${visible(one.role)}</header><pre>
      <span class="same">${visible(text.slice(0, cut))}</span>
      ${marked && html`<span
        class="parts">${visible(text.slice(cut, cut + 1))}</span>`}
      ${visible(text.slice(cut + (marked ? 1 : 0), cut + AFTER_CHARACTERS))}</pre></div>`;
  });
}

/** @param {Parting} parting @returns {number} the first token that not all have */
function partsAt({ parts, first }) {
  const known = first.flatMap((one) => (one === null ? [] : [one]));
  return parts ?? (known.length ? Math.min(...known) : 0);
}

/** @param {{run: string, rows: Row[], parting: Parting}} given */
function Columns({ run, rows, parting }) {
  const base = `${runPath(run)}/attempts`;
  const parts = partsAt(parting);
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
  const readable = tokens.data?.every((one) => one.text && one.text.length > 0) ?? true;
  const attempts = /** @type {import("../answers.js").Answer<Attempt[]>} */ (
    useAnswers(readable ? [] : rows.map((row) => `${base}/${encodeURIComponent(row.id)}`))
  );
  return html`<div class="side">${rows.map((row, at) => {
    const place = parting.attempts.indexOf(row.id);
    return html`<article key=${row.id}>
      <h3><a data-row href=${attemptAddress(run, row)}>#${row.sample ?? brief(row.id, 20)}</a>
        ${" "}<${Verdict} right=${row.right} lost=${row.lost} /> ${figure(row.reward)}</h3>
      <p class="quiet">${terms(row)}
        ${row.answer !== null && html`<br />answer: ${brief(row.answer, 100)}`}
        </p>
      ${
        readable
          ? whenThere(
              tokens,
              (all) =>
                all[at] &&
                html`<${PartingTokens} tokens=${all[at]} parts=${parts}
                  alone=${parting.first[place] ?? null} />`,
            )
          : whenThere(
              attempts,
              (all) =>
                all[at] &&
                html`<${PartingText} attempt=${all[at]}
            message=${parting.message[place] ?? null}
              character=${parting.character[place] ?? null} />`,
            )
      }
    </article>`;
  })}</div>`;
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
      <p>${right} of ${said.attempts.length} attempts right.
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
        (/** @type {Parting} */ where) => html`
        ${
          where.common !== null &&
          html`<p class="quiet">The first ${figure(where.common)} sampled tokens are the same in
          all attempts. Filled: the first token that not all have. Framed: the first from which an
          attempt is like no other. Right and wrong attempts take turns.</p>`
        }
        <${Columns} run=${run.id} rows=${shown} parting=${where} />`,
      )}
      <h2>Attempts</h2>
      <${Attempts} run=${run.id} rows=${said.attempts} asked=${false}
          caption=${`${said.attempts.length} attempts at this task`} />`;
  });
}
