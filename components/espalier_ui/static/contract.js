// The shapes that the server answers with. A value that is not there is null, never 0.

/** @typedef {{id: string, name: string, path: string, family: string | null, model: string | null,
 *   state: string, started: number | null, updated: number | null, stage: string | null,
 *   step: number | null, steps: number | null, figures: Record<string, number | null>,
 *   heldout: Record<string, number | null>, notices: Record<string, number>}} Run
 *
 * @typedef {{name: string, attempts: number, first_step: number | null, last_step: number | null,
 *   complete: boolean, indexed: number | null}} Source
 * @typedef {Run & {sources: Source[], restarts: {time: number | null, step: number | null}[],
 *   labels: number}} RunDetail
 * @typedef {{state: string, stage: string | null, step: number | null, updated: number | null,
 *   attempts: Record<string, number>, notices: number, indexed: number | null}} Live
 *
 * @typedef {{name: string, what: string, unit: string, per: string, covers: string, scale: string,
 *   overview: boolean, range: [number, number] | null}} Figure
 * @typedef {{total: number, stride: number, steps: number[], time: (number | null)[],
 *   series: Record<string, (number | null)[]>, names: string[]}} Steps
 * @typedef {{time: number | null, stage: string | null, step: number | null, level: string,
 *   source: string, text: string, since: number | null, attempts: string[], names: string[],
 *   detected: boolean, count: number, key: string | null, figure?: string | null,
 *   cost: number | null}} Notice
 *
 * @typedef {string | number | null} Cell
 * @typedef {{name: string, kind: string, columns: string[], rows: Cell[][]}} ReportTable
 * @typedef {{sections: {title: string, note: string, tables: ReportTable[]}[]}} Report
 *
 * @typedef {{worker: string, kind: string, start: number, end: number, step: number | null,
 *   attempt: string | null}} WorkerSpan
 * @typedef {{workers: string[], cut: boolean, spans: WorkerSpan[],
 *   steps: {step: number, start: number, end: number}[]}} Timeline
 *
 * @typedef {{id: string, source: string, step: number | null, task: string, group: string | null,
 *   sample: number | null, policy_version: number | null, question: string, reward: number | null,
 *   terms: Record<string, number>, right: boolean | null, lost: boolean, finish: string,
 *   answer: string | null, turns: number, calls: number, failed_calls: number, tokens: number,
 *   sampled_tokens: number, mean_logprob: number | null, advantage: number | null,
 *   trained: boolean | null, tools: string[], failure: string, label: string | null,
 *   time: number | null}} Row
 * @typedef {{total: number, offset: number, attempts: Row[]}} Rows
 * @typedef {{of: string, edges: number[], right: number[], wrong: number[]}} Histogram
 * @typedef {{group: string, task: string, step: number | null, question: string,
 *   gold: string[] | null, size: number, right: number, reward_mean: number | null,
 *   reward_min: number | null, reward_max: number | null, trained: boolean | null,
 *   attempts: Row[]}} Group
 * @typedef {{total: number, offset: number, groups: Group[]}} Groups
 * @typedef {{attempts: string[], common: number, parts: number | null, same_as: (string | null)[],
 *   first: (number | null)[], message: number | null, character: number | null}} Parting
 *
 * @typedef {{role: string, content: string, thought?: string | null, turn: number | null,
 *   tool_calls?: {name: string, arguments: unknown}[] | null, cut?: number,
 *   start: number | null, seconds: number | null}} Message
 * @typedef {{call: number, name: string, arguments: unknown, content: string, succeeded: boolean,
 *   exists: boolean, message: number | null, cut?: number}} Result
 * @typedef {{kind: string, start: number, end: number, turn: number | null}} Span
 * @typedef {{term: string, value: number | null, verifier: string | null, gold: unknown,
 *   answer: unknown, judges: unknown, text: string | null}} Evidence
 * @typedef {Omit<Row, "turns"> & {messages: Message[], results: Result[], gold: string[] | null,
 *   evidence: Evidence[], spans: Span[],
 *   turns: {action: [number, number], observation: [number, number], reward: number}[],
 *   has_tokens: boolean, has_trainer: boolean, has_entropy: boolean,
 *   siblings: {id: string, right: boolean | null, reward: number | null}[],
 *   previous: string | null, next: string | null,
 *   lineage: {task: string, step: number | null, trained_in: number[] | null,
 *     policy_version: number | null}}} Attempt
 * @typedef {(number | null)[] | null} TokenValues
 * @typedef {{total: number, offset: number, ids: number[], text: string[] | null,
 *   sampled: number[], logprob: TokenValues, trainer_logprob: TokenValues, entropy: TokenValues,
 *   advantage: TokenValues, loss: TokenValues, turn: TokenValues,
 *   policy_version: number | (number | null)[] | null}} Tokens
 *
 * @typedef {{attempt: Row, message: number, role: string, snippet: string,
 *   marks: [number, number][]}} Hit
 * @typedef {{total: number | {at_least: number}, offset: number, indexed: number | null,
 *   hits: Hit[]}} Hits
 * @typedef {{attempts: number, failed: number, causes: {cause: string, what: string,
 *   attempts: number, share: number, by_step: [number, number][], examples: Row[]}[]}} Failures
 *
 * @typedef {{side: string, attempts: number, tasks: number, right: number | null,
 *   reward: number | null, calls: number | null, sampled_tokens: number | null,
 *   actions: {action: string, attempts: number, per_attempt: number}[],
 *   finish: Record<string, number>}} Side
 * @typedef {{sides: Side[], differences: {side: number, tasks: number, right: number | null,
 *   ci95: [number, number] | null, better: number, worse: number, same: number}[],
 *   total: number, offset: number, pairs: {task: string, question: string,
 *   sides: ({right: number | null, reward: number | null, attempts: number,
 *     first: string | null} | null)[]}[]}} Comparison
 *
 * @typedef {{task: string, split: string | null, question: string, gold: string[] | null,
 *   source: string | null, pattern: string | null, difficulty: unknown, extra: unknown,
 *   synthesis: unknown, documents: {id: string, title: string | null, text: string}[],
 *   steps: {step: number, attempts: number, right: number, trained: boolean | null}[],
 *   sources: {source: string, attempts: number}[], demonstrations: number}} Task
 * @typedef {{id: string, title: string | null, text: string,
 *   tasks: {task: string, question: string}[]}} Document
 * @typedef {{error?: string | null, messages?: Message[], results?: Result[],
 *   answer?: string | null, finish?: string, terms?: Record<string, number>,
 *   gold?: string[] | null, seconds?: number | null}} Played
 * @typedef {{question: string | null, task: string | null, answer: Played | null}} Exchange
 * @typedef {{run: string | null, checkpoint: string | null, problem: string, said: Exchange[],
 *   step: number | null,
 *   state: "loading" | "ready" | "answering" | "ended"}} Talk
 * @typedef {{run: string, attempt: string, label: string, note: string, time: number,
 *   task: string | null, group: string | null}} Label
 */

export {};
