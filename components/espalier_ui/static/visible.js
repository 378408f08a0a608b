// Text that a model wrote, made harmless to read: every character that hides or moves others is
// shown as a mark. Text reaches the page through text nodes alone, never as markup.

// C0 and C1 controls but newline and tab; soft hyphen; zero-width, bidirectional and invisible
// operators; variation selectors and tags, which can carry hidden text; lone surrogates
const HIDDEN = new RegExp(
  [
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160]",
    "[\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164]",
    "[\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff9-\\ufffb\\u{1d173}-\\u{1d17a}]",
    "[\\u{e0000}-\\u{e0fff}]|\\p{Cs}",
  ].join("|"),
  "gu",
);

/** Longest piece of text that is shown before "show more". */
export const SHOWN_CHARACTERS = 4000;
const SHOWN_LINES = 60;

/** @param {string} character @returns {string} its mark, such as \u27e8U+202E\u27e9 */
function mark(character) {
  const code = character.codePointAt(0) ?? 0;
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** @param {unknown} value @returns {string} its text with marks for what would not be seen */
export function visible(value) {
  const text = typeof value === "string" ? value : (JSON.stringify(value, null, 1) ?? "");
  return text.replace(/\r\n/g, "\n").replace(HIDDEN, mark);
}

/** One token: blanks and newlines are marked too, as they are all that some tokens have.
 * @param {string} text @returns {string} */
export function visibleToken(text) {
  const shown = visible(text).slice(0, SHOWN_CHARACTERS);
  return shown.replace(/\n/g, "\u21b5\n").replace(/\t/g, "\u21e5\t");
}

/** @param {unknown} value @param {number} [characters] @returns {string} one line, cut; empty
 *   where there is none */
export function brief(value, characters = 120) {
  const line = visible(value ?? "")
    .slice(0, characters * 4)
    .replace(/\s+/g, " ")
    .trim();
  return line.length > characters ? `${line.slice(0, characters)}\u2026` : line;
}

/** @param {string} text  visible text @param {number} pages  how often more was asked for
 * @returns {string} its beginning */
export function beginning(text, pages) {
  const cut = text.slice(0, SHOWN_CHARACTERS * 4 ** pages);
  const lines = cut.split("\n", SHOWN_LINES * 4 ** pages + 1);
  if (lines.length <= SHOWN_LINES * 4 ** pages) return cut;
  return lines.slice(0, -1).join("\n");
}
