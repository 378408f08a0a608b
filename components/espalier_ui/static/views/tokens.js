// The tokens of an attempt, coloured by one of their values. A token that the policy did not
// sample has no value: it is dotted, never coloured as 0.
import { changed, go, state, useAddress } from "../address.js";
import { useAnswer, runPath } from "../answers.js";
import { figure } from "../figures.js";
import { Facts, Pages, html, whenThere } from "../parts.js";
import { visibleToken } from "../visible.js";

/** @typedef {import("../contract.js").Attempt} Attempt
 * @typedef {import("../contract.js").Tokens} Tokens
 * @typedef {import("../contract.js").TokenValues} TokenValues */

const PAGE = 2000;
const MOST_ALPHA = 45;

/** @typedef {{name: string, label: string, what: string, values: (tokens: Tokens) => TokenValues,
 *   both?: boolean, least?: number, classes?: (value: number) => string,
 *   without?: string}} Colouring
 *   `both`: signed, red below 0 and blue above; `without`: `what` where the loss was not kept */

/** @param {Tokens} tokens @returns {TokenValues} */
function versions(tokens) {
  const { policy_version: version, sampled } = tokens;
  if (version === null) return null;
  return sampled.map((is, at) =>
    is ? (Array.isArray(version) ? (version[at] ?? null) : version) : null,
  );
}

/** @type {Colouring[]} */
const COLOURINGS = [
  {
    name: "logprob",
    label: "log-prob",
    least: 5,
    values: (tokens) => tokens.logprob,
    what: "log-prob under the engine that sampled it, nats: the redder, the less likely",
  },
  {
    name: "entropy",
    label: "entropy",
    least: 2,
    values: (tokens) => tokens.entropy,
    what: "entropy of the distribution that it was drawn from, nats",
  },
  {
    name: "advantage",
    label: "advantage",
    both: true,
    values: (tokens) => tokens.advantage,
    what: "advantage: red is made less likely, blue more",
  },
  {
    name: "gap",
    label: "engine\u2013trainer gap",
    both: true,
    least: 0.01,
    values: ({ logprob, trainer_logprob: trainer }) =>
      trainer &&
      (logprob?.map((engine, at) => {
        const own = trainer[at] ?? null;
        return engine === null || own === null ? null : own - engine;
      }) ??
        null),
    what: "trainer's log-prob less the engine's, nats",
  },
  {
    name: "mask",
    label: "mask",
    classes: (value) => (value ? "trains" : "dropped"),
    // a token that was not sampled and yet trained is filled too
    values: ({ sampled, loss }) =>
      sampled.map((is, at) => (loss ? loss[at] || (is ? 0 : null) : is || null)),
    what: "filled: in the loss; struck through: sampled, but dropped from the loss",
    without: "filled: sampled by the policy; what was in the loss was not kept",
  },
  {
    name: "version",
    label: "weight version",
    classes: (value) => `version-${value % 4}`,
    values: versions,
    what: "version of the weights that sampled it",
  },
];

/** @param {string | undefined} name @returns {Colouring} */
const colouring = (name) =>
  /** @type {Colouring} */ (COLOURINGS.find((one) => one.name === name) ?? COLOURINGS[0]);

/** @param {string} hue @param {number} share @returns {string} */
const faint = (hue, share) =>
  `color-mix(in srgb, var(${hue}) ${Math.round(share * MOST_ALPHA)}%, transparent)`;

/** @param {number} value @param {number} most @param {Colouring} now @returns {string} */
function background(value, most, now) {
  if (now.classes) return "";
  const hue = now.name === "logprob" || (now.both && value < 0) ? "--low" : "--high";
  return `background:${faint(hue, Math.min(Math.abs(value) / most, 1))}`;
}

/** @param {{now: Colouring, most: number, what: string}} given */
function Legend({ now, most, what }) {
  const likely = now.name === "logprob";
  const [low, high] = likely ? [-most, 0] : now.both ? [-most, most] : [0, most];
  const ramp = [
    ...(likely || now.both ? [faint("--low", 1)] : []),
    "transparent",
    ...(likely ? [] : [faint("--high", 1)]),
  ].join(", ");
  return html`<p class="legend">${
    !now.classes &&
    html`<span>${figure(low)}</span>
    <span class="ramp"
        style=${`background:linear-gradient(90deg, ${ramp})`}></span>
    <span>${figure(high)}</span>`
  }
    <span class="quiet">${what}. Dotted: not sampled, so without a value.</span></p>`;
}

/** What is known of one token.
 * @param {{tokens: Tokens, index: number}} given */
