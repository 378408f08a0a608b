// What the server says, or what an exported file recorded of it.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { exported } from "./address.js";

/** @typedef {Record<string, string | number | string[] | null | undefined>} Asked */
/** @template T
 * @typedef {{data: T | null, error: string, loading: boolean}} Answer */

const KEPT_ANSWERS = 60;
const FOLLOW_MS = 2000;
// later than what the page shows first, which may have come before all attempts were counted
const FIRST_LOOK_MS = 1000;

/** @type {Map<string, unknown>} */
const cache = new Map();

/** @param {string} run @returns {string} where the server answers for it */
export const runPath = (run) => `/api/runs/${encodeURIComponent(run)}`;

/** @param {string} path @param {Asked} [asked] @returns {string} the address, always in one
 *  order */
export function address(path, asked = {}) {
  const query = new URLSearchParams();
  for (const name of Object.keys(asked).sort()) {
    const given = asked[name];
    for (const value of Array.isArray(given) ? given : [given])
      if (value !== null && value !== undefined && value !== "") query.append(name, String(value));
  }
  const text = String(query);
  return text ? `${path}?${text}` : path;
}

/** @param {string} where @param {RequestInit} [how] @returns {Promise<any>} */
async function asked(where, how) {
  if (exported) {
    const key = decodeURIComponent(where.replaceAll("+", " "));
    if (Object.hasOwn(exported.answers, key)) return exported.answers[key];
    throw new Error("This file holds an excerpt of the run, and not this part.");
  }
  const response = await fetch(where, { credentials: "same-origin", ...how });
  // an answer that was broken off is an error, and never kept as an empty one
  if (response.ok) return response.json();
  const said = await response.json().catch(() => ({}));
  throw new Error(said.error?.message ?? `The server answered ${response.status}.`);
}

/** Ask once; what was asked lately is answered from memory.
 * @param {string} path @param {Asked} [params] @param {AbortSignal} [signal]
 * @param {string} [mark]  how far the run was: an answer of another mark is asked again
 * @returns {Promise<any>} */
export async function ask(path, params = {}, signal, mark = "") {
  const where = address(path, params);
  const key = `${where} ${mark}`;
  if (cache.has(key)) return cache.get(key);
  const said = await asked(where, signal ? { signal } : {});
  cache.set(key, said);
  if (cache.size > KEPT_ANSWERS) cache.delete(/** @type {string} */ (cache.keys().next().value));
  return said;
}

/** @param {string} path @param {unknown} body @param {string} [method] @returns {Promise<any>} */
export async function send(path, body, method = "POST") {
  cache.clear();
  const headers = { "Content-Type": "application/json" };
  return asked(path, { method, headers, body: JSON.stringify(body) });
}

/** An answer for a view, with the answer before it until a newer one has come.
 * @template T
 * @param {string | null} path  null asks nothing
 * @param {Asked} [params]
 * @param {string} [mark]  asks again when it changes
 * @returns {Answer<T>} */
export function useAnswer(path, params = {}, mark = "") {
  const where = path === null ? "" : address(path, params);
  const [answer, setAnswer] = useState(
    /** @type {() => {of: string} & Answer<T>} */ (
      () => ({ of: "", data: null, error: "", loading: true })
    ),
  );
  useEffect(() => {
    if (!where) return undefined;
    const stop = new AbortController();
    ask(where, {}, stop.signal, mark).then(
      (data) => {
        if (!stop.signal.aborted) setAnswer({ of: where, data, error: "", loading: false });
      },
      (error) => {
        if (stop.signal.aborted) return;
        setAnswer({ of: where, data: null, error: String(error.message ?? error), loading: false });
      },
    );
    return () => stop.abort();
  }, [where, mark]);
  if (answer.of !== where) return { data: null, error: "", loading: Boolean(path) };
  return answer;
}

/** How far a run is: asked every two seconds while it runs and the page is seen.
 * @param {string | undefined} run
 * @returns {{live: import("./contract.js").Live | null, mark: string}} the mark changes with what
 *   the run has written */
export function useLive(run) {
  const [live, setLive] = useState(
    /** @type {{of: string, said: import("./contract.js").Live | null}} */ ({ of: "", said: null }),
  );
  useEffect(() => {
    if (!run || exported) return undefined;
    let stopped = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer = undefined;
    const look = async () => {
      let running = true;
      try {
        const said = document.hidden
          ? null
          : await asked(`${runPath(run)}/live`);
        if (stopped) return;
        if (said) {
          setLive({ of: run, said });
          running = said.state === "running" || (said.indexed ?? 1) < 1;
        }
      } catch (error) {
        // the view says what is wrong with the run; the server may be there again later
        if (!(error instanceof Error)) throw error;
      }
      if (running && !stopped) timer = setTimeout(look, FOLLOW_MS);
    };
    timer = setTimeout(look, FIRST_LOOK_MS);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [run]);
  const said = live.of === run ? live.said : null;
  if (!said) return { live: null, mark: "" };
  const attempts = Object.values(said.attempts).reduce((sum, count) => sum + count, 0);
  return { live: said, mark: [said.state, said.stage, said.step, attempts, said.notices].join() };
}

/** Several answers at once, in the order asked: the attempts of a group, the runs compared.
 * @template T
 * @param {string[]} addresses  from `address` @returns {Answer<T[]>} */
export function useAnswers(addresses) {
  const key = addresses.join("\n");
  const [answer, setAnswer] = useState(
    /** @type {() => {of: string} & Answer<T[]>} */ (
      () => ({ of: "", data: null, error: "", loading: true })
    ),
  );
  useEffect(() => {
    const stop = new AbortController();
    Promise.all(addresses.map((one) => ask(one, {}, stop.signal))).then(
      (data) => setAnswer({ of: key, data, error: "", loading: false }),
      (error) => {
        if (stop.signal.aborted) return;
        setAnswer({ of: key, data: null, error: String(error.message ?? error), loading: false });
      },
    );
    return () => stop.abort();
  }, [key]);
  return answer.of === key ? answer : { data: null, error: "", loading: true };
}
