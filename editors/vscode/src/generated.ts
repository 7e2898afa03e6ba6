// Made by editors/generate_types.py from `token-sidecar schema`: do not edit.

/**
 * A model whose window would hold it.
 */
export interface Alternative {
  model: string;
  contextWindow: number;
}

/**
 * Turns that were added, in their order; `usage` as the vendor reported it for the reply.
 */
export interface AppendParams {
  workspace?: string | null;
  session?: string | null;
  turns: Turn[];
  usage?: Record<string, unknown> | null;
}

/**
 * The parts of a request to put together, and the keys that its context depends on.
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
 * An assembled request: the sections' texts, one after the other.
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
}

/**
 * One part of an assembled request.
 */
export interface AssembledSection {
  name: string;
  text: string;
  tokens: number;
  trimmed: boolean;
}

/**
 * What takes the tokens; the parts add up to the whole.
 *
 *     `overhead` is what the format adds, and what a reported number holds beyond the parts counted.
 */
export interface Breakdown {
  system: number;
  tools: number;
  sections: number;
  turns: number;
  overhead: number;
}

/**
 * What reported usage has taught: real = estimated * factor.
 */
export interface CalibrationInfo {
  factor: number;
  samples: number;
  errorPercent: number | null;
}

/**
 * What is known of the endpoints; asks nobody.
 */
export interface CapabilitiesParams {
}

/**
 * What one endpoint can do for one model (contract: `capabilities/list`).
 */
export interface Capability {
  endpoint: string;
  model: string;
  server: string | null;
  text: "auth" | "loading" | "lying" | "supported" | "unknown" | "unreachable" | "unsupported";
  chat: "auth" | "loading" | "lying" | "supported" | "unknown" | "unreachable" | "unsupported";
  limit: number | null;
  checkedAt: string | null;
}

/**
 * A tool call that can be run.
 */
