// Made by editors/generate_types.py from `token-sidecar schema`: do not edit.

/**
 * Another model whose window has room for the request.
 */
export interface Alternative {
  model: string;
  contextWindow: number;
}

/**
 * Appends turns to a conversation, with the reported usage of the last reply.
 */
export interface AppendParams {
  workspace?: string | null;
  session?: string | null;
  turns: Turn[];
  usage?: Record<string, unknown> | null;
}

/**
 * Assembles a request from its parts. The context is reused while its keys are unchanged.
 */
export interface AssembleParams {
  workspace?: string | null;
  session?: string | null;
  preset?: "mind" | null;
  sensor?: string | null;
  assistant?: string | null;
  identity?: string | null;
  feedback?: string | null;
  tools?: string | (string | Record<string, unknown>)[] | null;
  context?: string | null;
  logs?: string | null;
  user?: string | null;
  mandates?: string | string[] | null;
  maxTokens?: number | null;
  focus?: string | null;
  scope?: string | null;
  memoryVersion?: string | number | null;
}

/**
 * An assembled request. Join the texts of `sections` in order to get its text.
 */
export interface AssembleResult {
  sections: AssembledSection[];
  tokens: number;
  prefixHash: string;
  prefixCached: boolean;
  contextCached: boolean;
  skipped: boolean;
  trimLevel: number;
  fits: boolean;
  schemaVersion: number;
  intent: string | null;
  budgetApplied: number;
  pack: PackPart[];
}

/**
 * A part of an assembled request.
 */
export interface AssembledSection {
  name: string;
  text: string;
  tokens: number;
  trimmed: boolean;
}

/**
 * The size of a context by category, in tokens. The values add up to the context's size.
 *
 * `overhead` includes the markup of the request format, and reported tokens that no other
 * category explains.
 */
export interface Breakdown {
  system: number;
  tools: number;
  sections: number;
  turns: number;
  overhead: number;
  logs: number;
  config: number;
  time: number;
}

/**
 * The calibration of estimates: real tokens = estimated tokens × factor.
 */
export interface CalibrationInfo {
  factor: number;
  samples: number;
  errorPercent: number | null;
}

/**
 * List the known capabilities of the endpoints. Sends no request to them.
 */
export interface CapabilitiesParams {
  workspace?: string | null;
  textDocument?: TextDocumentIdentifier | null;
}

/**
 * An endpoint's capabilities for one model.
 */
export interface Capability {
  endpoint: string;
  model: string;
  server: string | null;
  text: "auth" | "loading" | "lying" | "supported" | "unknown" | "unreachable" | "unsupported";
  chat: "auth" | "loading" | "lying" | "supported" | "unknown" | "unreachable" | "unsupported";
  limit: number | null;
  checkedAt: string | null;
  reason: string | null;
}

/**
 * A complete tool call, which the client can run.
 */
