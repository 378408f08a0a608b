// How figures are written.

/** @param {unknown} value @param {number} [digits] @returns {string} a number, or a dash */
export function figure(value, digits = 3) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "\u2013";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1);
  return value.toLocaleString("en", {
    maximumSignificantDigits: Math.max(digits, size >= 1000 ? 4 : 1),
  });
}

/** @param {number} value @returns {string} a number at a tick of an axis: as short as it can be */
export function tick(value) {
  const size = Math.abs(value);
  if (!size || (size >= 1e-3 && size < 1e6)) return figure(value);
  return Number(value.toPrecision(3)).toExponential();
}

/** @param {unknown} value @returns {string} a share of 1 as percent */
export function percent(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "\u2013";
  return `${(value * 100).toFixed(Math.abs(value) < 0.1 && value ? 1 : 0)}%`;
}

/** @param {Record<string, number | null>} shares  of held-out questions @returns {string} */
export const heldOut = ({ untrained, warm_start, trained }) =>
  [untrained, warm_start, trained].map(percent).join(" \u2192 ");

/** @param {unknown} value @returns {string} a duration */
export function seconds(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "\u2013";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

/** @param {unknown} value  seconds since 1970, or an ISO date @returns {string} */
export function moment(value) {
  if (typeof value !== "number" && typeof value !== "string") return "\u2013";
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  if (Number.isNaN(date.getTime())) return "\u2013";
  return date.toISOString().replace("T", " ").slice(0, 16);
}