export interface CleanCall {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

/**
 * The conversation's part; `percent` is of the usable window.
 */
export interface ContextStatus {
  tokens: number | null;
  percent: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
}

/**
 * How full a conversation's context is: what the next request would carry.
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
  largest: Part[];
  turns: number | null;
  shouldPrune: boolean | null;
  compacted: boolean | null;
  calibration: CalibrationInfo | null;
  costUsd: number | null;
  text: string;
}

/**
 * Params of `context/warning`: sent once per crossing.
 */
export interface ContextWarning {
  workspace: string | null;
  session: string | null;
  kind: "budget" | "cap" | "compacted" | "droppedToolCalls" | "exhausted";
  message: string;
  usage: ContextUsage | null;
}

/**
 * `cost/detail`: which calls, and what the rows are told apart by.
 */
export interface CostDetailParams {
  workspace?: string | null;
  session?: string | null;
  since?: string | null;
  until?: string | null;
  by?: ("agent" | "category" | "day" | "model" | "session" | "workspace")[];
}

/**
 * `cost/record`: a call that was made, with the vendor's usage object as it came.
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
 * The result of `cost/record`.
 */
export interface CostRecorded {
  id: string;
  usage: Usage;
  costUsd: number | null;
  duplicate: boolean;
}

/**
 * The result of `cost/detail`. `text`: the rows' texts, and a total below several.
 */
export interface CostReport {
  rows: CostRow[];
  totals: CostTotals;
  text: string;
}

/**
 * The calls that have the keys asked for in common. Keys not asked for are null or absent.
 */
export interface CostRow {
  model: string | null;
  category: string | null;
  session: string | null;
  day: string | null;
  agent: string | null;
  workspace: string | null;
  calls: number;
  promptTokens: number;
  estimatedTokens: number | null;
  estimatedPromptTokens: number | null;
  completionTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  costUsd: number | null;
  reportedCostUsd: number;
  unpriced: boolean;
  note: string;
  text: string;
}

/**
 * What was spent today, everywhere, in USD; the tooltip has the workspace's total too.
 */
export interface CostStatus {
  costUsd: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
}

/**
 * Totals of a report. `cost_usd` is of the calls with a price; the others' tokens are apart.
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
 * The public answer to "how many tokens is this" (contract: `Count`).
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
}

/**
 * What to count: one of `textDocument`, `text` and `messages`; for which model or models.
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
 * A count, and the version of the document that was counted.
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
  version: number | null;
  ranges: Count[] | null;
  models: Count[] | null;
  text: string;
}

/**
 * The document's part; `percent` is of its budget, else of the usable window.
 */
export interface DocumentStatus {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  percent: number | null;
  budget: number | null;
  text: string;
  tooltip: string;
}

/**
 * A tool call that was cut off, and what it lacks.
 */
export interface Dropped {
  name: string;
  reason: string;
}

/**
 * Ask for a plan that makes the conversation fit, or apply one.
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
 * A plan that makes the conversation fit, or why none does.
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
}

/**
 * A text, a document or a part of it, to be shortened to a number of tokens.
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
 * A text that fits, what it lost, and how it was counted.
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
 * What is known of a model (contract: `models/list`).
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
 * Which models to list: those whose `provider/id` holds every word of `query`.
 */
export interface ModelsParams {
  query?: string | null;
  choices?: boolean;
}

/**
 * A part of the context by its label.
 */
export interface Part {
  label: string;
  tokens: number;
}

/**
 * A tool call that is about to be run.
 */
export interface PendingToolCall {
  name: string;
  expectedTokens?: number | null;
}

/**
 * A zero-based line, and an offset in it counted in code units of the negotiated encoding.
 */
export interface Position {
  line: number;
  character: number;
}

/**
 * What is about to be sent.
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
 * Whether to send, and what stands against it.
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
 * Ask again: every endpoint that the user declared, or one of them, for a model.
 */
export interface ProbeParams {
  endpoint?: string | null;
  model?: string | null;
}

/**
 * A half-open span of a document: `start` is in it, `end` is the first position after it.
 */
export interface Range {
  start: Position;
  end: Position;
}

/**
 * One thing that stands against sending; `kind` is `window`, `output`, `budget`, …
 */
export interface Reason {
  kind: string;
  message: string;
}

/**
 * A turn that the plan takes out, or takes a part of (`orphan`).
 */
export interface Removed {
  index: number;
  role: string;
  tokens: number;
  reason: "dialogue" | "empty" | "orphan" | "toolOutput";
}

/**
 * Forget all of the conversation but its model.
 */
export interface ResetParams {
  workspace?: string | null;
  session?: string | null;
}

/**
 * A model's reply as its vendor sent it: an object, or the array (or text) of its stream.
 */
export interface ResponseParams {
  workspace?: string | null;
  session?: string | null;
  response: Record<string, unknown> | unknown[] | string;
  model?: string | null;
  category?: string | null;
  requestId?: string | null;
  format?: "anthropic" | "bedrock" | "cohere" | "deepseek" | "gemini" | "lmstudio" | "mistral" | "ollama" | "openai-chat" | "openai-responses" | "xai" | null;
  tools?: Record<string, unknown>[] | null;
}

/**
 * A reply without what was cut off.
 */
export interface ResponseResult {
  content: string;
  toolCalls: CleanCall[];
  dropped: Dropped[];
  stopReason: string | null;
  exhausted: "output" | "window" | null;
  plan: FitResult | null;
  usage: Usage | null;
  calibration: CalibrationInfo | null;
}

/**
 * An open document that a section follows.
 */
export interface SectionDocument {
  uri: string;
}

/**
 * A named section: `text`, or `textDocument` with or without `range`.
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
 * Which conversation the numbers are of.
 */
export interface SessionInfo {
  id: string;
  source: string;
  updatedAt: string;
}

/**
 * What a conversation carries beside its turns. What is left out stays; null takes it away.
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
 * Params of `status/update`: `text` is the line to show; null parts are not known.
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
}

/**
 * A document that the client has opened.
 */
export interface TextDocumentIdentifier {
  uri: string;
}

/**
 * One message of a conversation, in the form in which the client sent it.
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
 * Take the last applied plan back.
 */
export interface UndoParams {
  workspace?: string | null;
  session?: string | null;
}

/**
 * Tokens of one call. `prompt_tokens` = `input_tokens` + cache reads + cache writes.
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
 * Ask how full the context is.
 */
export interface UsageParams {
  workspace?: string | null;
  session?: string | null;
}