export interface CleanCall {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

/**
 * A labelled part of the context, and its size in tokens.
 */
export interface ContextPart {
  label: string;
  tokens: number;
}

/**
 * The status of a conversation. `percent` is relative to the usable window.
 */
export interface ContextStatus {
  tokens: number | null;
  percent: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
  source: string;
  sessions: number;
}

/**
 * How full a context is. `tokens` is the size of the next request.
 */
export interface ContextUsage {
  tokens: number | null;
  limit: number | null;
  limitSource: "catalogue" | "default" | "endpoint" | "request" | "settings" | "transcript" | null;
  reserve: number | null;
  usable: number | null;
  available: number | null;
  percent: number | null;
  over: boolean | null;
  method: "calibrated" | "endpoint" | "estimate" | "exact" | null;
  errorPercent: number | null;
  model: string | null;
  session: SessionInfo | null;
  breakdown: Breakdown | null;
  largest: ContextPart[];
  contents: ContextPart[];
  turns: number | null;
  shouldPrune: boolean | null;
  compacted: boolean | null;
  calibration: CalibrationInfo | null;
  costUsd: number | null;
  forecast: Forecast | null;
  note: string | null;
  severity: "error" | "ok" | "warning";
  text: string;
  rows: ViewRow[];
}

/**
 * The params of `context/warning`, which is sent once each time a threshold is crossed.
 */
export interface ContextWarning {
  workspace: string | null;
  session: string | null;
  kind: "budget" | "cap" | "compacted" | "droppedToolCalls" | "exhausted";
  message: string;
  usage: ContextUsage | null;
}

/**
 * A bar of a chart.
 */
export interface CostBar {
  label: string;
  share: number;
  text: string;
}

/**
 * A chart with one bar for each value of a key. Days without calls are included.
 */
export interface CostChart {
  by: "agent" | "block" | "category" | "day" | "model" | "month" | "session" | "team" | "user" | "week" | "workspace";
  title: string;
  bars: CostBar[];
}

/**
 * Requests a report of recorded calls.
 */
export interface CostDetailParams {
  workspace?: string | null;
  session?: string | null;
  scope?: "team" | "user";
  since?: string | null;
  until?: string | null;
  by?: ("agent" | "block" | "category" | "day" | "model" | "month" | "session" | "team" | "user" | "week" | "workspace")[];
  charts?: boolean;
}

/**
 * Requests the costs of prompt files.
 */
export interface CostFilesParams {
  workspace?: string | null;
  since?: string | null;
  uris?: string[] | null;
}

/**
 * Requests a page that shows a report of recorded calls.
 */
export interface CostPageParams {
  workspace?: string | null;
  period?: "all" | "custom" | "month" | "today" | "week";
  by?: "agent" | "day" | "file" | "model" | "month" | "session" | "week";
  since?: string | null;
  until?: string | null;
}

/**
 * Records a finished call. `usage` is the vendor's unmodified usage object.
 */
export interface CostRecordParams {
  workspace?: string | null;
  session?: string | null;
  model: string;
  category?: string;
  provider?: string | null;
  usage: Record<string, unknown>;
  estimatedTokens?: number | null;
  requestId?: string | null;
  at?: string | null;
}

/**
 * The result of recording a call, including its cost.
 */
export interface CostRecorded {
  id: string;
  usage: Usage;
  costUsd: number | null;
  unpriced: boolean;
  duplicate: boolean;
}

/**
 * The costs of recorded calls. `text` lists all rows, followed by a total if there are
 * several.
 */
export interface CostReport {
  rows: CostRow[];
  totals: CostTotals;
  text: string;
  basis: string;
  note: string;
  table: CostTable | null;
  charts: CostChart[];
  overview: string;
}

/**
 * A group of calls with the same values of the report's keys. Other keys are null or absent.
 */
export interface CostRow {
  model: string | null;
  category: string | null;
  session: string | null;
  day: string | null;
  week: string | null;
  month: string | null;
  block: string | null;
  agent: string | null;
  workspace: string | null;
  user: string | null;
  team: string | null;
  calls: number;
  promptTokens: number;
  estimatedTokens: number | null;
  estimatedPromptTokens: number | null;
  completionTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  costUsd: number | null;
  reportedCostUsd: number;
  listedCostUsd: number | null;
  agentCostUsd: number | null;
  unpriced: boolean;
  note: string;
  text: string;
  costText: string;
}

/**
 * Costs in USD.
 *
 * `text` shows the cost of the displayed agent session. Without one, it shows today's cost in
 * all workspaces and ends in `today`. The tooltip shows both costs and the workspace's total.
 */
export interface CostStatus {
  costUsd: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
}

/**
 * A report as a table of text cells. `total` is the last row, or empty if there is one row
 * only.
 */
export interface CostTable {
  heads: string[];
  names: number;
  rows: string[][];
  total: string[];
}

/**
 * The totals of a report. `cost_usd` excludes the tokens in `unpriced_tokens`.
 */
export interface CostTotals {
  calls: number;
  inputTokens: number;
  outputTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  reasoningTokens: number;
  costUsd: number;
  unpricedTokens: number;
  costText: string;
}

/**
 * The number of tokens in the text, with the method of the count.
 */
export interface Count {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  tokenizer: string;
  model: string;
  errorPercent: number | null;
  characters: number;
  limit: number | null;
  limitSource: string | null;
  percent: number | null;
  inputCostUsd: number | null;
  note: string | null;
  similarModels: string[] | null;
}

/**
 * What to count: exactly one of `textDocument`, `text` and `messages`.
 */
export interface CountParams {
  textDocument?: TextDocumentIdentifier | null;
  text?: string | null;
  messages?: Record<string, unknown>[] | null;
  tools?: Record<string, unknown>[] | null;
  range?: Range | null;
  ranges?: Range[] | null;
  model?: string | null;
  models?: string[] | null;
}

/**
 * The result of a count. For a document, it includes the document's version.
 */
export interface CountResult {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  tokenizer: string;
  model: string;
  errorPercent: number | null;
  characters: number;
  limit: number | null;
  limitSource: string | null;
  percent: number | null;
  inputCostUsd: number | null;
  note: string | null;
  similarModels: string[] | null;
  version: number | null;
  ranges: Count[] | null;
  models: Count[] | null;
  text: string;
}

/**
 * The status of a document.
 *
 * `percent` refers to the budget if there is one, otherwise to the usable window.
 */
export interface DocumentStatus {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  percent: number | null;
  budget: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
}

/**
 * A tool call that was cut off. `reason` names what is missing.
 */
export interface Dropped {
  name: string;
  reason: string;
}

/**
 * The cost of a prompt file, which agents send with every request.
 */
export interface FileCost {
  uri: string;
  tokens: number | null;
  requests: number;
  costUsd: number | null;
  cachedPercent: number | null;
  text: string;
  model: string | null;
  method: "calibrated" | "endpoint" | "estimate" | "exact" | null;
}

/**
 * Requests a pruning plan, or applies an existing plan.
 */
export interface FitParams {
  workspace?: string | null;
  session?: string | null;
  maxTokens?: number | null;
  keepTurns?: number | null;
  strategy?: "drop" | "summarize";
  apply?: boolean;
  planId?: string | null;
}

/**
 * A pruning plan. If the conversation still does not fit, `reason` explains why.
 */
export interface FitResult {
  messages: Turn[];
  removed: Removed[];
  summary: string | null;
  tokensBefore: number;
  tokensAfter: number;
  cachedTokensLost: number;
  fits: boolean;
  planId: string;
  reason: string | null;
  text: string;
}

/**
 * Text, document or range to shorten to `maxTokens` tokens.
 */
export interface FitTextParams {
  textDocument?: TextDocumentIdentifier | null;
  text?: string | null;
  range?: Range | null;
  maxTokens: number;
  mode?: "end" | "middle" | "start";
  model?: string | null;
  marker?: string;
}

/**
 * The shortened text, what was removed, and how the tokens were counted.
 */
export interface FitTextResult {
  text: string;
  tokens: number;
  removedTokens: number;
  removedLines: number;
  changed: boolean;
  model: string;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  tokenizer: string;
  errorPercent: number | null;
}

/**
 * A session's forecast, based on the calls recorded in the last 24 hours.
 */
export interface Forecast {
  callsLeft: number | null;
  nextInputUsd: number | null;
  nextInputUncachedUsd: number | null;
  cachedUntil: string | null;
  cacheHitPercent: number | null;
  usdPerHour: number | null;
  limits: PlanLimit[];
  block: UsageBlock | null;
}

/**
 * A model in the catalogue.
 */
export interface ModelInfo {
  id: string;
  provider: string | null;
  tokenizer: string;
  contextWindow: number | null;
  maxOutput: number | null;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
}

/**
 * List the models whose `provider/id` contains every word of `query`.
 */
export interface ModelsParams {
  workspace?: string | null;
  query?: string | null;
  choices?: boolean;
}

/**
 * A section of the assembled context.
 */
export interface PackPart {
  name: string;
  tokens: number;
  trimmed: boolean;
}

/**
 * A page for an editor's panel. It contains no scripts, and names in it are escaped.
 */
export interface Page {
  title: string;
  html: string;
  style: string;
}

/**
 * A tool call that is about to run.
 */
export interface PendingToolCall {
  name: string;
  expectedTokens?: number | null;
}

/**
 * A usage limit of an agent's subscription, as reported by the agent.
 */
export interface PlanLimit {
  minutes: number;
  usedPercent: number;
  resetsAt: string | null;
}

/**
 * A zero-based line, and a character offset in code units of the negotiated encoding.
 */
export interface Position {
  line: number;
  character: number;
}

/**
 * Checks a request before it is sent.
 */
export interface PreflightParams {
  workspace?: string | null;
  session?: string | null;
  turns?: Turn[] | null;
  text?: string | null;
  model?: string | null;
  maxOutputTokens?: number | null;
  pendingToolCall?: PendingToolCall | null;
}

/**
 * The verdict on a request, and the reasons for it.
 */
export interface PreflightResult {
  verdict: "ok" | "refuse" | "warn";
  promptTokens: number;
  available: number;
  fits: boolean;
  deferTool: boolean;
  estimatedCostUsd: number | null;
  reasons: Reason[];
  alternatives: Alternative[];
}

/**
 * Probe one endpoint, or all endpoints if `endpoint` is missing.
 */
export interface ProbeParams {
  endpoint?: string | null;
  model?: string | null;
  workspace?: string | null;
  textDocument?: TextDocumentIdentifier | null;
}

/**
 * A half-open range of positions. `end` is the position after the last character.
 */
export interface Range {
  start: Position;
  end: Position;
}

/**
 * A reason for a verdict of `context/preflight`. `kind` is, for example, `window`, `output` or
 * `budget`.
 */
export interface Reason {
  kind: string;
  message: string;
}

/**
 * A turn that a pruning plan removes, or removes in part if the reason is `orphan`.
 */
export interface Removed {
  index: number;
  role: string;
  tokens: number;
  reason: "dialogue" | "empty" | "orphan" | "toolOutput";
}

/**
 * Removes everything from a conversation except its model.
 */
export interface ResetParams {
  workspace?: string | null;
  session?: string | null;
}

/**
 * Passes on a model's reply as the vendor sent it. A stream is a list or a string.
 */
export interface ResponseParams {
  workspace?: string | null;
  session?: string | null;
  response: Record<string, unknown> | unknown[] | string;
  model?: string | null;
  provider?: string | null;
  category?: string | null;
  requestId?: string | null;
  format?: "anthropic" | "bedrock" | "cohere" | "deepseek" | "gemini" | "lmstudio" | "mistral" | "ollama" | "openai-chat" | "openai-responses" | "xai" | null;
  tools?: Record<string, unknown>[] | null;
}

/**
 * The usable parts of a reply.
 */
export interface ResponseResult {
  content: string;
  toolCalls: CleanCall[];
  dropped: Dropped[];
  unchecked: string[];
  model: string | null;
  requestId: string | null;
  stopReason: string | null;
  exhausted: "output" | "window" | null;
  plan: FitResult | null;
  usage: Usage | null;
  calibration: CalibrationInfo | null;
  usageRecorded: boolean;
  usageProblem: string | null;
}

/**
 * The open document that provides a section's text.
 */
export interface SectionDocument {
  uri: string;
}

/**
 * A named section: either a `text`, or a `textDocument` with an optional `range`.
 */
export interface SectionSpec {
  name: string;
  text?: string | null;
  textDocument?: SectionDocument | null;
  range?: Range | null;
  cap?: number | null;
  priority?: number | null;
  truncation?: "end" | "middle" | "start" | null;
}

/**
 * Selects the session to show until it ends. Null restores automatic selection.
 */
export interface SelectParams {
  workspace?: string | null;
  session?: string | null;
}

/**
 * The session that a result describes.
 */
export interface SessionInfo {
  id: string;
  source: string;
  updatedAt: string;
  label: string;
}

/**
 * A session in the list of a workspace's sessions.
 */
export interface SessionRow {
  id: string;
  source: string;
  title: string | null;
  model: string | null;
  tokens: number | null;
  limit: number | null;
  percent: number | null;
  method: "calibrated" | "endpoint" | "estimate" | "exact" | null;
  note: string | null;
  state: "ended" | "idle" | "running";
  parent: string | null;
  costUsd: number | null;
  updatedAt: string;
  shown: boolean;
  pinned: boolean;
  severity: "error" | "ok" | "warning";
  label: string;
  detail: string;
  text: string;
}

/**
 * Requests the sessions from the last 24 hours, or all sessions.
 */
export interface SessionsParams {
  workspace?: string | null;
  all?: boolean;
}

/**
 * Sets parts of a conversation other than its turns. Null removes a part.
 */
export interface SetParams {
  workspace?: string | null;
  session?: string | null;
  model?: string | null;
  systemPrompt?: string | null;
  tools?: Record<string, unknown>[] | null;
  sections?: SectionSpec[] | null;
  limit?: number | null;
  reserve?: number | null;
  persist?: boolean | null;
}

/**
 * Params of `status/update`. `text` is the status line. Fields without data are null.
 *
 * `text` shows `?` for a document that is out of sync with the editor.
 */
export interface StatusUpdate {
  workspace: string | null;
  uri: string | null;
  version: number | null;
  text: string;
  severity: "error" | "ok" | "warning";
  document: DocumentStatus | null;
  context: ContextStatus | null;
  cost: CostStatus | null;
  costRevision: number;
}

/**
 * A document opened by the client.
 */
export interface TextDocumentIdentifier {
  uri: string;
}

/**
 * A message of a conversation, in any vendor's format.
 */
export interface Turn {
  role: string;
  content?: string | unknown[] | null;
  name?: string | null;
  toolCalls?: Record<string, unknown>[] | null;
  toolCallId?: string | null;
  tool_calls?: Record<string, unknown>[] | null;
  tool_call_id?: string | null;
}

/**
 * Reverts the last applied pruning plan.
 */
export interface UndoParams {
  workspace?: string | null;
  session?: string | null;
}

/**
 * The tokens of one call. `prompt_tokens` is the sum of `input_tokens`, cache reads and cache
 * writes.
 */
export interface Usage {
  inputTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  cacheWrite1hTokens: number;
  outputTokens: number;
  reasoningTokens: number;
  promptTokens: number;
}

/**
 * The current five-hour period of a subscription's usage limit.
 */
export interface UsageBlock {
  beganAt: string;
  endsAt: string;
  costUsd: number | null;
  unpriced: boolean;
}

/**
 * Requests the size and the parts of a context.
 */
export interface UsageParams {
  workspace?: string | null;
  session?: string | null;
  contents?: boolean;
}

/**
 * A row of the context view. A group of rows has `children` and an empty value.
 */
export interface ViewRow {
  label: string;
  value: string;
  share: number | null;
  severity: "error" | "ok" | "warning";
  children: ViewRow[];
}