function Chosen({ tokens, index }) {
  if (index < 0 || index >= tokens.sampled.length)
    return html`<p class="quiet"
      role="status">Click a token, or move with the arrow keys, for its values.</p>`;
  const masked = !tokens.sampled[index];
  /** @param {TokenValues} values */
  const value = (values) =>
    masked ? "none (not sampled)" : values ? figure(values[index], 4) : "not kept";
  const gap = COLOURINGS[3]?.values(tokens) ?? null;
  const turn = tokens.turn?.[index];
  return html`<div role="status"><${Facts} facts=${[
    [
      "Token",
      html`<code>${visibleToken(tokens.text?.[index] ?? "\u2013").slice(0, 60)}</code>
        ${` ${tokens.ids[index]}`}`,
    ],
    ["Position", String(tokens.offset + index)],
    ["Turn", typeof turn === "number" ? String(turn + 1) : "\u2013"],
    ["Sampled", masked ? "no: read" : "yes"],
    [
      "In the loss",
      !tokens.loss ? "not kept" : tokens.loss[index] ? "yes" : masked ? "no" : "no: dropped",
    ],
    ["Log-prob, engine", value(tokens.logprob)],
    ["Log-prob, trainer", value(tokens.trainer_logprob)],
    ["Gap", value(gap)],
    ["Entropy", value(tokens.entropy)],
    ["Advantage", value(tokens.advantage)],
    ["Weight version", value(versions(tokens))],
  ]} /></div>`;
}

/** @param {{tokens: Tokens, now: Colouring}} given */
function Coloured({ tokens, now }) {
  const at = useAddress();
  const chosen = at.token ? Number(at.token) - tokens.offset : -1;
  const values = now.values(tokens);
  const seen = (values ?? []).flatMap((value) => (value === null ? [] : [Math.abs(value)]));
  const most =
    Math.max(
      now.least ?? 0,
      seen.reduce((a, b) => Math.max(a, b), 0),
    ) || 1;
  /** @param {number} index */
  const choose = (index) => {
    const next = Math.min(Math.max(index, 0), tokens.sampled.length - 1);
    go(changed({ token: next + tokens.offset }), { replace: true });
  };
  /** @param {MouseEvent} event */
  const clicked = (event) => {
    const index = event.target instanceof HTMLElement ? event.target.dataset.index : undefined;
    if (index !== undefined) choose(Number(index));
  };
  /** @param {KeyboardEvent} event */
  const walked = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 12, ArrowUp: -12 }[event.key];
    if (!by) return;
    event.preventDefault();
    // a key that repeats comes faster than the page is drawn: the address is never behind
    const { token } = state();
    choose((token ? Number(token) - tokens.offset : -1) + by);
  };
  return html`<div class="bar"><div class="choice" role="group"
    aria-label="Colour tokens by">${COLOURINGS.map(
    (one, index) => {
      const after = COLOURINGS[(index - 1 + COLOURINGS.length) % COLOURINGS.length] === now;
      return html`<a key=${one.name} href=${changed({ colour: one.name })}
        data-key=${after ? "colour" : null}
      aria-current=${one === now ? "true" : null}>${one.label}</a>`;
    },
  )}</div></div>
  ${
    values
      ? html`<${Legend} now=${now} most=${most}
          what=${tokens.loss ? now.what : (now.without ?? now.what)} />`
      : html`<p
        role="status">The run did not keep the ${now.label} of this attempt\u2019s tokens.</p>`
  }
  <${Chosen} tokens=${tokens} index=${chosen} />
  <div class="tokens" tabindex="0" role="group" aria-label="Tokens; arrow keys move between them"
    onClick=${clicked} onKeyDown=${walked}>${tokens.sampled.map((sampled, index) => {
      const value = values?.[index] ?? null;
      const kinds = [
        sampled ? "" : "masked",
        index === chosen ? "chosen" : "",
        value !== null && now.classes ? now.classes(value) : "",
      ];
      // a token without text still has its place
      const text = visibleToken(tokens.text?.[index] ?? "") || `\u27e8${tokens.ids[index]}\u27e9`;
      return html`<span data-index=${index} class=${kinds.filter(Boolean).join(" ") || null}
        style=${value === null ? null : background(value, most, now)}>${text}</span>`;
    })}</div>`;
}

/** @param {{run: string, attempt: Attempt}} given */
export function TokensOf({ run, attempt }) {
  const at = useAddress();
  const offset = Number(at.offset ?? 0);
  const path = `${runPath(run)}/attempts/${encodeURIComponent(attempt.id)}/tokens`;
  const answer = useAnswer(attempt.has_tokens ? path : null, { offset, limit: PAGE });
  if (!attempt.has_tokens)
    return html`<p>This attempt has no tokens: it is text until the policy\u2019s tokenizer encodes
      it.</p>`;
  return whenThere(
    answer,
    (/** @type {Tokens} */ tokens) => html`
    ${tokens.text === null && html`<p>The run\u2019s tokenizer cannot be read here: tokens are shown
      as numbers.</p>`}
    <${Coloured} tokens=${tokens} now=${colouring(at.colour)} />
    <${Pages} offset=${offset} count=${PAGE} total=${tokens.total} />`,
  );
}
