// Dark and light: as the system has it, until one is chosen.
const CHOICES = ["system", "dark", "light"];
const KEY = "espalier-theme";

/** @returns {Storage | null} null in a frame that may keep nothing */
function storage() {
  try {
    return localStorage;
  } catch (error) {
    if (error instanceof DOMException) return null;
    throw error;
  }
}

/** @returns {string} */
export function theme() {
  const chosen = document.documentElement.dataset.theme ?? storage()?.getItem(KEY) ?? "system";
  return CHOICES.includes(chosen) ? chosen : "system";
}

/** @param {string} [chosen] */
export function showTheme(chosen = theme()) {
  document.documentElement.dataset.theme = chosen;
  dispatchEvent(new Event("espalier-theme"));
}

export function nextTheme() {
  const chosen = CHOICES[(CHOICES.indexOf(theme()) + 1) % CHOICES.length] ?? "system";
  storage()?.setItem(KEY, chosen);
  showTheme(chosen);
}
